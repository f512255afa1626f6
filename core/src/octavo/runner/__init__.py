"""From a scheduler output to tokens: the persistent batch, the forward pass, sampling, drafting."""
