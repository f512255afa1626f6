"""How much work a step is, whoever does it: bytes that must be moved and operations that must be done.

Owns: the count, from a model's shape and what a step computed. Must never know: torch, clocks, how fast anything is.

What is counted, for each step that ran:

- *operations*: two for each weight of a matrix and token that is multiplied with it (the output head only for positions
  whose next token is wanted), and four for each feature of each query head and pair of positions that attend;
- *bytes*: every weight once a step, however many tokens it has (the output head only if a token is wanted, the input
  embedding by the rows looked up, unless it is the head's own); the KV of the scheduled tokens written once; the KV
  of earlier positions that they attend to read once for each sequence, and of a prefix that all requests share once for
  all of them; the logits of the wanted positions written once, in float32.

What is not: activations and temporaries, norms, rotations, softmax, sampling, and whatever the engine's own
bookkeeping costs. Prompt tokens found in the prefix cache are no work but the reading of their KV. Drafts count
whether they are accepted or not, and so does what is computed again after a preemption. A drafter's own layers do not
count. Weights count in the dtype that they are loaded in, also where a transform has quantised them since. A model
smaller than the processor's caches reads its weights from there, so its limit is no limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.step import StepStats

_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """All attention layers that see equally far back."""

    window: int | None
    """A query sees so many positions, its own included; None: all."""
    operations_per_pair: int
    """Sum over the layers, for one query position and one key position."""
    kv_bytes_per_token: int
    """Sum over the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a model decides the work."""

    dtype: str
    device: str
    vocab_size: int
    body_weights: int
    """Elements of the matrices that every token is multiplied with."""
    body_bytes: int
    """Of all parameters but the input embedding and the head."""
    head_weights: int
    head_bytes: int
    embedding_row_bytes: int
    """Bytes of one row of the input embedding."""
    attention: tuple[AttentionShape, ...]


@dataclass(frozen=True, slots=True)
class Work:
    num_bytes: int
    num_operations: int


Span = tuple[int, int]
"""What a sequence computes in a step: the tokens before it, and the tokens scheduled."""


def step_work(shape: ModelShape, stats: StepStats, shared_prefix_len: int = 0) -> Work:
    """The work of one step; all sequences begin with the same `shared_prefix_len` tokens."""
    spans = [(s.num_computed_tokens, s.num_scheduled_tokens) for s in stats.scheduled]
    num_tokens = sum(scheduled for _, scheduled in spans)
    num_rows = stats.num_sampled_sequences + stats.num_draft_tokens
    num_operations = 2 * (shape.body_weights * num_tokens + shape.head_weights * num_rows)
    num_bytes = shape.body_bytes + shape.embedding_row_bytes * num_tokens
    if num_rows:
        num_bytes += shape.head_bytes + num_rows * shape.vocab_size * _LOGIT_BYTES
    for layers in shape.attention:
        num_pairs = sum(attended_pairs(*span, layers.window) for span in spans)
        num_read = positions_read(spans, layers.window, shared_prefix_len)
        num_operations += layers.operations_per_pair * num_pairs
        num_bytes += layers.kv_bytes_per_token * (num_tokens + num_read)
    return Work(num_bytes, num_operations)


def attended_pairs(num_computed: int, num_scheduled: int, window: int | None) -> int:
    """Pairs of a scheduled position and a position that it sees, itself included."""
    seen_whole = num_scheduled if window is None else min(max(window - num_computed, 0), num_scheduled)
    pairs = seen_whole * num_computed + seen_whole * (seen_whole + 1) // 2
    return pairs + (num_scheduled - seen_whole) * (window or 0)


def positions_read(spans: Iterable[Span], window: int | None, shared_prefix_len: int) -> int:
    """Positions computed in earlier steps whose KV is read: each sequence's own, and the shared ones once."""
    own, first_shared, last_shared = 0, shared_prefix_len, 0
    for num_computed, _ in spans:
        first = 0 if window is None else max(0, num_computed - window + 1)
        own += num_computed - min(num_computed, max(first, shared_prefix_len))
        if first < min(num_computed, shared_prefix_len):
            first_shared = min(first_shared, first)
            last_shared = max(last_shared, min(num_computed, shared_prefix_len))
    return own + max(0, last_shared - first_shared)
