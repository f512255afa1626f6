"""Cuts a step into segments: dense pieces of attention that torch can compute in one call.

Owns: which queries go together and which slots they read. Must never know: heads, scores, dtypes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from octavo.spec import AttentionMetadataInputs

MAX_QUERY_LEN = 512
"""Longer chunks of a prompt are split: each part then reads only the keys up to its own end."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`num` stretches of `query_len` tokens each, with up to `key_len` keys each."""

    rows: torch.Tensor  # [num, query_len] int64: rows of the flat batch
    slots: torch.Tensor  # [num, key_len] int64; padding repeats a slot of the same sequence
    query_positions: torch.Tensor  # [num, query_len] int64
    key_positions: torch.Tensor  # [num, key_len] int64; padding goes on counting, so it lies after every query
    visible: torch.Tensor  # [num, query_len, key_len] bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive query tokens of one sequence, and the range of positions that they can see."""

    seq: int
    first_row: int
    first_query: int
    query_len: int
    first_key: int

    @property
    def end(self) -> int:
        return self.first_query + self.query_len

    @property
    def key_len(self) -> int:
        return self.end - self.first_key


class Segments:
    """The segments of one step, built when a layer first asks for them and kept for those that follow."""

    def __init__(self, inputs: AttentionMetadataInputs) -> None:
        self.slot_mapping = inputs.slot_mapping
        self._inputs = inputs
        self._by_window: dict[int | None, tuple[Segment, ...]] = {}

    def for_window(self, sliding_window: int | None) -> tuple[Segment, ...]:
        """Segments under a sliding window (None: every earlier position is visible)."""
        if sliding_window not in self._by_window:
            alike: dict[tuple[int, int], list[_Stretch]] = defaultdict(list)
            for stretch in self._stretches(sliding_window):
                # Within a power of two of each other, so that padding at most doubles the keys read.
                alike[stretch.query_len, stretch.key_len.bit_length()].append(stretch)
            self._by_window[sliding_window] = tuple(self._segment(group, sliding_window) for group in alike.values())
        return self._by_window[sliding_window]

    def _stretches(self, sliding_window: int | None) -> Iterator[_Stretch]:
        starts = self._inputs.query_start_loc_cpu.tolist()
        for seq, seq_len in enumerate(self._inputs.seq_lens_cpu.tolist()):
            num_queries = starts[seq + 1] - starts[seq]
            for offset in range(0, num_queries, MAX_QUERY_LEN):
                first_query = seq_len - num_queries + offset
                yield _Stretch(
                    seq=seq,
                    first_row=starts[seq] + offset,
                    first_query=first_query,
                    query_len=min(MAX_QUERY_LEN, num_queries - offset),
                    first_key=0 if sliding_window is None else max(0, first_query - sliding_window + 1),
                )

    def _segment(self, stretches: list[_Stretch], sliding_window: int | None) -> Segment:
        def column(name: str) -> np.ndarray:  # [num, 1]
            return np.array([[getattr(stretch, name)] for stretch in stretches], dtype=np.int64)

        query_offsets = np.arange(stretches[0].query_len)
        query_positions = column("first_query") + query_offsets
        key_positions = column("first_key") + np.arange(max(stretch.key_len for stretch in stretches))
        owned = np.minimum(key_positions, column("end") - 1)
        block_size = self._inputs.block_size
        blocks = self._inputs.block_table_cpu[column("seq"), owned // block_size].astype(np.int64)
        visible = key_positions[:, None, :] <= query_positions[:, :, None]
        if sliding_window is not None:
            visible &= key_positions[:, None, :] > query_positions[:, :, None] - sliding_window
        return Segment(
            rows=self._tensor(column("first_row") + query_offsets),
            slots=self._tensor(blocks * block_size + owned % block_size),
            query_positions=self._tensor(query_positions),
            key_positions=self._tensor(key_positions),
            visible=self._tensor(visible),
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._inputs.slot_mapping.device)
