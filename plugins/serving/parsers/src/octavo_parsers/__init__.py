"""Calls of tools and reasoning, taken out of what models say."""
