"""Random traffic over tiny pools, with everything that can be checked checked after every operation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.kv import FullAttentionPolicy, KVCacheGroup, KVCacheManager
from octavo.request import FinishReason, Request
from octavo.scheduler import FCFSQueue, PriorityQueue, Scheduler, SequenceStatus
from octavo.spec.kv import FullAttentionSpec
from octavo.step import SchedulerOutput, SequenceUpdate


@dataclass
class Traffic:
    """One random world: its scheduler, its runner, and what the front end has been told."""

    rng: random.Random
    scheduler: Scheduler
    kv: KVCacheManager
    runner: Any
    config: SchedulerConfig
    requests: dict[int, tuple[Request, int]] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list] = field(default_factory=dict)
    prompt_logprobs: dict[int, list] = field(default_factory=dict)
    ends: dict[int, SequenceUpdate] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, sequence_id: int, request: Request, child_index: int) -> None:
        self.runner.attach(sequence_id, request, child_index)
        self.scheduler.add(sequence_id, request, child_index)
        self.requests[sequence_id] = (request, child_index)
        self.live.add(sequence_id)
        for record in (self.outputs, self.logprobs, self.prompt_logprobs):
            record[sequence_id] = []

    def take(self, update: SequenceUpdate) -> None:
        sequence_id = update.sequence_id
        assert sequence_id in self.live, "an update of a sequence that has ended"
        self.outputs[sequence_id] += update.token_ids
        self.logprobs[sequence_id] += update.logprobs
        self.prompt_logprobs[sequence_id] += update.prompt_logprobs
        self.runner.accept(sequence_id, update.token_ids)
        assert len(update.token_ids) == len(update.logprobs)
        if update.finish_reason is not None:
            self.live.remove(sequence_id)
            self.ends[sequence_id] = update
            self.counts[update.finish_reason] += 1
        else:
            assert update.token_ids or update.prompt_logprobs, "an update that says nothing"

    def abort(self, sequence_id: int) -> None:
        update = self.scheduler.finish(sequence_id, FinishReason.ABORT)
        assert (update is not None) == (sequence_id in self.live)
        if update is not None:
            self.take(update)
        self.scheduler.check_integrity()

    def step(self) -> None:
        """Plan, perhaps abort while the plan runs, commit or fail."""
        rng, scheduler = self.rng, self.scheduler
        plan = scheduler.schedule()
        scheduler.check_integrity()
        self.check_plan(plan)
        result = self.runner.run(plan)
        while self.requests and rng.random() < 0.01:
            self.abort(rng.choice(list(self.requests)))
        if rng.random() < 0.005:
            updates = scheduler.fail(plan, "scripted step failure")
            assert {u.sequence_id for u in updates} == {s.sequence_id for s in plan.scheduled} & self.live
        else:
            updates = scheduler.commit(plan, result)
        assert len({u.sequence_id for u in updates}) == len(updates)
        for update in updates:
            self.take(update)
        scheduler.check_integrity()

    def check_plan(self, plan: SchedulerOutput) -> None:
        config, scheduler = self.config, self.scheduler
        assert plan.num_scheduled_tokens <= config.max_num_batched_tokens
        assert scheduler.num_running <= config.max_num_seqs
        assert 0 <= scheduler.prefix_hits <= scheduler.prefix_queries
        assert scheduler.num_preempted == len(plan.preempted)
        assert not (plan.preempted and plan.started), "what one lost went to another that waited"
        scheduled = {s.sequence_id for s in plan.scheduled}
        assert scheduled.issuperset(start.sequence_id for start in plan.started)
        assert not scheduled & set(plan.preempted)
        threshold = config.long_prefill_token_threshold
        for s in plan.scheduled:
            assert threshold == 0 or s.num_scheduled_tokens - len(s.draft_token_ids) <= threshold
        queue = scheduler._queue
        sequences = scheduler._sequences
        ready = [s for s in sequences.values() if s.status is SequenceStatus.WAITING]
        filled = self.blocks_filled_by(plan)
        if plan.started:
            last = max(queue.gives_way_key(sequences[start.sequence_id]) for start in plan.started)
            overtaken = [s for s in ready if queue.gives_way_key(s) < last]
            for s in overtaken:
                assert filled.keys() & self.blocks(s, 0, len(s.token_ids) - 1), "one overtook another in the queue"
            self.counts["postponed"] += len(overtaken)
        if len(self.kv.groups) == 1:  # or else a hit may have to be longer than what is computed
            num_cached = {s.sequence_id: s.num_computed_tokens for s in plan.scheduled}
            for sequence_id in (start.sequence_id for start in plan.started):
                sequence, start = sequences[sequence_id], num_cached[sequence_id]
                stop = min(start + self.kv.hash_block_size, len(sequence.token_ids) - 1)
                for block in self.blocks(sequence, start, stop):
                    computed_by = filled.get(block, [sequence_id])
                    assert not sequence.reads_prefix_cache or computed_by[0] == sequence_id, "computed twice"
        if ready or scheduler.num_running:
            assert plan.scheduled or plan.preempted, "there is work, and nothing happens"
        self.counts["preempted"] += len(plan.preempted)
        self.counts["drafts"] += sum(len(s.draft_token_ids) for s in plan.scheduled)
        self.counts["resumed"] += sum(1 for start in plan.started if start.output_token_ids)

    def blocks(self, sequence: Any, start: int, stop: int) -> set[tuple]:
        """The blocks that tokens `start` to `stop` fill, each as all that its KV depends on."""
        unit, request, root = self.kv.hash_block_size, sequence.request, sequence.blocks.root
        conditions = (root, request.adapter, request.cache_salt)
        return {(*conditions, *sequence.token_ids[: (i + 1) * unit]) for i in range(start // unit, stop // unit)}

    def blocks_filled_by(self, plan: SchedulerOutput) -> dict[tuple, list[int]]:
        """The sequences that fill each block in this step, in the order of the plan."""
        found: dict[tuple, list[int]] = {}
        for s in plan.scheduled if self.kv.prefix_caching else ():
            sequence = self.scheduler._sequences[s.sequence_id]
            stop = s.num_computed_tokens + s.num_scheduled_tokens - len(s.draft_token_ids)
            for block in self.blocks(sequence, s.num_computed_tokens, stop):
                found.setdefault(block, []).append(s.sequence_id)
        return found

    def check_end(self, fake_runner: ModuleType) -> None:
        """Everything has ended as it would have alone, and nothing is left."""
        assert not self.live
        assert not self.scheduler.has_work
        assert not self.runner.held, "the runner was never told to let go"
        assert (self.scheduler.num_running, self.scheduler.num_waiting) == (0, 0)
        assert self.kv.num_used_blocks == 0
        for sequence_id, (request, child_index) in self.requests.items():
            output, end = self.outputs[sequence_id], self.ends[sequence_id]
            expected = fake_runner.naive_generate(request, child_index, self.scheduler.max_model_len)
            prompt = list(request.prompt_token_ids)
            if end.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                assert output == expected[0][: len(output)]
                assert len(output) < len(expected[0])
            else:
                assert (output, end.finish_reason, end.stop_reason) == expected
            tokens = prompt + output
            wanted = [fake_runner.logprob_of(tokens[: i + 1]) for i in range(len(prompt), len(tokens))]
            assert self.logprobs[sequence_id] == wanted
            positions = [p for p, _ in self.prompt_logprobs[sequence_id]]
            if request.sampling_params.prompt_logprobs is None:
                assert positions == []
            elif output:
                assert positions == list(range(1, len(prompt)))
                assert end.num_cached_tokens == 0
            else:
                assert positions == list(range(1, len(positions) + 1))


def random_groups(rng: random.Random, window_policy: ModuleType, hybrid: bool, max_step_tokens: int) -> list:
    unit = rng.choice([1, 2, 4])
    full = FullAttentionSpec(block_size=unit, num_kv_heads=1, head_dim=1, dtype="int8")
    groups = [KVCacheGroup(("full",), full, FullAttentionPolicy(full), rng.randint(12, 40) // unit + 2)]
    for index in range(rng.randint(1, 2) if hybrid else 0):
        size, window = unit * rng.choice([1, 2, 3]), rng.randint(1, 12)
        spec = window_policy.WindowSpec(block_size=size, window=window, max_step_tokens=max_step_tokens)
        policy = window_policy.WindowPolicy(spec)
        num_blocks = rng.randint(12, 40) // size + 2
        groups.insert(rng.randint(0, 1), KVCacheGroup((f"window{index}",), spec, policy, num_blocks))
    return groups


def random_request(rng: random.Random, make_request: Callable[..., Request], longest: int, arrival: float) -> Request:
    shared = [[1, 2, 3, 4, 5, 6] * 8, [3, 3, 3, 3] * 12]
    prompt = (rng.choice(shared)[: rng.randint(0, 30)] + [rng.randrange(7) for _ in range(rng.randint(1, 6))])[
        -longest:
    ]
    return make_request(
        prompt,
        max_tokens=rng.randint(1, 25),
        min_tokens=0 if rng.random() < 0.7 else 1,
        eos=(0,) if rng.random() < 0.3 else (),
        stop_token_ids=[1, 0] if rng.random() < 0.2 else [],
        arrival=arrival if rng.random() < 0.8 else 0.0,
        adapter=rng.choice([None, None, "a"]),
        salt=rng.choice([None, None, "a", "b"]),
        priority=rng.randint(-2, 2),
        prompt_logprobs=1 if rng.random() < 0.15 else None,
        logprobs=0,
    )


def run_world(
    seed: int, hybrid: bool, window_policy: ModuleType, fake_runner: ModuleType, make_request: Callable[..., Request]
) -> Traffic:
    rng = random.Random(seed)
    lookahead = rng.choice([0, 0, 1, 3])
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice([1, 3, 8, 20, 64]),
        max_num_seqs=rng.choice([1, 2, 4, 16]),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5]),
    )
    groups = random_groups(rng, window_policy, hybrid, config.max_num_batched_tokens + lookahead)
    kv = KVCacheManager(groups, min(g.spec.block_size for g in groups), rng.random() < 0.8)
    queue = rng.choice([FCFSQueue, PriorityQueue])()
    scheduler = Scheduler(config, kv, queue, rng.choice([10, 30, 60]), lookahead)
    errors = rng.choice([0.0, 0.0, 0.02])
    runner = fake_runner.FakeRunner(kv.groups, rng, scheduler.max_model_len, rng.choice([0, 2, 6]), lookahead, errors)
    world = Traffic(rng, scheduler, kv, runner, config)
    held: list[int] = []
    num_sequences = rng.randint(3, 25)
    next_id = 0
    for _ in range(20_000):
        action = rng.random()
        if next_id < num_sequences and action < 0.3:
            request = random_request(rng, make_request, scheduler.max_model_len - 1, float(next_id))
            for child_index in range(rng.choice([1, 1, 1, 3])):
                world.add(next_id, request, child_index)
                held.append(next_id)
                next_id += 1
        elif held and action < 0.5:
            sequence_id = held.pop(rng.randrange(len(held)))
            scheduler.mark_ready(sequence_id)
            scheduler.mark_ready(sequence_id)
        elif world.requests and action < 0.51:
            world.abort(rng.choice([*world.requests, 10**6]))
        elif action < 0.515:
            kv.reset_prefix_cache()
            runner.generation += 1
        else:
            world.step()
        scheduler.check_integrity()
        if next_id >= num_sequences and not held and not scheduler.has_work:
            break
    world.check_end(fake_runner)
    return world


@pytest.mark.parametrize("hybrid", [False, True], ids=["full", "hybrid"])
def test_random_traffic(
    hybrid: bool, window_policy: ModuleType, fake_runner: ModuleType, make_request: Callable[..., Request]
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(300):
        try:
            world = run_world(seed, hybrid, window_policy, fake_runner, make_request)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        counts += world.counts
        counts["accepted"] += world.runner.num_accepted
        counts["cached"] += world.runner.num_cached
    # The traffic has met what it is meant to meet, and not just by chance once.
    for what in ("preempted", "resumed", "drafts", "accepted", "cached", "postponed", *FinishReason):
        assert counts[what] > 30, (what, counts)
