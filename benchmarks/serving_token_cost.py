"""What a streamed token costs the process that speaks HTTP, beside frameworks with no API around them.

    python benchmarks/serving_token_cost.py --streams 32 --tokens 800 --repeats 7

A scripted model answers, in a process of its own, so that nearly all CPU time of the server's process goes into
tokens. `completions` and `chat` are `octavo serve`'s. The others stream the same outputs of `AsyncLLM` as records of
the same size: `starlette` (msgspec), `fastapi` (msgspec), `fastapi-pydantic`; `none` reads the outputs and answers how
many there were. Those of FastAPI are left out where it is not installed.

Owns: these servers, and the CPU time of each. Must never know: how `octavo serve` works.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import itertools
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import uvicorn
import uvloop
from measuring import counted, median, paired_ratios, print_table, rotated, write_json
from server_process import server_process
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo import AsyncLLM, SamplingParams
from octavo.testing import echo_model

KINDS = ("completions", "chat", "starlette", "fastapi", "fastapi-pydantic", "none")
_OWN_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_ECHO_SERVER = Path(__file__).with_name("echo_server.py")
_ID = "cmpl-0123456789abcdef0123456789abcdef"
_SCRIPT = "<say>on and on </say>"


class Body(msgspec.Struct):
    prompt: str
    max_tokens: int


class Choice(msgspec.Struct):
    text: str
    finish_reason: str | None
    index: int = 0
    logprobs: None = None
    stop_reason: None = None


class Chunk(msgspec.Struct):
    """What a chunk of `/v1/completions` holds."""

    id: str
    created: int
    choices: list[Choice]
    model: str = "octavo-echo"
    object: str = "text_completion"


class Outputs:
    """What the engine makes of a request, as pairs of text and finish reason."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._numbers = itertools.count()

    async def stream(self, prompt: str, max_tokens: int) -> AsyncGenerator[tuple[str, str | None], None]:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
        request = await self._llm.make_request(str(next(self._numbers)), prompt, params)
        async for output in self._llm.stream(request):
            yield output.outputs[0].text, output.outputs[0].finish_reason


Handler = Callable[[Request], Awaitable[Response]]


def bare_handler(outputs: Outputs) -> Handler:
    encode = msgspec.json.Encoder().encode

    async def frames(body: Body) -> AsyncIterator[bytes]:
        created = int(time.time())
        async for text, reason in outputs.stream(body.prompt, body.max_tokens):
            yield b"data: " + encode(Chunk(_ID, created, [Choice(text, reason)])) + b"\n\n"

    async def handler(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=Body)
        return StreamingResponse(frames(body), media_type="text/event-stream")

    return handler


def counting_handler(outputs: Outputs) -> Handler:
    async def handler(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=Body)
        return JSONResponse(sum([1 async for _ in outputs.stream(body.prompt, body.max_tokens)]))

    return handler


def starlette_app(handler: Handler) -> Any:
    return Starlette(routes=[Route("/", handler, methods=["POST"])])


def fastapi_app(outputs: Outputs) -> Any:
    from fastapi import FastAPI

    app, handler = FastAPI(), bare_handler(outputs)

    @app.post("/")
    async def answer(request: Request) -> Any:
        return await handler(request)

    return app


def pydantic_app(outputs: Outputs) -> Any:
    from fastapi import FastAPI
    from pydantic import create_model

    app = FastAPI()
    body_model = create_model("Body", prompt=(str, ...), max_tokens=(int, ...))
    choice_model = create_model(
        "Choice", text=str, finish_reason=(str | None), index=(int, 0), logprobs=(None, None), stop_reason=(None, None)
    )
    chunk_model: Any = create_model(
        "Chunk",
        id=str,
        created=int,
        choices=list[choice_model],
        model=(str, "octavo-echo"),
        object=(str, "text_completion"),
    )

    async def frames(body: Any) -> AsyncIterator[str]:
        created = int(time.time())
        async for text, reason in outputs.stream(body.prompt, body.max_tokens):
            choice = choice_model(text=text, finish_reason=reason)
            yield f"data: {chunk_model(id=_ID, created=created, choices=[choice]).model_dump_json()}\n\n"

    async def answer(body: Any) -> Any:
        return StreamingResponse(frames(body), media_type="text/event-stream")

    answer.__annotations__["body"] = body_model
    app.post("/")(answer)
    return app


