"""The runner's own copy of what it runs: sequences' tokens, and block tables in rows that stay put.

Owns: rows, block tables, the flattened inputs of a step. Must never know: models, sampling, why a plan is as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from octavo.request import Request
from octavo.spec import AttentionMetadataInputs
from octavo.step import ScheduledSequence, SequenceStart


class RunnerSequence:
    """A sequence as the runner holds it; implements `octavo.spec.SequenceView`."""

    __slots__ = ("_tokens", "child_index", "num_tokens", "request", "row", "sequence_id")

    def __init__(self, sequence_id: int, request: Request, child_index: int) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.child_index = child_index
        self.row: int | None = None
        self._tokens = np.array(request.prompt_token_ids, dtype=np.int32)
        self.num_tokens = len(self._tokens)

    @property
    def token_ids(self) -> np.ndarray:
        return self._tokens[: self.num_tokens]

    @property
    def prompt_token_ids(self) -> np.ndarray:
        return self._tokens[: len(self.request.prompt_token_ids)]

    @property
    def output_token_ids(self) -> np.ndarray:
        return self._tokens[len(self.request.prompt_token_ids) : self.num_tokens]

    def append(self, token_ids: Sequence[int]) -> None:
        end = self.num_tokens + len(token_ids)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), dtype=np.int32)
            grown[: self.num_tokens] = self.token_ids
            self._tokens = grown
        self._tokens[self.num_tokens : end] = token_ids
        self.num_tokens = end

    def restart(self, output_token_ids: Sequence[int]) -> None:
        """Hold exactly the prompt and these tokens."""
        self.num_tokens = len(self.request.prompt_token_ids)
        self.append(output_token_ids)


class Buffer:
    """A device tensor that keeps its address, filled through a numpy view of its twin on the host."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.array = self.host.numpy()
        self._device = self.host if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)

    def to_device(self, length: int) -> torch.Tensor:
        """The first `length` entries on the device, with the host's contents."""
        part = self._device[:length]
        if self._device is not self.host:
            part.copy_(self.host[:length], non_blocking=True)
        return part


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The flattened batch of one step, in the order of the plan's `scheduled`."""

    sequences: list[RunnerSequence]
    scheduled: Sequence[ScheduledSequence]
    input_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens]
    query_start: np.ndarray  # [num_seqs + 1]
    attention_inputs: list[AttentionMetadataInputs]  # by KV cache group


