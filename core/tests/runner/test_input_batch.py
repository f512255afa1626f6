"""The runner's batch against a loop that keeps whole block tables for each sequence."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from octavo import SamplingParams
from octavo.request import Request
from octavo.runner.input_batch import InputBatch, RunnerSequence
from octavo.runner.logit_rows import choose_logit_rows
from octavo.step import ScheduledSequence, SequenceStart

BLOCK_SIZES = (4, 6)
MAX_SEQS, MAX_TOKENS, MAX_LEN = 5, 200, 60


def make_sequence(sequence_id: int, prompt: list[int]) -> RunnerSequence:
    request = Request(
        request_id=str(sequence_id),
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(),
        seed=sequence_id - 3,
        eos_token_ids=frozenset(),
        max_tokens=40,
        arrival_time=0.0,
    )
    return RunnerSequence(sequence_id, request, sequence_id % 2)


def make_batch() -> InputBatch:
    return InputBatch(
        block_sizes=BLOCK_SIZES,
        table_widths=[-(-MAX_LEN // size) for size in BLOCK_SIZES],
        max_num_seqs=MAX_SEQS,
        max_num_tokens=MAX_TOKENS,
        device=torch.device("cpu"),
    )


class Model:
    """What the scheduler knows: tokens, how many are computed, and block ids by group."""

    def __init__(self, sequence: RunnerSequence) -> None:
        self.sequence = sequence
        self.tokens = sequence.token_ids.tolist()
        self.num_prompt = len(self.tokens)
        self.num_computed = 0
        self.tables: list[list[int]] = [[], []]
        self.running = False


class World:
    """Random plans, and what `prepare` has to make of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.batch = make_batch()
        self.models: dict[int, Model] = {}
        self.next_id = 0
        self.next_block = 1

    def step(self) -> None:
        rng, batch = self.rng, self.batch
        if len(self.models) < 9 and rng.random() < 0.7:
            self.next_id += 1
            sequence = make_sequence(self.next_id, [rng.randrange(100) for _ in range(rng.randint(1, 30))])
            batch.add(sequence)
            self.models[self.next_id] = Model(sequence)
        for sequence_id, model in list(self.models.items()):
            roll = rng.random()
            if roll < 0.08 or len(model.tokens) > MAX_LEN - 8:
                assert batch.remove(sequence_id) is model.sequence
                assert batch.remove(sequence_id) is None
                del self.models[sequence_id]
            elif roll < 0.2 and model.running:
                batch.drop_row(sequence_id)
                model.running, model.num_computed, model.tables = False, 0, [[], []]
        for model in self.models.values():
            if not model.running and sum(m.running for m in self.models.values()) < MAX_SEQS:
                batch.start(SequenceStart(model.sequence.sequence_id, tuple(model.tokens[model.num_prompt :])))
                model.running = True
        running = [m for m in self.models.values() if m.running]
        rows = [m.sequence.row for m in running]
        assert len(set(rows)) == len(rows)
        assert all(row is not None and 0 <= row < MAX_SEQS for row in rows)
        plans = [self.plan(m) for m in rng.sample(running, rng.randint(0, len(running)))]
        if plans:
            self.check(plans)
        assert [m.sequence.row for m in running] == rows, "rows stay put"

    def plan(self, model: Model) -> ScheduledSequence:
        left = len(model.tokens) - model.num_computed
        num_tokens = self.rng.randint(1, left)
        drafts = tuple(self.rng.randrange(100) for _ in range(self.rng.randint(0, 3))) if num_tokens == left else ()
        end = model.num_computed + num_tokens + len(drafts)
        new = []
        for table, size in zip(model.tables, BLOCK_SIZES, strict=True):
            missing = -(-end // size) - len(table)
            blocks = tuple(range(self.next_block, self.next_block + max(0, missing)))
            self.next_block += len(blocks)
            table.extend(blocks)
            new.append(blocks)
        block_ids = tuple(new) if any(new) or self.rng.random() < 0.5 else ()
        sequence_id = model.sequence.sequence_id
        return ScheduledSequence(sequence_id, model.num_computed, num_tokens + len(drafts), drafts, block_ids)

    def check(self, plans: list[ScheduledSequence]) -> None:
        inputs = self.batch.prepare(plans)
        rows = choose_logit_rows(inputs)
        ids, positions, starts, logit_rows = [], [], [0], []
        for n, plan in enumerate(plans):
            model = self.models[plan.sequence_id]
            with_drafts = [*model.tokens, *plan.draft_token_ids]
            span = range(plan.num_computed_tokens, plan.num_computed_tokens + plan.num_scheduled_tokens)
            for p in span:
                if p >= len(model.tokens) - 1:
                    logit_rows.append((n, len(ids), len(with_drafts[: p + 1])))
                ids.append(with_drafts[p])
                positions.append(p)
            starts.append(len(ids))
        assert inputs.input_ids.tolist() == ids
        assert inputs.positions.tolist() == positions
        for group, attention in enumerate(inputs.attention_inputs):
            self.check_group(plans, group, attention, positions, starts)
        assert rows.flat_indices.tolist() == [flat for _, flat, _ in logit_rows]
        verify = rows.verify_rows()
        assert verify.positions.tolist() == [position for *_, position in logit_rows]
        owners = sorted({n for n, *_ in logit_rows})
        assert rows.scheduled == owners
        assert verify.seeds.tolist() == [(plans[n].sequence_id - 3) % 2**64 for n in owners]
        assert verify.child_indices.tolist() == [plans[n].sequence_id % 2 for n in owners]
        assert verify.draft_token_ids.tolist() == [t for n in owners for t in (*plans[n].draft_token_ids, -1)]
        for plan in plans:
            self.commit(plan)

    def check_group(self, plans, group: int, attention, positions, starts) -> None:
        size = BLOCK_SIZES[group]
        slots = []
        for n, plan in enumerate(plans):
            table = self.models[plan.sequence_id].tables[group]
            assert attention.block_table[n, : len(table)].tolist() == table
            slots += [table[p // size] * size + p % size for p in positions[starts[n] : starts[n + 1]]]
        assert attention.slot_mapping.tolist() == slots
        lens = [p.num_computed_tokens + p.num_scheduled_tokens for p in plans]
        for on_device, on_host, wanted in (
            (attention.seq_lens, attention.seq_lens_cpu, lens),
            (attention.query_start_loc, attention.query_start_loc_cpu, starts),
        ):
            assert on_device.tolist() == on_host.tolist() == wanted
        assert attention.block_table.tolist() == attention.block_table_cpu.tolist()
        assert attention.max_seq_len == max(lens)
        assert attention.max_query_len == max(p.num_scheduled_tokens for p in plans)
        assert attention.block_size == size
        assert (attention.block_table.dtype, attention.slot_mapping.dtype) == (torch.int32, torch.int64)

    def commit(self, plan: ScheduledSequence) -> None:
        model = self.models[plan.sequence_id]
        model.num_computed = min(plan.num_computed_tokens + plan.num_scheduled_tokens, len(model.tokens))
        if model.num_computed == len(model.tokens):
            accepted = [
                *plan.draft_token_ids[: self.rng.randint(0, len(plan.draft_token_ids))],
                self.rng.randrange(100),
            ]
            model.tokens += accepted
            model.sequence.append(accepted)
            model.num_computed = len(model.tokens) - 1
        sequence = model.sequence
        assert sequence.token_ids.tolist() == model.tokens
        assert sequence.output_token_ids.tolist() == model.tokens[model.num_prompt :]
        assert sequence.prompt_token_ids.tolist() == model.tokens[: model.num_prompt]


@pytest.mark.parametrize("seed", range(8))
def test_the_batch_is_what_the_loop_says(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()


def test_buffers_keep_their_addresses() -> None:
    world = World(1)
    addresses = set()
    for _ in range(5):
        sequence = make_sequence(100 + len(addresses), [1, 2, 3])
        world.batch.add(sequence)
        world.batch.start(SequenceStart(sequence.sequence_id, ()))
        plan = ScheduledSequence(sequence.sequence_id, 0, 3, (), ((1,), (2,)))
        inputs = world.batch.prepare([plan])
        group = inputs.attention_inputs[0]
        tensors = (inputs.input_ids, inputs.positions, group.slot_mapping, group.block_table, group.seq_lens)
        addresses.add(tuple(t.data_ptr() for t in tensors))
        world.batch.remove(sequence.sequence_id)
    assert len(addresses) == 1


def test_starting_again_gives_one_row_only() -> None:
    """A preemption whose plan never arrived: the row is not lost."""
    batch = make_batch()
    sequence = make_sequence(1, [1, 2])
    batch.add(sequence)
    for _ in range(3 * MAX_SEQS):
        batch.start(SequenceStart(1, (7,)))
        assert sequence.token_ids.tolist() == [1, 2, 7]
    batch.remove(1)
    for i in range(MAX_SEQS):
        batch.add(make_sequence(10 + i, [1]))
        batch.start(SequenceStart(10 + i, ()))
    assert sorted(s.row for s in batch.sequences.values()) == list(range(MAX_SEQS))


def test_a_sequences_tokens_grow_without_limit() -> None:
    sequence = make_sequence(1, [5])
    for i in range(1000):
        sequence.append([i])
    assert sequence.token_ids.tolist() == [5, *range(1000)]
    assert sequence.token_ids.dtype == np.int32
    sequence.restart((3, 4))
    assert sequence.token_ids.tolist() == [5, 3, 4]
