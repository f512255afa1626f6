"""Structured outputs with llguidance: a grammar backend."""
