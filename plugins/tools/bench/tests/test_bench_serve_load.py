"""The schedule of a load, the order of sending, and the figures that follow, without a server."""

from __future__ import annotations

import asyncio
import math
import statistics
from itertools import pairwise
from time import perf_counter
from xml.etree import ElementTree

import pytest

from octavo_bench.figures import Distribution
from octavo_bench.serve.arrivals import arrival_times
from octavo_bench.serve.exchange import Exchange, Failure
from octavo_bench.serve.load import Load, Offered
from octavo_bench.serve.plot import draw
from octavo_bench.serve.prompts import WORDS, random_prompts
from octavo_bench.serve.results import Results, is_good, results_of, times_of
from octavo_bench.workload import WORKLOADS


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("num_requests", [20, 5000])
def test_gaps_have_the_mean_that_was_asked_for_and_the_shape(num_requests: int, burstiness: float) -> None:
    times = arrival_times(num_requests, 5.0, burstiness, 3)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    if num_requests == 5000:
        assert statistics.pstdev(gaps) / 0.2 == pytest.approx(burstiness**-0.5, rel=0.1)


def test_gaps_of_a_poisson_process_are_exponential() -> None:
    gaps = sorted(after - before for before, after in pairwise(arrival_times(5001, 1.0, 1.0, 0)))
    distance = max(abs((i + 0.5) / 5000 - (1 - math.exp(-gap))) for i, gap in enumerate(gaps))
    assert distance < 1.63 / math.sqrt(5000), "Kolmogorov-Smirnov, 1 %"


def test_schedules_are_the_same_for_the_same_seed() -> None:
    assert arrival_times(9, 5.0, 1.0, 3) == arrival_times(9, 5.0, 1.0, 3) != arrival_times(9, 5.0, 1.0, 4)
    assert arrival_times(3, math.inf, 1.0, 0) == [0, 0, 0]
    assert arrival_times(1, 5.0, 1.0, 0) == [0]
    assert arrival_times(3, 5.0, 1e-9, 0)[-1] == pytest.approx(2 / 5), "gaps too small for a number"


def _exchanges(arrivals: list[float]) -> list[Exchange]:
    return [Exchange(body=b"", max_tokens=1, arrival=arrival) for arrival in arrivals]


class Sender:
    """Holds requests until as many are in flight as ever will be, and ends them in the order of arrival."""

    def __init__(self, cap: int) -> None:
        self.cap, self.waiting = cap, []
        self.sent: list[Exchange] = []
        self.peak = 0

    async def __call__(self, exchange: Exchange) -> None:
        exchange.sent = perf_counter()
        self.sent.append(exchange)
        self.waiting.append(exchange)
        self.peak = max(self.peak, len(self.waiting))
        for _ in range(20):  # so many turns of the loop in which others may come
            await asyncio.sleep(0)
        self.waiting.remove(exchange)
        exchange.end = perf_counter()


@pytest.mark.parametrize(("cap", "peak"), [(1, 1), (7, 7), (40, 30), (None, 30)])
def test_as_many_in_flight_as_may_be_and_no_more(cap: int | None, peak: int) -> None:
    exchanges, sender = _exchanges([0.0] * 30), Sender(peak)
    offered = asyncio.run(Load(exchanges, sender, cap).run())
    assert offered.peak_concurrency == sender.peak == peak
    assert sender.sent == exchanges, "in the order of the schedule"
    for e in exchanges:
        assert offered.start <= e.due <= e.sent <= e.end
    ends = sorted(e.end for e in exchanges)
    if cap is not None and cap < 30:  # those that must wait are due when the first of those before has ended
        for e, before in zip(exchanges[peak:], ends, strict=False):
            assert e.due >= before


def test_an_interruption_keeps_what_has_been_done() -> None:
    exchanges = _exchanges([0.0] * 6)

    async def send(exchange: Exchange) -> None:
        exchange.sent = perf_counter()
        if exchange is exchanges[3]:
            task.cancel()
        if exchanges.index(exchange) >= 2:
            await asyncio.Event().wait()
        exchange.end = perf_counter()

    async def run() -> Offered:
        nonlocal task
        task = asyncio.ensure_future(Load(exchanges, send, 2).run())
        return await task

    task: asyncio.Task[Offered]
    offered = asyncio.run(run())
    assert offered.interrupted
    results = results_of(offered, (50,), {})
    assert (results.num_completed, results.num_unfinished, results.num_unsent) == (2, 2, 2)


def test_a_fault_of_the_tool_itself_is_not_taken_for_a_failure_of_the_server() -> None:
    async def send(exchange: Exchange) -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(Load(_exchanges([0.0, 0.0]), send).run())
    assert caught.group_contains(ZeroDivisionError)


def _exchange(sent: float, *text_times: float, tokens: int | None = None, **more) -> Exchange:
    """One whose answer ended with its last text, 3 tokens in."""
    given = {"due": sent, "end": text_times[-1] if text_times else sent, "num_input_tokens": tokens and 3, **more}
    return Exchange(body=b"", max_tokens=9, sent=sent, text_times=list(text_times), num_output_tokens=tokens, **given)


