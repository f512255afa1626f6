"""From a path to a model that is ready to run, and its tokenizer.

Owns: finding files, filling parameters, tokenizers. Must never know: file formats, engines, schedulers, how a model
computes. Import its modules by name: `locate` and `model_config` need no torch.
"""
