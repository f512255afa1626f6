"""How many tokens the log says an API call took: those computed, whether or not anybody got them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from octavo import SamplingParams
from octavo.request import CompletionOutput, FinishReason, Request, RequestOutput
from octavo.spec import Observer
from octavo_openai.observation.token_count import TokenCounts

STORY = "<say>" + "a long story " * 50 + "</say>"
USER = [{"role": "user", "content": STORY}]
LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": STORY, "max_tokens": 3000}),
    "completions": ("/v1/completions", {"prompt": [STORY] * 2, "n": 2, "max_tokens": 3000}),
    "chat": ("/v1/chat/completions", {"messages": USER, "n": 2}),
}


class FinishedTokens(Observer):
    """Counts the tokens of requests that have ended, as the engine tells of them."""

    num_tokens = 0

    def on_finished(self, output: RequestOutput) -> None:
        self.num_tokens += sum(len(completion.token_ids) for completion in output.outputs)


def lines_of(caplog, path: str) -> list[dict[str, Any]]:
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    return [line for line in fields if line.get("path") == path]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_a_client_that_leaves(server, caplog, name: str, stream: bool) -> None:
    path, body = LONG[name]
    finished, before = FinishedTokens(), server.service.metrics.totals().generation_tokens
    server.service.llm.observe(finished)
    with caplog.at_level("INFO", "octavo_openai"):
        with server.send(path, **body, ignore_eos=True, stream=stream):
            server.until(lambda: server.service.metrics.totals().generation_tokens > before + 50)
        server.until(lambda: bool(lines_of(caplog, path)))
    [line] = lines_of(caplog, path)
    assert (line["status"], line["completion_tokens"]) == (499, finished.num_tokens)
    assert line["completion_tokens"] > 40


def test_a_request_that_takes_too_long(start, caplog) -> None:
    server = start(request_timeout=0.5, log_requests=True)
    finished = FinishedTokens()
    server.service.llm.observe(finished)
    path, body = LONG["completions"]
    statuses: list[int] = []
    with caplog.at_level("INFO", "octavo_openai"):
        while not finished.num_tokens:  # a busy machine may not come to the first token in time
            statuses.append(server.post(path, **body, ignore_eos=True).status_code)
            assert statuses[-1] == 504
            server.until(lambda: len(lines_of(caplog, path)) == len(statuses))
    assert [line["status"] for line in lines_of(caplog, path)] == statuses
    assert sum(line["completion_tokens"] for line in lines_of(caplog, path)) == finished.num_tokens


def request_of(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(5, 6),
        sampling_params=SamplingParams(),
        seed=0,
        eos_token_ids=frozenset(),
        max_tokens=9,
        arrival_time=0.0,
    )


def output_of(request_id: str, *reasons: FinishReason | None, num_tokens: int) -> RequestOutput:
    """One with `num_tokens` tokens in each completion."""
    ids = (7,) * num_tokens
    completions = [CompletionOutput(index=i, text="", token_ids=ids, finish_reason=r) for i, r in enumerate(reasons)]
    return RequestOutput(
        request_id=request_id, prompt=None, prompt_token_ids=(5, 6), outputs=tuple(completions), finished=True
    )


@pytest.mark.parametrize(
    ("reasons", "num_tokens"),
    [
        ([FinishReason.ABORT], 12),
        ([FinishReason.ERROR], 12),
        ([FinishReason.LENGTH, FinishReason.ABORT], 19),
        ([FinishReason.STOP, FinishReason.LENGTH], 8),  # its outputs are still to come, and count then
    ],
)
def test_a_request_that_ends_early_counts_all_its_tokens(reasons: list[FinishReason], num_tokens: int) -> None:
    counts = TokenCounts()
    count = counts.begin([request_of("a"), request_of("b")])
    count.add_output(output_of("a", None, num_tokens=2))
    count.add_output(output_of("a", None, num_tokens=1))
    count.add_output(output_of("b", FinishReason.STOP, num_tokens=5))
    assert (count.prompt, count.completion) == (4, 8)
    counts.on_finished(output_of("a", *reasons, num_tokens=7))
    counts.on_finished(output_of("stranger", FinishReason.ABORT, num_tokens=99))
    assert count.completion == num_tokens


def test_requests_that_never_run_leave_nothing_behind() -> None:
    counts = TokenCounts()
    count = weakref.ref(counts.begin([request_of("a")]))
    gc.collect()
    assert count() is None
