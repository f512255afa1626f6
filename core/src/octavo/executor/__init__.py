"""Where the model runner runs."""
