"""One HTTP request and its answer, on the wire.

Owns: reading a body within limits, sending, ending work that nobody waits for any more. Must never know: routes, JSON's
meaning, the engine.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from octavo_openai.errors import APIError
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import checked_id
from octavo_openai.http.error_shapes import OPENAI_ERRORS, ErrorShape

T = TypeVar("T")

HEADERS_AFTER = 10.0
"""Seconds after which a stream's headers go out though it has nothing to say yet: proxies lose patience."""
CLIENT_LEFT = 499
"""What the log calls the status of an answer that nobody waited for."""

REQUEST_ID_HEADER = "x-request-id"
_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # for nginx
}

_encode = msgspec.json.Encoder().encode


class ClientLeft(Exception):
    """The connection is closed: nobody reads what would be sent."""


class Exchange:
    """Status and headers are sent once, by whoever comes first: an answer, or an error."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.request_id = checked_id(self.headers.get(REQUEST_ID_HEADER)) or secrets.token_hex(16)
        """The client's own, or made here; for headers and logs. Two exchanges may have the same one."""
        self.errors: ErrorShape = OPENAI_ERRORS
        """How errors are written at this path."""
        self.route = "other"
        """Path of the route as the routes have it, so that there are no more of them than routes."""
        self.status: int | None = None
        """None until it is sent."""
        self.extra_headers: dict[str, str] = {}
        self._receive, self._send = receive, send
        self._is_stream = self._is_complete = False
        self._failure: Callable[[APIError], bytes] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._stopped_by: APIError | None = None

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises `APIError` (413) as soon as it is known to be too long, and `ClientLeft`."""
        too_long = APIError(413, f"the body may have at most {limit} bytes", code="body_too_large")
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_long
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body += message.get("body", b"")
            if len(body) > limit:
                raise too_long
            if not message.get("more_body", False):
                return bytes(body)

    async def run(self, work: Coroutine[Any, Any, None], timeout: float | None) -> None:
        """Do `work` while the client waits, and no longer than `timeout` seconds. The body must have been read.

        Raises what `work` raises, `ClientLeft`, or the error that `stop` was called with.
        """
        self._worker = worker = asyncio.create_task(_contained(work))
        watcher = asyncio.create_task(self._until_client_leaves())
        timer = None
        if timeout is not None:
            late = APIError(504, f"the request took longer than {timeout:g} s and was aborted", code="timeout")
            timer = asyncio.get_running_loop().call_later(timeout, self.stop, late)
        try:
            await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
            has_left = not worker.done() and not self._is_complete
            if self._is_complete:
                await asyncio.wait((worker,))
        finally:
            if timer is not None:
                timer.cancel()
            worker.cancel()
            watcher.cancel()
            await asyncio.wait((worker, watcher))
        if has_left:
            if not worker.cancelled() and (error := worker.exception()) is not None:
                raise ClientLeft from error
            raise ClientLeft
        if worker.cancelled():
            raise self._stopped_by or RuntimeError("the handler was cancelled, and not by the server")
        worker.result()

    def stop(self, error: APIError) -> None:
        """End the work that runs; the client is told `error`."""
        if self._worker is not None and not self._worker.done() and self._stopped_by is None:
            self._stopped_by = error
            self._worker.cancel()

    async def send(self, message: Message) -> None:
        """Pass on a message, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {REQUEST_ID_HEADER: self.request_id, **self.extra_headers}
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(own)]}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True

    async def send_content(
        self, status: int, body: bytes, content_type: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        fields = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        await self._start(status, fields)
        await self.send({"type": "http.response.body", "body": body})

    async def send_stream(self, stream: EventStream) -> None:
        """Send events as they come; the status with the first of them, so that until then it may become another."""
        frames, self._failure = stream.frames, stream.failure
        first = asyncio.create_task(_contained(anext(frames)))
        try:
            await asyncio.wait((first,), timeout=HEADERS_AFTER)
            if not first.done():
                await self._start_stream()
            await self._send_frames(await first, frames)
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait((first,))
            if not first.cancelled():
                first.exception()  # asyncio would log it, with the client's text, if nobody were left to hear it
            await frames.aclose()

    async def _send_frames(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        if self.status is None:
            await self._start_stream()
        await self._send({"type": "http.response.body", "body": first, "more_body": True})
        async for frame in rest:
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})

    async def send_error(self, error: APIError) -> None:
        """In place of an answer, as the last event of a stream, or not at all where neither can be."""
        if self.status is None:
            await self.send_content(error.status, _encode(self.errors.body(error)), headers=error.headers)
        elif self._is_stream and not self._is_complete:
            event = (self._failure or self.errors.event)(error)
            await self.send({"type": "http.response.body", "body": event})

    async def _start_stream(self) -> None:
        self._is_stream = True
        await self._start(200, _STREAM_HEADERS)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})

    async def _until_client_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _contained(work: Awaitable[T]) -> T:
    """What `work` returns or raises; `SystemExit`, which would end the server, becomes an error like any other."""
    try:
        return await work
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the handler raised {error!r}") from error


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