APPS: Mapping[str, Callable[[Outputs], Any]] = {
    "starlette": lambda outputs: starlette_app(bare_handler(outputs)),
    "fastapi": fastapi_app,
    "fastapi-pydantic": pydantic_app,
    "none": lambda outputs: starlette_app(counting_handler(outputs)),
}


async def serve(kind: str) -> None:
    """One of `APPS`, until the process is ended; the engine's ends with it."""
    llm = await AsyncLLM.start(echo_model.echo_config(max_num_seqs=128, num_blocks=8192), [echo_model])
    gc.collect()
    gc.freeze()  # as `octavo serve` does
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(APPS[kind](Outputs(llm)), lifespan="off", log_level="warning", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listener])


def command_of(kind: str) -> list[str]:
    if kind in _OWN_PATHS:
        return [str(_ECHO_SERVER), "--port", "0", "--no-log-requests", "--log-stats-interval", "none"]
    return [__file__, "--serve", kind]


class Server:
    """A process that serves one kind."""

    def __init__(self, kind: str, pid: int, address: str) -> None:
        self._kind, self._process = kind, psutil.Process(pid)
        self._url = address + _OWN_PATHS.get(kind, "/")

    async def cost(self, session: aiohttp.ClientSession, num_streams: int, num_tokens: int) -> float:
        """Seconds of CPU time for each token of so many streams at once."""
        body: dict[str, Any] = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        if self._kind == "chat":
            body["messages"] = [{"role": "user", "content": _SCRIPT}]
        else:
            body["prompt"] = _SCRIPT
        before = self._cpu_seconds()
        await asyncio.gather(*(self._read(session, body) for _ in range(num_streams)))
        return (self._cpu_seconds() - before) / (num_streams * num_tokens)

    async def _read(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        async with session.post(self._url, json=body) as response:
            answer = await response.read()
            if response.status != 200 or b'"error"' in answer:
                raise SystemExit(f"{self._kind} answered {response.status}: {answer[:500]!r}")

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


async def measure(kinds: list[str], num_streams: int, num_tokens: int, repeats: int) -> dict[str, list[float]]:
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        servers = {kind: Server(kind, *stack.enter_context(server_process(command_of(kind)))) for kind in kinds}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for turn in counted(range(repeats + 1), "turns"):  # the first one warms up
                for kind in rotated(kinds, turn):
                    found = await servers[kind].cost(session, num_streams, num_tokens)
                    if turn:
                        costs[kind].append(found)
    return costs


def installed_kinds() -> list[str]:
    has_fastapi = importlib.util.find_spec("fastapi") is not None
    return [kind for kind in KINDS if has_fastapi or not kind.startswith("fastapi")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", help="what to measure; the others are compared with the first")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=800, help="of each stream; CPU time is counted in ticks of 10 ms")
    parser.add_argument("--repeats", type=int, default=7, help="measured turns")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--serve", choices=APPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(arguments.serve))
        return 0
    kinds = arguments.kinds.split(",") if arguments.kinds else installed_kinds()
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"unknown kinds: {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    costs = asyncio.run(measure(kinds, arguments.streams, arguments.tokens, arguments.repeats))
    base = costs[kinds[0]]
    rows = []
    for kind, values in costs.items():
        rows.append([kind, median(values) * 1e6, median(paired_ratios(values, base))])
    print_table(["", "µs a token", f"of {kinds[0]}"], rows)
    write_json(arguments.json, {"seconds_per_token": costs})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
