"""What serving costs: the same requests through `LLM.generate`, `AsyncLLM` and over HTTP, on the packaged model.

    python benchmarks/serving.py --repeats 5 --json result.json

`llm` computes in this process. `process` has the core in a child and streams. `http` is `octavo serve`, whose streams
this process reads with as little work as it can. Arms run in turn; each turn has prompts of its own, so that no arm
finds them in its prefix cache. Exit status 1 if any arm's tokens differ.

Owns: the arms and what is compared. Must never know: how the server works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from measuring import counted, median, paired_ratios, print_table, rotated, write_json
from server_process import server_process
from workloads import RandomRequest, w1

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.plugins import resolve_settings

ARMS = ("llm", "process", "http")
_SERVER = ("-m", "octavo", "serve", "--port", "0", "--served-model-name", "octavo")
_FIRST_TOKEN_LENGTH = 8
"""Tokens of the prompts whose first token is timed. Few: the same work differs by some per cent from one engine to the
next, and of a long prompt that is more than what the layers in between take."""


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    seconds_to_first: float


class Arm(Protocol):
    async def run(self, requests: Sequence[RandomRequest]) -> list[Answer]:
        """All requests at once; their answers in order. Greedy, past the end token."""
        ...


def params_of(request: RandomRequest) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=request.num_output_tokens, detokenize=True)


class InProcess:
    """`LLM.generate`, or a stream where there is one request, whose first token is wanted."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    async def run(self, requests: Sequence[RandomRequest]) -> list[Answer]:
        params = [params_of(r) for r in requests]
        if len(requests) == 1:
            started = time.perf_counter()
            seen = [
                Answer(output.outputs[0].token_ids, time.perf_counter() - started)
                for output in self._llm.stream(list(requests[0].prompt_token_ids), params[0])
            ]
            return [Answer(seen[-1].token_ids, seen[0].seconds_to_first)]
        outputs = self._llm.generate([list(r.prompt_token_ids) for r in requests], params, use_tqdm=False)
        return [Answer(o.outputs[0].token_ids, 0.0) for o in outputs]


class OwnProcess:
    """`AsyncLLM`, a stream for each request."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._num_requests = 0

    async def run(self, requests: Sequence[RandomRequest]) -> list[Answer]:
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, wanted: RandomRequest) -> Answer:
        self._num_requests += 1
        started, first = time.perf_counter(), None
        request = await self._llm.make_request(str(self._num_requests), wanted.prompt_token_ids, params_of(wanted))
        token_ids: list[int] = []
        async for output in self._llm.stream(request):
            first = first or time.perf_counter() - started
            token_ids += output.outputs[0].token_ids
        return Answer(tuple(token_ids), first or 0.0)


class OverHTTP:
    """`octavo serve`, a stream of server-sent events for each request."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def run(self, requests: Sequence[RandomRequest]) -> list[Answer]:
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, wanted: RandomRequest) -> Answer:
        body = {
            "model": "octavo",
            "prompt": wanted.prompt_token_ids,
            "max_tokens": wanted.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        started, first, chunks = time.perf_counter(), None, []
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise SystemExit(f"the server answered {response.status}: {await response.text()}")
            async for chunk in response.content.iter_any():
                first = first or time.perf_counter() - started
                chunks.append(chunk)
        events = b"".join(chunks).split(b"\n\n")
        parsed = [json.loads(event[len(b"data: ") :]) for event in events if event.startswith(b"data: {")]
        token_ids = [i for event in parsed for choice in event["choices"] for i in choice.get("token_ids") or ()]
        return Answer(tuple(token_ids), first or 0.0)


@asynccontextmanager
async def open_arms(names: Sequence[str], extra: Sequence[str]) -> AsyncIterator[dict[str, Arm]]:
    """The arms, each with an engine of its own; `extra` are options of `octavo serve`."""
    config = resolve_settings(command_line={}).config
    arms: dict[str, Arm] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            if name == "llm":
                arms[name] = InProcess(stack.enter_context(LLM.from_config(config)))
            elif name == "process":
                llm = await AsyncLLM.start(config)
                stack.push_async_callback(llm.shutdown)
                arms[name] = OwnProcess(llm)
            else:
                _, url = stack.enter_context(server_process([*_SERVER, *extra]))
                connector = aiohttp.TCPConnector(limit=0)
                session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
                arms[name] = OverHTTP(session, url)
        yield arms


async def measure(arms: dict[str, Arm], repeats: int, num_requests: int, num_firsts: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in arms}
    firsts: dict[str, list[float]] = {name: [] for name in arms}
    differing = 0
    for turn in counted(range(repeats + 1), "turns"):  # the first one warms up
        requests = w1(num_requests, 49_000, seed=turn)
        num_tokens = sum(len(r.prompt_token_ids) + r.num_output_tokens for r in requests)
        answers: dict[str, list[Answer]] = {}
        for name in rotated(list(arms), turn):
            started = time.perf_counter()
            answers[name] = await arms[name].run(requests)
            seconds = time.perf_counter() - started
            if turn:
                rates[name].append(num_tokens / seconds)
        tokens = [[a.token_ids for a in found] for found in answers.values()]
        differing += sum(one != tokens[0] for one in tokens[1:])
    for turn in counted(range(num_firsts), "first tokens"):
        ids = w1(1, 49_000, seed=1000 + turn)[0].prompt_token_ids
        request = RandomRequest((ids * 10)[:_FIRST_TOKEN_LENGTH], 2)
        for name in rotated(list(arms), turn):
            (answer,) = await arms[name].run([request])
            firsts[name].append(answer.seconds_to_first)
    return {"tokens_per_second": rates, "seconds_to_first_token": firsts, "differing": differing}


def report(result: dict[str, Any]) -> None:
    rates, firsts = result["tokens_per_second"], result["seconds_to_first_token"]
    base = next(iter(rates))
    rows = []
    for name, values in rates.items():
        ratios = sorted(paired_ratios(values, rates[base]))
        later = median([mine - its for mine, its in zip(firsts[name], firsts[base], strict=True)])
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        rows.append([name, median(values), f"{median(ratios):.3f}", spread, median(firsts[name]) * 1e3, later * 1e3])
    print_table(["arm", "tokens/s", f"of {base}", "lowest to highest", "first token ms", f"later than {base} ms"], rows)
    print(f"runs whose tokens differ: {result['differing']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="what to compare, the first with the others")
    parser.add_argument("--repeats", type=int, default=5, help="measured turns (default: 5)")
    parser.add_argument("--requests", type=int, default=64, help="requests of W1 (default: 64)")
    parser.add_argument("--firsts", type=int, default=200, help="single requests of 8 tokens (default: 200)")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    arguments, extra = parser.parse_known_args()

    async def run() -> dict[str, Any]:
        async with open_arms(arguments.arms.split(","), extra) as arms:
            return await measure(arms, arguments.repeats, arguments.requests, arguments.firsts)

    result = asyncio.run(run())
    report(result)
    write_json(arguments.json, result)
    return 1 if result["differing"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
