"""One client's connection: uvicorn's protocol, with limits on what a client may leave open.

uvicorn waits for ever for a request that has begun and for a client that does not read. Here either has a deadline, the
head of a request has a longest length, what is no HTTP is answered in the same shape as every other error, and whoever
offers to go on in HTTP/2 (as Java's client does) is answered in HTTP/1.1 instead of losing the body.
Owns: those limits. Must never know: what is asked or answered.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo_openai.errors import APIError
from octavo_openai.http.error_shapes import error_body

MAX_HEAD_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def make_connection_class(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol whose clients have `seconds` to send a whole request, or to read what fills their buffer."""

    class Connection(_Connection):
        deadline = seconds

    return Connection


class _Connection(HttpToolsProtocol):
    deadline: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        """Runs while it is the client's turn to do something."""
        self._in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self._in_head:
            self._wait_for_client()
        self._head_bytes += len(data)
        super().data_received(_without_upgrade(data) if self._in_head else data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(APIError(431, f"the head of a request may have at most {MAX_HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_waiting()
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        self._refuse(APIError(400, msg, code="invalid_http"))

    def _wait_for_client(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.deadline, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.flow.read_paused and not self.flow.write_paused:  # the request before has no answer yet
            self._wait_for_client()
        else:
            self.transport.abort()

    def _refuse(self, error: APIError) -> None:
        """Answer without the application, for there is no request that it could be given."""
        body = msgspec.json.encode(error_body(error))
        head = (
            f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """The head of a request without the wish for another protocol: the parser would take its body for that protocol's.

    Servers may ignore it (RFC 9110, section 7.8).
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
