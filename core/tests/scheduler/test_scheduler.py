"""The scheduler's rules, one small situation each. Random traffic is in `test_scheduler_brute_force`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from octavo.request import FinishReason, Request, TokenLogprobs
from octavo.scheduler import Scheduler
from octavo.step import SchedulerOutput, SequenceResult, SequenceUpdate, StepResult

MakeRequest = Callable[..., Request]
MakeScheduler = Callable[..., Scheduler]


def add(scheduler: Scheduler, sequence_id: int, request: Request) -> None:
    scheduler.add(sequence_id, request, 0)
    scheduler.mark_ready(sequence_id)


def planned(plan: SchedulerOutput) -> dict[int, int]:
    """Scheduled tokens by sequence, in the plan's order."""
    return {s.sequence_id: s.num_scheduled_tokens for s in plan.scheduled}


def commit(scheduler: Scheduler, plan: SchedulerOutput, **tokens: tuple[int, ...]) -> dict[int, SequenceUpdate]:
    """Commit `_1=(5, 6)` as the tokens of sequence 1; the others get none."""
    results = tuple(SequenceResult(s.sequence_id, tokens.get(f"_{s.sequence_id}", ())) for s in plan.scheduled)
    updates = scheduler.commit(plan, StepResult(plan.step_id, results))
    scheduler.check_integrity()
    return {u.sequence_id: u for u in updates}


