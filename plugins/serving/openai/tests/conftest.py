"""A server in a thread, with the model that says what its prompt tells it to.

This module is also a plugin: routes, parsers of two little formats, and a grammar backend that forces nothing, for the
model says what the test wants anyway. `<<name|{"json": …}>>` calls a tool; `(so I think)` at the start is reasoning.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from octavo import AsyncLLM
from octavo.errors import InvalidRequestError
from octavo.hookspecs import hookimpl
from octavo.request import Request
from octavo.spec import (
    HTTPAnswer,
    HTTPCall,
    HTTPContent,
    HTTPError,
    HTTPEvents,
    LogitsProcessorEntry,
    MessageDelta,
    ReasoningParserEntry,
    RouteEntry,
    SequenceView,
    ServedModel,
    ToolCallDelta,
    ToolParserEntry,
)
from octavo.testing import echo_model
from octavo.testing.echo_model import echo_config
from octavo_openai.options import ServerOptions
from octavo_openai.serve import listen, serve
from octavo_openai.service import Service

BAD_GRAMMAR = "this cannot be compiled"
ENDING_GRAMMAR = "this cannot be followed"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the sky does.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


class Calls:
    """Parser of `<<name|arguments>>`; all else is content."""

    def __init__(self) -> None:
        self._index, self._held, self._stage = -1, "", "content"

    def push(self, text: str) -> MessageDelta:
        content, calls = "", []
        for character in text:
            self._held += character
            if self._stage == "content" and self._held == "<<":
                self._index, self._held, self._stage = self._index + 1, "", "name"
            elif self._stage == "content" and self._held != "<":
                content, self._held = content + self._held, ""
            elif self._stage == "name" and character == "|":
                calls.append(ToolCallDelta(self._index, self._held[:-1]))
                self._held, self._stage = "", "arguments"
            elif self._stage == "arguments" and self._held == ">>":
                self._held, self._stage = "", "content"
            elif self._stage == "arguments" and self._held != ">":
                calls.append(ToolCallDelta(self._index, None, self._held))
                self._held = ""
        return MessageDelta(content=content, tool_calls=tuple(calls))

    def flush(self) -> MessageDelta:
        held, self._held = self._held, ""
        return MessageDelta(content=held)


class Thoughts:
    """Parser of `(reasoning)content`."""

    def __init__(self) -> None:
        self._stage = "start"

    def push(self, text: str) -> MessageDelta:
        reasoning = content = ""
        for character in text:
            if self._stage == "start":
                self._stage = "reasoning" if character == "(" else "content"
                content += "" if character == "(" else character
            elif self._stage == "reasoning" and character == ")":
                self._stage = "content"
            elif self._stage == "reasoning":
                reasoning += character
            else:
                content += character
        return MessageDelta(content=content, reasoning=reasoning)

    def flush(self) -> MessageDelta:
        return MessageDelta()


class FreeGrammar:
    """A grammar backend that compiles all but one text, if need be slowly, and allows everything.

    Another text fails with the first token.
    """

    def attach(self, sequence: SequenceView) -> bool:
        wanted = sequence.request.sampling_params.structured_outputs
        if wanted is not None and BAD_GRAMMAR in wanted.source:
            time.sleep(1.5 if "slow" in wanted.source else 0)
            raise InvalidRequestError("structured_outputs", "no such grammar")
        return True

    def prepare(self, rows: Any) -> dict[int, str]:
        sequences = [row.sequence for row in rows]
        wanted = {s.sequence_id: s.request.sampling_params.structured_outputs for s in sequences}
        return {i: "structured_outputs: no further" for i, w in wanted.items() if w and ENDING_GRAMMAR in w.source}

    def apply(self, logits: Any, rows: Any) -> None: ...

    def accept(self, sequence: Any, token_ids: Any) -> None: ...

    def release(self, sequence_id: int) -> None: ...


def spell_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    told = "Tools: " + ", ".join(tool["function"]["name"] for tool in tools)
    plain = [{"role": m["role"], "content": m.get("content") or _written(m.get("tool_calls", ()))} for m in messages]
    return [{"role": "system", "content": told}, *plain] if tools else plain


def _written(calls: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"<<{call['function']['name']}|{call['function']['arguments']}>>" for call in calls)


@hookimpl
def octavo_register_tool_parsers() -> list[ToolParserEntry]:
    return [
        ToolParserEntry(name="angles", factory=lambda tools: Calls(), suits=lambda _: True, spell_out=spell_out),
        ToolParserEntry(
            name="mute", factory=lambda tools: Calls(), suits=lambda template: "mute" in template, priority=1
        ),
    ]


@hookimpl
def octavo_register_reasoning_parsers() -> list[ReasoningParserEntry]:
    return [
        ReasoningParserEntry(
            name="brackets", factory=lambda prompt: Thoughts(), suits=lambda template: "mute" not in template
        )
    ]


@hookimpl
def octavo_register_logits_processors() -> list[LogitsProcessorEntry]:
    kinds = frozenset({"json", "json_object", "regex", "choice", "grammar", "structural_tag"})
    return [LogitsProcessorEntry(name="free", factory=lambda context: FreeGrammar(), grammar_kinds=kinds)]


class Shout(msgspec.Struct):
    text: str
    tokens: int = 64


class Shouted(msgspec.Struct):
    text: str


class Shouter:
    """A route's handler: has the model say a text, and shouts it, at once or piece by piece."""

    def __init__(self, model: ServedModel, options: Any, streams: bool = False) -> None:
        assert options is None
        self._model, self._streams = model, streams

    async def __call__(self, call: HTTPCall[Shout]) -> HTTPAnswer:
        if call.body.text == "":
            raise ArithmeticError("nothing to shout")
        prompt = f"<say>{call.body.text}</say>"
        params = self._model.default_sampling_params(max_tokens=call.body.tokens, temperature=0, ignore_eos=True)
        request = await self._model.make_request(call.new_request_id(), prompt, params)
        if self._streams:
            return HTTPEvents(self._shouts(request))
        output = await self._model.complete(request)
        return Shouted(output.outputs[0].text.upper())

    async def _shouts(self, request: Request) -> AsyncGenerator[Shouted, None]:
        async with aclosing(self._model.stream(request)) as outputs:
            async for output in outputs:
                yield Shouted(output.outputs[0].text.upper())