def _offered(*exchanges: Exchange, **more) -> Offered:
    made = {"start": 100.0, "seconds": 10.0, "peak_concurrency": 2, "interrupted": False, "cpu_seconds": 1.0}
    return Offered(exchanges=exchanges, **{**made, "loop_delays": (0.001,) * 100, **more})


def _results(*exchanges: Exchange, goals: dict[str, float] | None = None, **more) -> Results:
    return results_of(_offered(*exchanges, **more), (50, 90), goals or {})


def test_figures_by_hand() -> None:
    one = _exchange(100, 101, 102, 104, tokens=4)  # ttft 1, e2e 4, tpot 1, itl 1 and 2
    two = _exchange(101, 104, tokens=1, due=100.5)  # ttft 3 = e2e, no tpot
    bad = _exchange(102, 103, tokens=9, failure=Failure("timeout", "late"))
    results = _results(one, two, bad)
    assert results.times["ttft"] == Distribution(2, 1, 3, {50: 2, 90: 3})
    assert results.times["e2e"] == Distribution(3.5, 3, 4, {50: 3.5, 90: 4})
    assert results.times["tpot"] == Distribution(1, 1, 1, {50: 1, 90: 1})
    assert results.times["itl"] == Distribution(1.5, 1, 2, {50: 1.5, 90: 2})
    assert (results.num_input_tokens, results.num_output_tokens, results.num_completed) == (6, 5, 2)
    assert results.rate(results.num_output_tokens) == 0.5
    assert results.tokens_per_chunk == 5 / 4
    assert (results.failures, results.examples) == ({"timeout": 1}, {"timeout": "late"})
    assert results.client.sent_late == Distribution(pytest.approx(1 / 6), 0, 0.5, {50: 0, 90: 0.5})
    assert results.client.cpu_share == 0.1
    assert not results.client.saturated


def test_goals() -> None:
    exchange = _exchange(0, 1, 2, 4, tokens=4)
    assert is_good(exchange, {})
    assert is_good(exchange, {"ttft": 1, "tpot": 1, "e2el": 4})
    for goal in ({"ttft": 0.9}, {"tpot": 0.9}, {"e2el": 3.9}, {"ttft": 9, "tpot": 0.9}):
        assert not is_good(exchange, goal)
    assert is_good(_exchange(0, 1, tokens=1), {"tpot": 0.1}), "one token has no time per token"
    assert not is_good(_exchange(0, 1), {"tpot": 9}), "nobody knows"
    assert not is_good(_exchange(0, tokens=3), {"ttft": 9}), "no text ever came"
    late = _exchange(0, 9, tokens=3)
    assert _results(exchange, late, goals={"ttft": 2}).num_good == 1
    assert _results(exchange, late).num_good is None


def test_nothing_at_all_has_no_figures() -> None:
    results = _results(Exchange(body=b"", max_tokens=1), loop_delays=(), seconds=0.0, cpu_seconds=0.0)
    assert set(results.times.values()) == {None}
    assert (results.num_unsent, results.num_output_tokens, results.num_cached_tokens) == (1, None, None)
    assert results.rate(3) is None


@pytest.mark.parametrize("exchanges", [(), (_exchange(100, 100),), (_exchange(100), _exchange(101, 102, 102))])
def test_a_plot_of_little_is_a_plot(exchanges: tuple[Exchange, ...]) -> None:
    unsent = Exchange(body=b"", max_tokens=1)
    for seconds in (0.0, 1.0):
        picture = ElementTree.fromstring(draw(["a <b>"], _offered(*exchanges, unsent, seconds=seconds)))
        texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
        assert "a <b>" in texts
        assert f"{len(exchanges)} requests over time, s" in texts


@pytest.mark.parametrize(
    ("more", "saturated"),
    [
        ({"cpu_seconds": 9.5}, True),
        ({"loop_delays": (0.001,) * 97 + (0.11,) * 3}, True),
        ({"loop_delays": (0.001,) * 100 + (0.11,)}, False),
        ({"loop_delays": (0.09,) * 100}, False),  # less than a tenth of a second, the median time to first text
    ],
)
def test_a_client_that_does_not_keep_up_is_told(more: dict, saturated: bool) -> None:
    assert _results(_exchange(100, 101, tokens=4), **more).client.saturated is saturated


def test_times_of_requests_that_failed_do_not_count() -> None:
    done, failed = _exchange(0, 1, 3), _exchange(0, 2, failure=Failure("timeout", ""))
    assert times_of([done, failed], "ttft") == [1]
    assert times_of([done, failed], "itl") == [2]


def test_text_has_a_word_for_each_id() -> None:
    assert len(set(WORDS)) == len(WORDS) > 100
    made = {"vocab_size": None, "seed": 0}
    texts = random_prompts(WORKLOADS["w3"], 3, as_text=True, **made)
    ids = random_prompts(WORKLOADS["w3"], 3, as_text=False, **made)
    assert [len(prompt.content.split()) for prompt in texts] == [len(prompt.content) for prompt in ids] == [1056] * 3
    assert len({prompt.content for prompt in texts}) == 3
    assert len({tuple(prompt.content.split()[:1024]) for prompt in texts}) == 1
    assert [p.num_output_tokens for p in texts] == [p.num_output_tokens for p in ids]
