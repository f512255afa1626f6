"""An OpenAI-compatible server, asked over HTTP.

Owns: the connection, the reading of answers, the names of failures. Must never know: schedules, statistics.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter

import aiohttp
import msgspec

from octavo.errors import OctavoError, one_line
from octavo_bench.serve.events import DONE, Event, EventParser, decode_chunk, error_message
from octavo_bench.serve.exchange import Exchange, Failure

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_ADVICE = {
    "HTTP 401": "give --api-key KEY",
    "HTTP 403": "give another --api-key KEY",
    "HTTP 503": "try again when the server is ready",
}
_KEEP_ALIVE = 2.0
"""Seconds for which an idle connection is used again; servers close theirs after 5 or more, and a request must not meet
a connection that is being closed."""
_FAILED = ("abort", "error")
"""Reasons to finish that are no answer."""
_DRAIN = 1.0
"""Seconds to wait for the end of an answer after its last event, so that the connection can be used again."""


class _CardMeta(msgspec.Struct, frozen=True):
    n_vocab: int | None = None


class _Card(msgspec.Struct, frozen=True):
    id: str
    meta: _CardMeta | None = None


class _Cards(msgspec.Struct, frozen=True):
    data: list[_Card]


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    vocab_size: int | None = None
    """None if the server does not tell."""


class _Failed(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.failure = Failure(kind, message)


class Client:
    """Use it as an asynchronous context: leaving it closes the connections."""

    def __init__(self, base_url: str, endpoint: str, api_key: str | None, timeout: float) -> None:
        """`timeout`: seconds for a whole request, its connection included."""
        self.base_url = base_url
        self.url = base_url + PATHS[endpoint]
        self._timeout = timeout
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=timeout, connect=None, sock_connect=None),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def choose_model(self, wanted: str | None) -> ServedModel:
        """The model called `wanted`, or the first one that the server lists. Raises `OctavoError`."""
        url = f"{self.base_url}/v1/models"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                await _check_status(response)
                found = msgspec.json.decode(await response.read(), type=_Cards).data
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise OctavoError(
                f"no server answers at {self.base_url} ({one_line(error)}); start one, for example with "
                f"`octavo serve`, or say with --base-url where it is"
            ) from error
        except (aiohttp.ClientError, msgspec.DecodeError, _Failed) as error:
            if wanted is None:
                kind = error.failure.kind if isinstance(error, _Failed) else ""
                advice = _ADVICE.get(kind, "give --model NAME")
                raise OctavoError(f"{url} does not list models ({one_line(error)}); {advice}") from error
            found = []
        if wanted is None and not found:
            raise OctavoError(f"{url} lists no model; give --model NAME")
        card = next((card for card in found if wanted in (None, card.id)), None)
        if card is None:  # adapters and aliases need not be listed
            return ServedModel(wanted or "")
        return ServedModel(card.id, card.meta.n_vocab if card.meta else None)

    async def send(self, exchange: Exchange) -> None:
        """Send it and read the answer to its end. What goes wrong becomes the exchange's `failure`."""
        answered = False
        exchange.sent = perf_counter()
        try:
            async with self._session.post(self.url, data=exchange.body, allow_redirects=False) as response:
                answered = True
                await _check_status(response)
                await self._read(response, exchange)
        except _Failed as failed:
            exchange.failure = failed.failure
        except TimeoutError:
            if exchange.end is None:
                exchange.failure = Failure("timeout", f"no whole answer within {self._timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            if exchange.end is None:
                exchange.failure = Failure("cut stream" if answered else "connection", _described(error))
        if exchange.end is None:
            exchange.end = perf_counter()

    async def _read(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        parser, num_events = EventParser(), 0
        async for data in response.content.iter_any():
            now = perf_counter()
            for event in parser.feed(data):
                num_events += 1
                if event.data == DONE:
                    exchange.end = now
                    break
                _take(event, exchange, now)
            if exchange.end is not None:
                await _drain(response)
                if exchange.finish_reason in _FAILED:
                    raise _Failed(f"finish reason {exchange.finish_reason}", "the server gave the request up")
                return
        what = f"{num_events} events of {response.content_type}"
        raise _Failed("cut stream", f"the answer ended after {what} without data: [DONE]")


def _take(event: Event, exchange: Exchange, now: float) -> None:
    if event.name == b"error":
        raise _Failed("error event", error_message(event.data))
    try:
        chunk = decode_chunk(event.data)
    except msgspec.DecodeError as error:
        shown = event.data[:100].decode(errors="replace")
        raise _Failed("malformed event", f"{error} in {shown!r}") from error
    if chunk.error is not None:
        raise _Failed("error event", error_message(event.data))
    choices = chunk.choices or ()
    if any(choice.has_text for choice in choices):
        exchange.text_times.append(now)
    for choice in choices:
        exchange.finish_reason = choice.finish_reason or exchange.finish_reason
    if (usage := chunk.usage) is not None:  # of the last chunk that has one: some servers count in every chunk
        exchange.num_input_tokens = usage.prompt_tokens
        exchange.num_output_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        exchange.num_cached_tokens = details.cached_tokens if details else None


async def _drain(response: aiohttp.ClientResponse) -> None:
    """To the end of the answer; a server that does not end it loses the connection."""
    try:
        async with asyncio.timeout(_DRAIN):
            await response.read()
    except TimeoutError:
        response.close()


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise _Failed(f"HTTP {response.status}", error_message(await response.read()) or str(response.reason))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