async def find_note(call: HTTPCall[None]) -> HTTPContent:
    if call.path["id"] != "kept":
        raise HTTPError(404, f"there is no note {call.path['id']}", "not_found")
    return HTTPContent(f"a note for {call.headers['X-Reader']}".encode(), "text/plain")


class Misbehaviour(BaseException):
    pass


def misbehave(what: str) -> Any:
    match what:
        case "exit":
            raise SystemExit(3)
        case "base":
            raise Misbehaviour
        case "cancel":
            raise asyncio.CancelledError
        case "status":
            raise HTTPError(204, "all is well")
        case "mapping":
            return {"text": "no record"}
        case "restless":
            return HTTPEvents(shout_on())


async def shout_on() -> AsyncGenerator[Shouted, None]:
    while True:  # and wait for nothing
        yield Shouted("!")


async def misbehave_at_once(call: HTTPCall[None]) -> Any:
    return misbehave(call.path["what"])


async def misbehave_later(call: HTTPCall[None]) -> HTTPEvents:
    async def events() -> AsyncGenerator[Shouted, None]:
        if call.path["shouts"] == "1":
            yield Shouted("!")
        misbehave(call.path["what"])

    return HTTPEvents(events())


@hookimpl
def octavo_register_routes() -> list[RouteEntry]:
    return [
        RouteEntry(method="POST", path="/v1/shout", factory=Shouter, summary="Loud", body=Shout, answer=Shouted),
        RouteEntry(
            method="POST",
            path="/v1/shouts",
            factory=partial(Shouter, streams=True),
            summary="Loud",
            body=Shout,
            answer=Shouted,
            streams=True,
        ),
        RouteEntry(method="GET", path="/notes/{id}", factory=lambda *_: find_note, summary="A note", is_open=True),
        RouteEntry(method="DELETE", path="/notes/{id}", factory=lambda *_: find_note, summary="No note any more"),
        RouteEntry(method="GET", path="/bad/{what}", factory=lambda *_: misbehave_at_once, summary="Bad", streams=True),
        RouteEntry(
            method="GET", path="/bad/{shouts}/{what}", factory=lambda *_: misbehave_later, summary="Bad", streams=True
        ),
    ]


