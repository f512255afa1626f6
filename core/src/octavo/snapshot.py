"""The engine between two steps, as people who look on are shown it. Plain numbers, which may go to another process.

Owns: `EngineSnapshot` and its parts. Must never know: how sequences are scheduled, what blocks hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class BlockState(IntEnum):
    """What a block of the KV cache is used for, from idle to busiest."""

    FREE = 0
    CACHED = 1
    """Free, with content that a later request may find."""
    USED = 2
    """By one sequence."""
    SHARED = 3
    """By several."""


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """One live sequence, for people who look on."""

    sequence_id: int
    request_id: str
    state: Literal["running", "waiting", "preparing"]
    """`preparing`: it waits for its logits processors (a grammar that compiles)."""
    num_prompt_tokens: int
    num_tokens: int
    """Prompt and output, as far as committed."""
    num_computed_tokens: int
    num_blocks: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class BlockMap:
    """The blocks of one KV cache group, but for the null block."""

    block_size: int
    """Tokens in a block."""
    states: bytes
    """A `BlockState` for each block."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine between two steps."""

    sequences: tuple[SequenceSnapshot, ...]
    """Running ones first, in the order of admission."""
    groups: tuple[BlockMap, ...]
