"""What `GET /status` says: the engine as it is now, for the page and for anybody who looks on.

Owns: the records of that JSON. Must never know: HTTP, how the page shows it, where the totals are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from octavo.snapshot import BlockMap, BlockState, EngineSnapshot, SequenceSnapshot

if TYPE_CHECKING:
    from octavo.extensions import Broken, Origin

MAX_CELLS = 4096
"""Most cells of one KV cache group: no screen shows a million blocks, and the answer goes out once a second."""

_LETTERS = {BlockState.FREE: b".", BlockState.CACHED: b"c", BlockState.USED: b"u", BlockState.SHARED: b"s"}
_TO_LETTERS = bytes.maketrans(bytes(_LETTERS), b"".join(_LETTERS.values()))


class SequenceStatus(msgspec.Struct, kw_only=True):
    """One live sequence; running ones come first."""

    id: int
    request: str
    state: Literal["running", "waiting", "preparing"]
    """`preparing`: its grammar is being compiled."""
    prompt_tokens: int
    tokens: int
    """Prompt and output."""
    computed: int
    """Those of `tokens` whose KV is computed."""
    blocks: int
    preemptions: int


class BlockCounts(msgspec.Struct, kw_only=True):
    free: int
    cached: int
    """Free, but with content that a later request may reuse."""
    used: int
    """By one sequence."""
    shared: int
    """Used by several sequences."""


class BlocksStatus(msgspec.Struct, kw_only=True):
    """The blocks of one KV cache group."""

    block_size: int
    """Tokens in a block."""
    total: int
    per_cell: int
    """Blocks that one cell stands for."""
    cells: str
    """A letter for each cell, for the busiest of its blocks: `.` free, `c` cached, `u` used, `s` shared."""
    counts: BlockCounts


class FinishedTotals(msgspec.Struct, kw_only=True):
    """How many requests have ended, by reason."""

    stop: int
    length: int
    abort: int
    error: int


class Totals(msgspec.Struct, kw_only=True):
    """Sums since the start: two readings give a rate."""

    prompt_tokens: int
    """Those computed; cached ones are not."""
    generation_tokens: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    draft_tokens: int
    """Drafts that were verified."""
    accepted_tokens: int
    preemptions: int
    finished: FinishedTotals


class PluginStatus(msgspec.Struct, kw_only=True):
    name: str
    distribution: str
    version: str
    state: Literal["loaded", "broken"]
    reason: str | None
    """Why it is broken, and what helps."""


class Status(msgspec.Struct, kw_only=True):
    model: str
    version: str
    uptime: float
    """Seconds."""
    description: dict[str, str]
    """What was chosen at start and why."""
    max_num_seqs: int
    """Most sequences that run at a time."""
    sequences: list[SequenceStatus]
    blocks: list[BlocksStatus]
    """One for each KV cache group."""
    totals: Totals
    plugins: list[PluginStatus]


def make_status(
    snapshot: EngineSnapshot,
    totals: Totals,
    *,
    model: str,
    version: str,
    uptime: float,
    description: Mapping[str, str],
    max_num_seqs: int,
    plugins: Iterable[Origin],
    broken: Iterable[Broken],
) -> Status:
    """`plugins` are the loaded ones."""
    return Status(
        model=model,
        version=version,
        uptime=round(uptime, 3),
        description=dict(description),
        max_num_seqs=max_num_seqs,
        sequences=[_sequence(sequence) for sequence in snapshot.sequences],
        blocks=[_blocks(group) for group in snapshot.groups],
        totals=totals,
        plugins=[
            *(_plugin(origin, "loaded", None) for origin in plugins),
            *(_plugin(each.origin, "broken", "; ".join(filter(None, [each.reason, each.mend]))) for each in broken),
        ],
    )


def _sequence(sequence: SequenceSnapshot) -> SequenceStatus:
    return SequenceStatus(
        id=sequence.sequence_id,
        request=sequence.request_id,
        state=sequence.state,
        prompt_tokens=sequence.num_prompt_tokens,
        tokens=sequence.num_tokens,
        computed=sequence.num_computed_tokens,
        blocks=sequence.num_blocks,
        preemptions=sequence.num_preemptions,
    )


def _blocks(group: BlockMap) -> BlocksStatus:
    states, total = group.states, len(group.states)
    per_cell = max(1, -(-total // MAX_CELLS))
    cells = states
    if per_cell > 1:
        cells = bytes(_busiest(states[start : start + per_cell]) for start in range(0, total, per_cell))
    free, cached, used, shared = (states.count(state) for state in BlockState)
    return BlocksStatus(
        block_size=group.block_size,
        total=total,
        per_cell=per_cell,
        cells=cells.translate(_TO_LETTERS).decode(),
        counts=BlockCounts(free=free, cached=cached, used=used, shared=shared),
    )


def _busiest(states: bytes) -> int:
    # `max` would make a Python number of each of a million blocks; `in` searches memory.
    return next(state for state in reversed(BlockState) if state in states)


def _plugin(origin: Origin, state: Literal["loaded", "broken"], reason: str | None) -> PluginStatus:
    return PluginStatus(
        name=origin.plugin,
        distribution=origin.distribution,
        version=origin.version,
        state=state,
        reason=reason,
    )
