"""A server that speaks the protocol and misbehaves on demand; it runs in a thread of the tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

Behaviour = Callable[["FakeServer", web.Request, dict[str, Any]], Any]


class FakeServer:
    """Answers with `max_tokens` tokens, `tokens_per_chunk` in each chunk, and a usage of its own counting.

    `behaviours` says for the n-th completion request (from 0) what else to do: a method's name, or nothing.
    """

    def __init__(self) -> None:
        self.url = ""
        self.models: Any = {"object": "list", "data": [{"id": "fake"}, {"id": "other"}]}
        self.tokens_per_chunk = 1
        self.behaviours: Callable[[int], str] = lambda index: "answer"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.in_flight = self.peak = self.num_silent = 0
        self.silent = threading.Event()
        """Set once `wanted_silent` requests wait in vain."""
        self.wanted_silent = 1
        self.wanted_together = 1
        self._are_together = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _list_models(self, request: web.Request) -> web.Response:
        if isinstance(self.models, int):
            return web.json_response({"error": {"message": "no models for you"}}, status=self.models)
        return web.json_response(self.models)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        index = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.paths.append(request.path)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            return await getattr(self, self.behaviours(index))(request, body)
        finally:
            self.in_flight -= 1

    async def answer(
        self, request: web.Request, body: dict[str, Any], *, usage: str = "last", text: str = "x y, z"
    ) -> web.StreamResponse:
        response = await self._open(request)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        told = {
            "prompt_tokens": len(prompt.split()) if isinstance(prompt, str) else len(prompt),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        if body.get("messages"):
            await self._send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for start in range(0, body["max_tokens"], self.tokens_per_chunk):
            last = start + self.tokens_per_chunk >= body["max_tokens"]
            choice = {"index": 0, "finish_reason": "length" if last else None}
            choice |= {"delta": {"content": text}} if body.get("messages") else {"text": text}
            await self._send(response, {"choices": [choice], "usage": told if usage == "with text" else None})
        if usage == "last":
            await self._send(response, {"choices": [], "usage": told})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def no_usage(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await self.answer(request, body, usage="none")

    async def usage_with_text(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await self.answer(request, body, usage="with text")

    async def no_text(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await self.answer(request, body, text="")

    async def linger(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.01)  # so that requests which may be in flight together are
        return await self.answer(request, body)

    async def together(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answers once `wanted_together` requests are in flight."""
        if self.in_flight == self.wanted_together:
            self._are_together.set()
        await self._are_together.wait()
        return await self.answer(request, body)

    async def never(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await self._send(response, {"choices": [{"index": 0, "text": "wait for it"}]})
        return await self.nothing(request, body)

    async def nothing(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.num_silent += 1
        if self.num_silent == self.wanted_silent:
            self.silent.set()
        await self._stop.wait()
        raise ConnectionAbortedError

    async def http_503(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too many\nrequests", "type": "overloaded"}}, status=503)

    async def hang_up(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        raise ConnectionAbortedError

    async def error_event(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await self._send(response, {"choices": [{"index": 0, "text": "so far"}]})
        await self._send(response, {"error": {"message": "the engine died", "code": 500}})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def error_line(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await response.write(b'error: {"code":500,"message":"out of slots"}\n\n')
        return response

    async def ends_early(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await self._send(response, {"choices": [{"index": 0, "text": "so far"}]})
        return response

    async def cut(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await response.write(b'data: {"choices": [{"te')
        assert request.transport is not None
        request.transport.close()
        return response

    async def garbage(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await response.write(b"data: {oops}\n\n")
        return response

    async def aborted(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._open(request)
        await self._send(response, {"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _open(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    server.start()
    yield server
    server.stop()