class Server:
    """A server on a free port of this machine. Its engine runs in a thread."""

    def __init__(self, options: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        self.options = ServerOptions(**{"port": 0, "in_process": True, "log_requests": False, **options})
        self.service = Service(self.options)
        self.exit_code: int | None = None
        self._config = echo_config(**engine)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._bound.wait(10)
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with listen(self.options) as listener:
                self.port = listener.getsockname()[1]
                self.url = f"http://127.0.0.1:{self.port}"
                self._bound.set()
                plugins = [echo_model, sys.modules[__name__]]
                work = serve(self.service, self._config, listener, self._stop, plugins)
                self.exit_code = self._loop.run_until_complete(work)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def wait_ready(self) -> Server:
        self.until(lambda: self.client.get("/health").status_code == 200)
        return self

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Look so often that it takes `seconds`, and longer on a busy machine, as all else does there."""
        for _ in range(round(seconds / 0.02)):
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError("it did not come true in time")

    def until_idle(self, seconds: float = 20) -> None:
        """Until no request is left, and none left anything behind."""
        self.until(lambda: self.service.llm.num_unfinished == 0, seconds)

    def post(self, path: str, _headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body, headers=_headers)

    def send(self, path: str, **body: Any) -> socket.socket:
        """The connection of a request whose answer nobody reads; to close it is to leave."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        client = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        client.sendall(f"{head}\r\n\r\n".encode() + data)
        return client

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The data of a stream's events; it must end with [DONE]."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert data.pop() == "[DONE]"
        return [json.loads(item) for item in data]

    def named_events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The data of a stream's events, each of which is named after its type."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = response.read().decode().removesuffix("\n\n").split("\n\n")
        events = []
        for name, data in (line.split("\n") for line in lines):
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    def begin_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        if self._thread.is_alive():
            self.begin_stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server does not end"
        self.client.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that nothing is special about."""
    made = Server({}, {}).wait_ready()
    yield made
    made.until_idle()
    made.close()
    assert made.exit_code == 0


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """`start(option=value, engine={...})`: servers with options of their own."""
    servers: list[Server] = []

    def make(engine: Mapping[str, Any] | None = None, **options: Any) -> Server:
        servers.append(Server(options, engine or {}))
        return servers[-1].wait_ready()

    yield make
    for made in servers:
        made.close()


@pytest.fixture
def broken_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is streamed fails, by a fault that nobody foresaw, in place of its last output, but after its first."""
    stream = AsyncLLM.stream

    async def break_off(self: AsyncLLM, *args: Any, **keywords: Any) -> AsyncGenerator[Any, None]:
        has_begun = False
        async with aclosing(stream(self, *args, **keywords)) as outputs:
            async for output in outputs:
                if output.finished and has_begun:
                    break
                has_begun = True
                completions = tuple(dataclasses.replace(one, finish_reason=None) for one in output.outputs)
                yield dataclasses.replace(output, outputs=completions, finished=False)
        raise ArithmeticError("half way")

    monkeypatch.setattr(AsyncLLM, "stream", break_off)


@pytest.fixture
def weather() -> list[dict[str, Any]]:
    """Two tools."""
    return [WEATHER, CLOCK]