class InputBatch:
    """Sequences by id; those that hold KV have a row, and keep it until they are preempted or released."""

    def __init__(
        self,
        block_sizes: Sequence[int],
        table_widths: Sequence[int],
        max_num_seqs: int,
        max_num_tokens: int,
        device: torch.device,
    ) -> None:
        """Of each KV cache group: tokens in a block, and length of the longest block table."""
        self.sequences: dict[int, RunnerSequence] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._block_sizes = block_sizes
        self._tables = [np.zeros((max_num_seqs, width), dtype=np.int32) for width in table_widths]
        self._num_blocks = [np.zeros(max_num_seqs, dtype=np.int32) for _ in table_widths]
        self._input_ids = Buffer((max_num_tokens,), torch.int64, device)
        self._positions = Buffer((max_num_tokens,), torch.int64, device)
        self._query_start = Buffer((max_num_seqs + 1,), torch.int32, device)
        self._seq_lens = Buffer((max_num_seqs,), torch.int32, device)
        self._slots = [Buffer((max_num_tokens,), torch.int64, device) for _ in table_widths]
        self._step_tables = [Buffer((max_num_seqs, width), torch.int32, device) for width in table_widths]

    def add(self, sequence: RunnerSequence) -> None:
        self.sequences[sequence.sequence_id] = sequence

    def start(self, start: SequenceStart) -> None:
        """Give the sequence a row with empty block tables."""
        sequence = self.sequences[start.sequence_id]
        self.drop_row(start.sequence_id)  # if a plan that preempted it was lost in an interrupted step
        sequence.restart(start.output_token_ids)
        sequence.row = self._free_rows.pop()
        for num_blocks in self._num_blocks:
            num_blocks[sequence.row] = 0

    def drop_row(self, sequence_id: int) -> None:
        sequence = self.sequences[sequence_id]
        if sequence.row is not None:
            self._free_rows.append(sequence.row)
            sequence.row = None

    def remove(self, sequence_id: int) -> RunnerSequence | None:
        if sequence_id in self.sequences:
            self.drop_row(sequence_id)
        return self.sequences.pop(sequence_id, None)

    def prepare(self, scheduled: Sequence[ScheduledSequence]) -> StepInputs:
        """Append new blocks to the tables and lay out all scheduled tokens in one flat batch."""
        sequences = [self.sequences[s.sequence_id] for s in scheduled]
        rows = np.array([s.row for s in sequences], dtype=np.int64)
        num_computed = np.array([s.num_computed_tokens for s in scheduled], dtype=np.int64)
        num_scheduled = np.array([s.num_scheduled_tokens for s in scheduled], dtype=np.int64)
        num_seqs = len(scheduled)
        query_start = self._query_start.array[: num_seqs + 1]
        query_start[0] = 0
        np.cumsum(num_scheduled, out=query_start[1:])
        num_tokens = int(query_start[-1])
        seq_lens = self._seq_lens.array[:num_seqs]
        np.add(num_computed, num_scheduled, out=seq_lens, casting="unsafe")

        positions = self._positions.array[:num_tokens]
        positions[:] = np.arange(num_tokens) + np.repeat(num_computed - query_start[:-1], num_scheduled)
        self._fill_input_ids(sequences, scheduled, query_start)
        token_rows = np.repeat(rows, num_scheduled)

        device_positions = self._positions.to_device(num_tokens)
        device_query_start = self._query_start.to_device(num_seqs + 1)
        device_seq_lens = self._seq_lens.to_device(num_seqs)
        inputs = []
        for group, block_size in enumerate(self._block_sizes):
            self._append_blocks(group, sequences, scheduled)
            table, slots, step_table = self._tables[group], self._slots[group], self._step_tables[group]
            blocks = table[token_rows, positions // block_size]
            slots.array[:num_tokens] = blocks * np.int64(block_size) + positions % block_size
            width = max(1, int(self._num_blocks[group][rows].max()))
            step_table.array[:num_seqs, :width] = table[rows, :width]
            inputs.append(
                AttentionMetadataInputs(
                    block_table=step_table.to_device(num_seqs)[:, :width],
                    slot_mapping=slots.to_device(num_tokens),
                    query_start_loc=device_query_start,
                    seq_lens=device_seq_lens,
                    positions=device_positions,
                    block_table_cpu=step_table.array[:num_seqs, :width],
                    query_start_loc_cpu=query_start,
                    seq_lens_cpu=seq_lens,
                    max_query_len=int(num_scheduled.max()),
                    max_seq_len=int(seq_lens.max()),
                    block_size=block_size,
                )
            )
        return StepInputs(
            sequences, scheduled, self._input_ids.to_device(num_tokens), device_positions, query_start, inputs
        )

    def _fill_input_ids(
        self, sequences: list[RunnerSequence], scheduled: Sequence[ScheduledSequence], query_start: np.ndarray
    ) -> None:
        """Committed tokens from the computed ones on, then the drafts."""
        ids = self._input_ids.array
        for sequence, plan, start in zip(sequences, scheduled, query_start.tolist(), strict=False):
            num_drafts = len(plan.draft_token_ids)
            num_committed = plan.num_scheduled_tokens - num_drafts
            first = plan.num_computed_tokens
            ids[start : start + num_committed] = sequence.token_ids[first : first + num_committed]
            if num_drafts:
                ids[start + num_committed : start + plan.num_scheduled_tokens] = plan.draft_token_ids

    def _append_blocks(
        self, group: int, sequences: list[RunnerSequence], scheduled: Sequence[ScheduledSequence]
    ) -> None:
        table, num_blocks = self._tables[group], self._num_blocks[group]
        for sequence, plan in zip(sequences, scheduled, strict=True):
            new = plan.new_block_ids[group] if plan.new_block_ids else ()
            if new:
                start = num_blocks[sequence.row]
                table[sequence.row, start : start + len(new)] = new
                num_blocks[sequence.row] = start + len(new)
