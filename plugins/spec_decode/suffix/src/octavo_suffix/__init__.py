"""Drafts by suffix decoding: what followed the last tokens before, here and in earlier outputs."""
