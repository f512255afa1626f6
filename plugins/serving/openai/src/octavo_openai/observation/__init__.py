"""The engine as those who look on see it: counts and what is live; never who asks."""
