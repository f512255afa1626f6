"""Models out of one GGUF file."""