def test_running_first_then_waiting_within_the_budget(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler(budget=10)
    add(scheduler, 1, make_request([1] * 6, arrival=1.0))
    add(scheduler, 2, make_request([2] * 9, arrival=2.0))
    plan = scheduler.schedule()
    assert planned(plan) == {1: 6, 2: 4}
    assert [s.sequence_id for s in plan.started] == [1, 2]
    commit(scheduler, plan, _1=(7,))
    add(scheduler, 3, make_request([3] * 9, arrival=0.0))
    plan = scheduler.schedule()
    assert planned(plan) == {1: 1, 2: 5, 3: 4}
    assert [s.sequence_id for s in plan.started] == [3]
    assert (scheduler.num_running, scheduler.num_waiting) == (3, 0)


def test_a_sequence_is_held_until_it_is_ready(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler()
    scheduler.add(1, make_request([1], arrival=1.0), 0)
    add(scheduler, 2, make_request([2], arrival=2.0))
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 2)
    plan = scheduler.schedule()
    assert planned(plan) == {2: 1}
    scheduler.mark_ready(1)
    scheduler.mark_ready(99)
    commit(scheduler, plan, _2=(5,))
    assert planned(scheduler.schedule()) == {2: 1, 1: 1}


@pytest.mark.parametrize(("threshold", "chunks"), [(3, [3, 3, 1]), (1, [1] * 7)])
def test_long_prompts_come_in_chunks_and_drafts_are_not_chunked(
    threshold: int, chunks: list[int], make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(threshold=threshold)
    add(scheduler, 1, make_request([1] * 7))
    for expected in chunks[:-1]:
        plan = scheduler.schedule()
        assert planned(plan) == {1: expected}
        assert commit(scheduler, plan) == {}
    plan = scheduler.schedule()
    assert planned(plan) == {1: chunks[-1]}
    result = SequenceResult(1, (5,), draft_token_ids=(6, 7, 8, 9))
    scheduler.commit(plan, StepResult(plan.step_id, (result,)))
    assert scheduler.schedule().scheduled[0].draft_token_ids == (6, 7, 8, 9)


def test_the_head_of_the_queue_is_not_overtaken(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, 1, make_request([1] * 9, arrival=1.0))
    add(scheduler, 2, make_request([2] * 9, arrival=2.0))  # three blocks, one is free
    add(scheduler, 3, make_request([3], arrival=3.0))  # would fit
    plan = scheduler.schedule()
    assert planned(plan) == {1: 9}
    scheduler.finish(1, FinishReason.ABORT)
    commit(scheduler, plan, _1=(5,))
    assert planned(scheduler.schedule()) == {2: 9, 3: 1}


def test_what_another_computes_in_this_step_is_waited_for(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(budget=20, max_num_seqs=4)
    shared = list(range(1, 9))
    add(scheduler, 1, make_request([*shared, 20], arrival=1.0))
    add(scheduler, 2, make_request([*shared, 21], arrival=2.0))
    add(scheduler, 3, make_request([30] * 9, arrival=3.0))  # goes first: nobody computes any of it
    add(scheduler, 4, make_request([*shared, 22], arrival=4.0, prompt_logprobs=1))  # has to compute it itself
    plan = scheduler.schedule()
    assert planned(plan) == {1: 9, 3: 9, 4: 2}
    commit(scheduler, plan, _1=(5,), _3=(5,))
    plan = scheduler.schedule()
    assert planned(plan) == {1: 1, 3: 1, 4: 7, 2: 1}
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (9, 8)
    commit(scheduler, plan, _1=(5,), _2=(5,), _3=(5,), _4=(5,))


def test_a_shared_prompt_that_comes_in_chunks_is_computed_once(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(budget=10)
    for child_index in range(3):
        scheduler.add(child_index, make_request(list(range(20)), n=3), child_index)
        scheduler.mark_ready(child_index)
    plan = scheduler.schedule()
    assert planned(plan) == {0: 10}
    commit(scheduler, plan)
    plan = scheduler.schedule()
    assert planned(plan) == {0: 10}
    commit(scheduler, plan, _0=(1,))
    plan = scheduler.schedule()
    assert planned(plan) == {0: 1, 1: 4, 2: 4}


def test_sequences_that_wait_for_another_keep_their_places(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for sequence_id in range(3):
        add(scheduler, sequence_id, make_request([1, 2, 3, 4, 5], arrival=float(sequence_id)))
    add(scheduler, 3, make_request([9], arrival=3.0))
    plan = scheduler.schedule()
    assert planned(plan) == {0: 5}  # the second place is that of sequence 1, not of 3
    commit(scheduler, plan, _0=(1,))
    assert planned(scheduler.schedule()) == {0: 1, 1: 1}


def test_a_failed_step_leaves_nothing_to_share(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler()
    for sequence_id in range(2):
        add(scheduler, sequence_id, make_request([1, 2, 3, 4, 5]))
    scheduler.fail(scheduler.schedule(), "broken")
    scheduler.check_integrity()
    plan = scheduler.schedule()
    assert planned(plan) == {1: 5}
    commit(scheduler, plan, _1=(1,))


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", 3), ("priority", 1)])
def test_the_lowest_priority_and_latest_gives_way_and_refunds_its_budget(
    policy: str, victim: int, make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4, budget=24, policy=policy)
    for i, priority in ((1, 9), (2, 1), (3, 1)):
        add(scheduler, i, make_request([i] * 8, arrival=float(i), priority=priority))
    plan = scheduler.schedule()
    assert planned(plan) in ({1: 8, 2: 8, 3: 8}, {2: 8, 3: 8, 1: 8})
    commit(scheduler, plan, _1=(5,), _2=(5,), _3=(5,))
    add(scheduler, 4, make_request([4], arrival=4.0))
    plan = scheduler.schedule()  # each wants a third block: one victim gives two
    assert plan.preempted == (victim,)
    assert planned(plan) == {i: 1 for i in (1, 2, 3) if i != victim}
    assert plan.started == (), "a waiting one was let in while a running one was thrown out"
    assert scheduler.num_preempted == 1
    scheduler.check_integrity()


def test_the_budget_of_a_victim_that_was_in_the_plan_goes_to_others(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=16, budget=14, policy="priority")
    add(scheduler, 1, make_request([1] * 12, priority=9))  # admitted first, and of the lowest priority
    commit(scheduler, scheduler.schedule(), _1=(5,))
    add(scheduler, 2, make_request([2] * 13))
    add(scheduler, 3, make_request([3] * 8))
    commit(scheduler, scheduler.schedule(), _1=(5,), _2=(5,))
    for _ in range(2):
        commit(scheduler, scheduler.schedule(), _1=(5,), _2=(5,), _3=(5,))
    plan = scheduler.schedule()
    assert planned(plan) == {1: 1, 2: 1, 3: 1}
    results = tuple(SequenceResult(i, (5,), draft_token_ids=(6,) * n) for i, n in ((1, 4), (2, 1), (3, 12)))
    scheduler.commit(plan, StepResult(plan.step_id, results))
    plan = scheduler.schedule()  # 1 and 2 need a second block, and there is one
    assert (plan.preempted, planned(plan)) == ((1,), {2: 1, 3: 13})
    scheduler.check_integrity()


def test_drafts_preempt_nobody(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler(num_blocks=3, block_size=8)
    for i in (1, 2):
        add(scheduler, i, make_request([i] * 6, arrival=float(i)))
    plan = scheduler.schedule()
    results = tuple(SequenceResult(i, (5,), draft_token_ids=(6, 7, 8, 9)) for i in (1, 2))
    scheduler.commit(plan, StepResult(plan.step_id, results))
    plan = scheduler.schedule()  # one block is left, and the drafts of both reach into a new one
    assert (plan.preempted, [s.draft_token_ids for s in plan.scheduled]) == ((), [(6, 7, 8, 9), ()])
    scheduler.check_integrity()


def test_a_resumed_sequence_comes_back_with_its_output_and_may_hit_its_own_blocks(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    add(scheduler, 1, make_request([1] * 7, arrival=1.0))
    add(scheduler, 2, make_request([2] * 9, arrival=2.0))
    plan = scheduler.schedule()
    assert scheduler.prefix_queries == 16
    commit(scheduler, plan, _1=(5,), _2=(6,))
    commit(scheduler, scheduler.schedule(), _1=(5,), _2=(7,))
    plan = scheduler.schedule()
    assert plan.preempted == (2,)
    updates = commit(scheduler, plan, _1=(5,))
    assert updates[1].num_preemptions == 0
    scheduler.finish(1, FinishReason.ABORT)
    plan = scheduler.schedule()
    (start,) = plan.started
    assert (start.sequence_id, start.output_token_ids) == (2, (6, 7))
    assert plan.scheduled[0].num_computed_tokens in (4, 8)
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (0, 0), "a resumption counts as no new look-up"
    update = commit(scheduler, plan, _2=(8,))[2]
    assert (update.token_ids, update.num_preemptions, update.num_cached_tokens) == ((8,), 1, 0)


@pytest.mark.parametrize(("num_tokens", "cached"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_cached_tokens_of_a_repeated_prompt(
    num_tokens: int, cached: int, make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(block_size=16)
    for repeat, expected in enumerate((0, cached, cached)):
        add(scheduler, repeat, make_request(list(range(num_tokens)), max_tokens=1))
        plan = scheduler.schedule()
        assert planned(plan) == {repeat: num_tokens - expected}
        assert (scheduler.prefix_queries, scheduler.prefix_hits) == (num_tokens, expected)
        update = commit(scheduler, plan, **{f"_{repeat}": (5,)})[repeat]
        assert update.num_cached_tokens == expected
        assert update.finish_reason is FinishReason.LENGTH


def test_prompt_logprobs_do_not_read_the_cache_and_come_once(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(block_size=4)
    for i in (1, 2):
        add(scheduler, i, make_request(list(range(9)), prompt_logprobs=1))
        plan = scheduler.schedule()
        assert planned(plan)[i] == 9
        assert (scheduler.prefix_queries, scheduler.prefix_hits) == (0, 0)
        logprobs = tuple((p, TokenLogprobs(p, -1.0, 1, ())) for p in range(1, 9))
        results = [SequenceResult(s.sequence_id, (5,)) for s in plan.scheduled[:-1]]
        results.append(SequenceResult(i, (5,), prompt_logprobs=logprobs))
        updates = scheduler.commit(plan, StepResult(plan.step_id, tuple(results)))
        assert updates[-1].prompt_logprobs == logprobs


def decode(scheduler: Scheduler, request: Request, *steps: tuple[int, ...]) -> SequenceUpdate:
    """The update of the last of `steps`; each is one step's tokens, all but its last having been drafted."""
    add(scheduler, 1, request)
    update = None
    plan = scheduler.schedule()
    for tokens, following in zip(steps, (*steps[1:], ()), strict=True):
        assert plan.scheduled[0].draft_token_ids == tokens[:-1]
        logprobs = tuple(TokenLogprobs(t, -1.0, 1, ()) for t in tokens)
        result = SequenceResult(1, tokens, logprobs, draft_token_ids=following[:-1])
        (update,) = scheduler.commit(plan, StepResult(plan.step_id, (result,)))
        scheduler.check_integrity()
        plan = scheduler.schedule()
    assert update is not None
    return update


@pytest.mark.parametrize(
    ("fields", "steps", "kept", "reason", "stop_reason"),
    [
        ({"eos": (9,)}, [(1,), (9,)], (9,), "stop", None),
        ({"eos": (9, 8)}, [(1,), (8,)], (8,), "stop", None),
        ({"stop_token_ids": [7]}, [(1,), (7,)], (7,), "stop", 7),
        ({"eos": (9,), "stop_token_ids": [9]}, [(9,)], (9,), "stop", None),
        ({"eos": (9,)}, [(1,), (2, 9, 3, 4)], (2, 9), "stop", None),
        ({"stop_token_ids": [2]}, [(1,), (2, 3)], (2,), "stop", 2),
        ({"max_tokens": 2}, [(1,), (2,)], (2,), "length", None),
        ({"max_tokens": 2, "stop_token_ids": [2]}, [(1,), (2,)], (2,), "stop", 2),
        ({"max_tokens": 1}, [(1,)], (1,), "length", None),
        ({"eos": (9,), "min_tokens": 2}, [(9,), (9,)], (9,), None, None),
        ({"eos": (9,), "min_tokens": 2}, [(9,), (9,), (9,)], (9,), "stop", None),
        ({"eos": (9,), "min_tokens": 2}, [(1,), (2, 9, 4)], (2, 9), "stop", None),
        ({"eos": ()}, [(9,), (9, 9)], (9, 9), None, None),
    ],
)
def test_stop_conditions_are_checked_token_by_token(
    fields: dict,
    steps: list[tuple[int, ...]],
    kept: tuple[int, ...],
    reason: str | None,
    stop_reason: int | None,
    make_scheduler: MakeScheduler,
    make_request: MakeRequest,
) -> None:
    update = decode(make_scheduler(), make_request([1, 2, 3], **fields), *steps)
    assert (update.token_ids, update.finish_reason, update.stop_reason) == (kept, reason, stop_reason)
    assert tuple(logprob.token_id for logprob in update.logprobs) == kept


def test_length_of_the_model_and_of_the_cache(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    for scheduler in (make_scheduler(max_model_len=5), make_scheduler(num_blocks=1, block_size=5)):
        update = decode(scheduler, make_request([1, 2, 3], max_tokens=99), (4,), (5,))
        assert update.finish_reason is FinishReason.LENGTH
        for prompt in ([1] * 5, []):
            with pytest.raises(AssertionError, match="wait for ever"):
                scheduler.add(2, make_request(prompt), 0)
        assert scheduler.num_waiting == 0


@pytest.mark.parametrize(("max_tokens", "max_model_len", "expected"), [(3, 99, 1), (99, 6, 1), (2, 99, 0), (9, 99, 4)])
def test_drafts_never_reach_past_the_end(
    max_tokens: int, max_model_len: int, expected: int, make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(max_model_len=max_model_len)
    add(scheduler, 1, make_request([1, 2, 3], max_tokens=max_tokens))
    plan = scheduler.schedule()
    scheduler.commit(plan, StepResult(plan.step_id, (SequenceResult(1, (5,), draft_token_ids=(6, 7, 8, 9)),)))
    assert len(scheduler.schedule().scheduled[0].draft_token_ids) == expected


def test_drafts_that_do_not_fit_the_budget_are_dropped(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(budget=6)
    for i in (1, 2):
        add(scheduler, i, make_request([i] * 3))
    plan = scheduler.schedule()
    results = tuple(SequenceResult(i, (5,), draft_token_ids=(6, 7, 8)) for i in (1, 2))
    scheduler.commit(plan, StepResult(plan.step_id, results))
    plan = scheduler.schedule()
    assert [s.draft_token_ids for s in plan.scheduled] == [(6, 7, 8), (6,)]


def test_rejected_drafts_are_computed_anew(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, make_request([1] * 3))
    plan = scheduler.schedule()
    scheduler.commit(plan, StepResult(plan.step_id, (SequenceResult(1, (5,), draft_token_ids=(6, 7, 8)),)))
    plan = scheduler.schedule()
    assert commit(scheduler, plan, _1=(6, 9))[1].token_ids == (6, 9)
    assert scheduler.schedule().scheduled[0].num_computed_tokens == 5


@pytest.mark.parametrize("tokens", [(), (5,), (6, 7, 7), (9, 8)])
def test_a_result_that_cannot_be_ends_its_sequence_alone(
    tokens: tuple[int, ...], make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, 1, make_request([1] * 3, arrival=1.0))
    add(scheduler, 2, make_request([2] * 30, arrival=2.0))
    plan = scheduler.schedule()
    scheduler.commit(plan, StepResult(plan.step_id, (SequenceResult(1, (5,), draft_token_ids=(6,)), SequenceResult(2))))
    plan = scheduler.schedule()
    if tokens == (5,):  # tokens of a sequence whose prompt is not computed
        updates = commit(scheduler, plan, _1=(6, 7), _2=tokens)
        assert (updates[2].finish_reason, updates[1].finish_reason) == (FinishReason.ERROR, None)
        assert "incomplete prompt" in (updates[2].error or "")
    else:
        updates = commit(scheduler, plan, _1=tokens)
        assert updates[1].finish_reason is FinishReason.ERROR
        assert "verifier" in (updates[1].error or "")
        assert 2 in planned(scheduler.schedule())


def test_an_abort_at_any_moment_leaves_no_trace(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(1, make_request([1]), 0)  # held
    add(scheduler, 2, make_request([2], arrival=1.0))  # runs
    add(scheduler, 3, make_request([3], arrival=2.0))  # waits
    plan = scheduler.schedule()
    for i in (1, 2, 3):
        update = scheduler.finish(i, FinishReason.ABORT)
        assert update is not None
        assert (update.sequence_id, update.finish_reason) == (i, FinishReason.ABORT)
        assert scheduler.finish(i, FinishReason.ABORT) is None
        scheduler.check_integrity()
    scheduler.mark_ready(1)
    assert commit(scheduler, plan, _2=(5,)) == {}
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    assert scheduler.has_work, "the runner has not been told yet"
    plan = scheduler.schedule()
    assert (sorted(plan.released), plan.scheduled) == ([1, 2, 3], ())
    assert not scheduler.has_work
    assert scheduler.schedule().released == ()


def test_an_aborted_id_can_be_used_again_at_once(make_scheduler: MakeScheduler, make_request: MakeRequest) -> None:
    scheduler = make_scheduler()
    for attempt in range(20):
        add(scheduler, 1, make_request([1, 2], max_tokens=64))
        plan = scheduler.schedule()
        scheduler.finish(1, FinishReason.ABORT)
        add(scheduler, 1, make_request([1, 2], max_tokens=1))
        if attempt % 2:
            assert commit(scheduler, plan, _1=(5,)) == {}, "the old one's result went to the new one"
        else:
            assert scheduler.fail(plan, "device lost") == [], "the new one ended in the old one's place"
        plan = scheduler.schedule()
        assert plan.released == (1,)
        assert commit(scheduler, plan, _1=(6,))[1].finish_reason is FinishReason.LENGTH
    scheduler.check_integrity()


def test_a_failed_sequence_ends_alone_and_a_failed_step_ends_its_own(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for i in (1, 2, 3):
        add(scheduler, i, make_request([i], arrival=float(i)))
    plan = scheduler.schedule()
    results = (SequenceResult(1, error="bad mask"), SequenceResult(2, (5,)))
    first, second = scheduler.commit(plan, StepResult(plan.step_id, results))
    assert (first.finish_reason, first.error, first.token_ids) == (FinishReason.ERROR, "bad mask", ())
    assert (second.finish_reason, second.token_ids) == (None, (5,))
    plan = scheduler.schedule()
    assert planned(plan) == {2: 1, 3: 1}
    scheduler.finish(3, FinishReason.ABORT)
    add(scheduler, 4, make_request([4], arrival=4.0))
    (update,) = scheduler.fail(plan, "device lost")
    assert (update.sequence_id, update.finish_reason, update.error) == (2, FinishReason.ERROR, "device lost")
    scheduler.check_integrity()
    plan = scheduler.schedule()
    assert (sorted(plan.released), planned(plan)) == ([2, 3], {4: 1})


def test_lookahead_slots_are_allocated_within_the_models_length(
    make_scheduler: MakeScheduler, make_request: MakeRequest
) -> None:
    scheduler = make_scheduler(block_size=4, lookahead=3, max_model_len=9)
    add(scheduler, 1, make_request([1] * 6, max_tokens=3))
    plan = scheduler.schedule()
    assert len(plan.scheduled[0].new_block_ids[0]) == 3  # nine tokens
    commit(scheduler, plan, _1=(5,))
    plan = scheduler.schedule()
    assert plan.scheduled[0].new_block_ids == ((),)


def test_the_scheduler_needs_no_torch() -> None:
    code = "import sys, octavo.scheduler, octavo.kv; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
