"""One client's connection: uvicorn's protocol, with limits on what a client may leave open.

uvicorn waits for ever for a request that has begun and for a client that does not read. Here either has a deadline, the
head of a request has a longest length, and what is no HTTP is answered in the same shape as every other error. Whoever
sends more before the answer has come gets no second answer, so that it is noticed at once when he leaves.
Owns: those limits, and what uvicorn makes wrong of HTTP. Must never know: what is asked or answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo_openai.errors import APIError
from octavo_openai.http.error_shapes import error_body

MAX_HEAD_BYTES = 64 * 1024


def make_connection_class(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol whose clients have `seconds` to send a whole request, or to read what fills their buffer."""

    class Connection(_Connection):
        deadline = seconds

    return Connection


class _TooEarly(Exception):
    """A request begins before the one before has its answer."""


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
        if self.transport.is_closing():
            return
        if self._is_answering():
            self._close_after_answer()
            return
        if self._timer is None and self._in_head:
            self._wait_for_client()
        self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(APIError(431, f"the head of a request may have at most {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        if self._is_answering():
            raise _TooEarly
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._offers_upgrade():
            return
        self._in_head = False
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _send_without_chunks(self.cycle)

    def on_message_complete(self) -> None:
        if self._offers_upgrade():
            return
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

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("this is no proxy")
                return
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            if self._is_answering():  # what it says is no matter, for it came too early
                self._close_after_answer()
            else:
                self.send_400_response("this is no HTTP")

    def _is_answering(self) -> bool:
        """Whether a whole request has come whose answer has not gone yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _close_after_answer(self) -> None:
        """Whoever sends requests in a row must be ready to send those again that get none (RFC 9112, section 9.3.2).

        To keep them, one would have to stop reading at some length, and then could not see the client leave.
        """
        self.cycle.keep_alive = False

    def _offers_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        """The head that was read, without its offer to go on in another protocol, such as Java's client makes.

        Servers may ignore it (RFC 9110, section 7.8), but the parser takes what follows for that protocol's.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _wait_for_client(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.deadline, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.flow.read_paused and not self.flow.write_paused:  # it is our turn to take what has come
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


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 has no chunks: there, an answer without a length ends with the connection (RFC 9112, section 6.3)."""
    send = cycle.send

    async def send_plainly(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))  # of this piece, of which uvicorn asks no more
        await send(message)

    cycle.send = send_plainly  # type: ignore[method-assign] - uvicorn makes its cycles itself
