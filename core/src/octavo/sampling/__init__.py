"""From logits to tokens: counter-based randomness, truncation, verification, built-in processors, logprobs."""
