"""Models for Octavo out of folders with safetensors weights. Owns nothing; the hooks are in `plugin`."""
