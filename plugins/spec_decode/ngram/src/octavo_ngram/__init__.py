"""Drafts by prompt lookup: what followed the sequence's last tokens when they occurred before."""
