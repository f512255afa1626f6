"""Paged attention in plain torch: the reference backend."""
