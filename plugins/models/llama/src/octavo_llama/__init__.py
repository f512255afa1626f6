"""Decoders of the Llama shape, as a plugin of Octavo."""
