"""The engine at its simplest: recompute everything for every token. What the real one is compared with.

No cache, no batch, no chunks, no drafts, and every sampling option written out over one row of logits.
Owns: `naive_generate` and ways to get logits. Must never know: the scheduler, the runner, built-in processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from octavo.extensions import Extensions
from octavo.loading.loader import load_model
from octavo.nn import LocalCommunicator, attention_layers
from octavo.sampling.randomness import row_keys
from octavo.sampling.sampler import sample
from octavo.sampling_params import SamplingParams
from octavo.spec import ForwardBatch, ModelContext, ModelSource
from octavo.testing.dense_attention import DenseAttention

NextLogits = Callable[[Sequence[int]], torch.Tensor]
"""Raw logits [vocab_size] of the token that follows."""
Change = Callable[[torch.Tensor, list[int]], None]
"""Changes logits [vocab_size] in place, given all tokens so far."""


@dataclass(frozen=True, slots=True)
class NaiveOutput:
    token_ids: tuple[int, ...]
    distributions: tuple[torch.Tensor, ...]
    """Raw log probabilities [vocab_size] that each token was chosen from."""
    finish_reason: str
    prompt_distributions: tuple[torch.Tensor, ...] = ()
    """The same for each prompt token but the first, if `prompt_logprobs` asks for them."""

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Raw log probability of each token."""
        return tuple(float(d[t]) for d, t in zip(self.distributions, self.token_ids, strict=True))


def naive_generate(
    next_logits: NextLogits,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    eos_token_ids: Iterable[int] = (),
    max_model_len: int,
    bad_words: Sequence[Sequence[int]] = (),
    child_index: int = 0,
    num_valid_tokens: int | None = None,
    change: Change | None = None,
) -> NaiveOutput:
    """Complete one prompt, one token at a time. Random sampling needs `params.seed`.

    `bad_words` are token ids, since there is no tokenizer here; `num_valid_tokens` cuts off a padded vocabulary;
    `change` stands for logits processors of plugins.
    """
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    tokens, output, distributions = list(prompt), [], []
    lengths = range(1, len(prompt)) if params.prompt_logprobs is not None else ()
    of_prompt = tuple(next_logits(tokens[:length]).float().log_softmax(-1) for length in lengths)
    while True:
        raw = next_logits(tokens)
        scores = raw.float().clone()
        _change(scores.numpy(), prompt, output, params, stops, bad_words)
        if num_valid_tokens is not None:
            scores[num_valid_tokens:] = -torch.inf
        if change is not None:
            change(scores, tokens)
        key = row_keys(
            np.array([(params.seed or 0) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64),
            np.array([child_index]),
            np.array([len(tokens)]),
        )
        token = int(sample(scores.unsqueeze(0), [params], key)[0])
        tokens.append(token)
        output.append(token)
        distributions.append(raw.float().log_softmax(-1))
        stopped = token in stops and len(output) > params.min_tokens
        if stopped or len(output) == params.max_tokens or len(tokens) == max_model_len:
            return NaiveOutput(tuple(output), tuple(distributions), "stop" if stopped else "length", of_prompt)


def _change(
    scores: np.ndarray,  # [vocab_size] float32, changed in place
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    stops: set[int],
    bad_words: Sequence[Sequence[int]],
) -> None:
    for token in {*prompt, *output}:
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token, count in Counter(output).items():
        scores[token] -= params.frequency_penalty * count
        scores[token] -= params.presence_penalty
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    if params.allowed_token_ids is not None:
        for token in set(range(len(scores))) - set(params.allowed_token_ids):
            scores[token] = -np.inf
    for word in bad_words:
        if len(word) == 1 or list(output[1 - len(word) :]) == list(word[:-1]):
            scores[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        for token in stops:
            scores[token] = -np.inf


def dense_next_logits(source: ModelSource, extensions: Extensions, max_model_len: int = 4096) -> NextLogits:
    """Logits of a real model in float32 on the CPU, from one forward pass over the whole sequence each time."""
    context = ModelContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        block_size=16,
        max_model_len=max_model_len,
        communicator=LocalCommunicator(),
    )
    model = load_model(source, extensions, context)
    for layer in attention_layers(model).values():
        layer.bind(DenseAttention(), torch.empty(0), group_id=0)

    @torch.inference_mode()
    def next_logits(token_ids: Sequence[int]) -> torch.Tensor:
        positions = torch.arange(len(token_ids))
        hidden = model.forward(ForwardBatch(torch.tensor(token_ids), positions, [None]))
        return model.logits(hidden[-1:])[0]

    return next_logits
