"""Reports of throughput: what they say, that they come while there are steps, and that an idle engine has no timer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from octavo import SamplingParams
from octavo.request import Request, RequestOutput
from octavo.step import ScheduledSequence, StepStats
from octavo_openai.observation.metrics import EngineMetrics
from octavo_openai.observation.throughput import Throughput, ThroughputReporter

IDLE = StepStats(
    step_id=0,
    duration=0.0,
    num_scheduled_tokens=0,
    num_generated_tokens=0,
    num_running=0,
    num_waiting=0,
    num_preempted=0,
    num_draft_tokens=0,
    num_accepted_tokens=0,
    num_used_blocks=0,
    num_blocks=10,
    prefix_queries=0,
    prefix_hits=0,
)
REQUEST = Request(
    request_id="a",
    prompt_token_ids=(5, 6),
    sampling_params=SamplingParams(),
    seed=0,
    eos_token_ids=frozenset(),
    max_tokens=9,
    arrival_time=0.0,
)
OUTPUT = RequestOutput(request_id="a", prompt=None, prompt_token_ids=(5, 6), outputs=(), finished=True)


class Subject:
    """A reporter with a clock and timers of its own, and its reports."""

    def __init__(self, interval: float = 10.0) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.reports: list[Throughput] = []
        self.metrics = EngineMetrics("m")
        self.reporter = ThroughputReporter(
            self.metrics, interval, self.reports.append, self.call_later, lambda: self.now
        )

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + delay, call))

    def request(self) -> None:
        for observer in (self.metrics, self.reporter):
            observer.on_request(REQUEST)

    def finish(self) -> None:
        self.reporter.on_finished(OUTPUT)

    def step(self, **changes: Any) -> None:
        for observer in (self.metrics, self.reporter):
            observer.on_step(dataclasses.replace(IDLE, **changes))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [call for moment, call in self.timers if moment <= self.now]
        self.timers = [(moment, call) for moment, call in self.timers if moment > self.now]
        for call in due:
            call()


def test_reports_come_while_there_are_steps_and_once_after_the_last() -> None:
    subject = Subject()
    subject.wait(500)
    subject.request()
    assert not subject.timers
    for _ in range(25):
        subject.wait(1)
        subject.step(num_running=2, num_waiting=1, num_generated_tokens=30)
        assert len(subject.timers) == 1
    assert [r.generation_tokens_per_second for r in subject.reports] == [30, 30]
    assert [(r.num_running, r.num_waiting) for r in subject.reports] == [(2, 1), (2, 1)]
    subject.wait(1)
    subject.step(num_generated_tokens=4)
    subject.wait(10)
    [*_, last] = subject.reports
    assert len(subject.reports) == 3
    assert last.generation_tokens_per_second == round((5 * 30 + 4) / 6, 1), "until the last step, not until now"
    assert (last.num_running, last.num_waiting) == (0, 0)
    assert not subject.timers
    subject.wait(1000)
    assert len(subject.reports) == 3


def test_what_a_report_says() -> None:
    subject = Subject()
    subject.request()
    subject.wait(2)
    prompt, decode = ScheduledSequence(1, 4, 60, (), ()), ScheduledSequence(2, 50, 4, (7, 8, 9), ())
    subject.step(
        scheduled=(prompt, decode),
        num_scheduled_tokens=64,
        num_generated_tokens=3,
        num_running=2,
        num_waiting=5,
        num_used_blocks=4,
        num_draft_tokens=3,
        num_accepted_tokens=1,
        prefix_queries=64,
        prefix_hits=4,
    )
    subject.wait(10)
    subject.step(num_running=1, num_used_blocks=1)
    subject.wait(10)
    everything, nothing = subject.reports
    assert everything == Throughput(
        prompt_tokens_per_second=30,
        generation_tokens_per_second=1.5,
        num_running=2,
        num_waiting=5,
        kv_cache_usage_percent=40,
        prefix_cache_hit_percent=6.2,
        draft_acceptance_percent=33.3,
    )
    assert nothing == Throughput(
        prompt_tokens_per_second=0,
        generation_tokens_per_second=0,
        num_running=1,
        num_waiting=0,
        kv_cache_usage_percent=10,
        prefix_cache_hit_percent=None,
        draft_acceptance_percent=None,
    )


def test_time_without_requests_does_not_count() -> None:
    subject = Subject()
    for _ in range(2):
        subject.wait(300)
        subject.request()
        subject.wait(2)
        subject.request()  # one more while the first waits for its step
        subject.step(num_running=2, num_generated_tokens=10)
        subject.wait(2)
        subject.step(num_generated_tokens=10)
        subject.finish()
        subject.finish()
        subject.wait(10)
        subject.request()  # ends without a step: its grammar cannot be compiled, say
        subject.finish()
    assert [r.generation_tokens_per_second for r in subject.reports] == [5, 5]


def test_requests_one_after_the_other_share_a_report() -> None:
    subject = Subject()
    for _ in range(8):
        subject.request()
        subject.wait(0.5)
        subject.step(num_generated_tokens=1)
        subject.finish()
        subject.wait(0.5)
    subject.wait(10)
    assert [r.generation_tokens_per_second for r in subject.reports] == [round(8 / 7.5, 1)]


def test_the_shutdown_reports_what_is_left_and_nothing_comes_later() -> None:
    subject = Subject()
    subject.reporter.shutdown()
    assert not subject.reports
    subject.request()
    subject.wait(1)
    subject.step(num_generated_tokens=7)
    subject.reporter.shutdown()
    subject.wait(100)
    assert [r.generation_tokens_per_second for r in subject.reports] == [7]
