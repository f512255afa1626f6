"""Laws of HTTP routes: answers are what the entry says, alone or among others; a client that leaves ends its requests.

Owns: `RouteSuite`. Must never know: servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest

from octavo import AsyncLLM
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.spec import HTTPContent, HTTPError, HTTPEvents, RouteHandler
from octavo.testing import echo_model
from octavo.testing.echo_model import echo_config
from octavo.testing.suites.http_call import PlainCall
from octavo.testing.suites.subject import PluginSuite, no_errors_logged

T = TypeVar("T")

_TURNS = (0, 1, 2, 3, 5, 10, 30)
"""Turns of the event loop after which a client leaves, or the engine ends."""


class RouteSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "routes"
    calls: Sequence[PlainCall[Any]] = ()
    refused: Sequence[PlainCall[Any]] = ()

    async def model(self) -> AsyncLLM:
        """The engine whose model is served."""
        return await AsyncLLM.start(echo_config(), [echo_model], in_process=True)

    def join(self, records: Sequence[Any]) -> Any:
        """A stream's records as one value, the same however the stream was cut into events.

        Field by field: texts and lists are put together; of anything else the last value counts.
        """
        joined: dict[str, Any] = {}
        for record in map(msgspec.to_builtins, records):
            for name, value in record.items():
                grows = isinstance(value, str | list) and name in joined
                joined[name] = joined[name] + value if grows else value
        return joined

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        assert self.calls, "set `calls` to some that always have the same answer"
        for name, calls in (("call", self.calls), ("refused_call", self.refused)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, calls, ids=lambda call: repr(call.body)[:32])

    def serve(self, work: Callable[[AsyncLLM, RouteHandler], Awaitable[T]]) -> T:
        """What `work` returns, which is given a new model and a handler for it."""

        async def run() -> T:
            model = await self.model()
            try:
                return await work(model, self.offer.make(model, self.extensions.options_of(self.offer)))
            finally:
                await model.shutdown()

        with no_errors_logged():
            return asyncio.run(run())

    async def _answer(self, handler: RouteHandler, call: PlainCall[Any]) -> Any:
        """A record, an `HTTPContent`, or a stream's records joined."""
        found = await _whole(handler, call)
        return self.join(found) if isinstance(found, list) else found

    # Laws

    def test_a_server_can_describe_it(self) -> None:
        entry = self.offer.entry
        assert entry.summary
        for record in (entry.body, entry.answer):
            assert record is None or msgspec.json.schema(record)

    def test_answers_are_what_the_entry_says(self, call: PlainCall[Any]) -> None:
        entry = self.offer.entry

        if entry.body is not None:
            assert msgspec.json.decode(msgspec.json.encode(call.body), type=entry.body) == call.body
        found = self.serve(lambda model, handler: _whole(handler, call))
        assert found != [], "a stream without an event"
        assert entry.streams or not isinstance(found, list), "it streams: give its RouteEntry streams=True"
        for record in found if isinstance(found, list) else [found]:
            if isinstance(record, HTTPContent):
                assert "/" in record.content_type
                assert isinstance(record.body, bytes)
            else:
                assert isinstance(record, entry.answer or msgspec.Struct)
                assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record

    def test_calls_at_once_are_answered_as_alone(self) -> None:
        async def both(model: AsyncLLM, handler: RouteHandler) -> tuple[list[Any], list[Any]]:
            alone = [await self._answer(handler, call) for call in self.calls]
            together = await asyncio.gather(*(self._answer(handler, call) for call in (*self.calls, *self.calls)))
            return [*alone, *alone], together

        alone, together = self.serve(both)
        assert together == alone

    def test_the_order_of_calls_does_not_matter(self) -> None:
        async def forth_and_back(model: AsyncLLM, handler: RouteHandler) -> tuple[list[Any], list[Any]]:
            forth = [await self._answer(handler, call) for call in self.calls]
            return forth, [await self._answer(handler, call) for call in reversed(self.calls)]

        forth, back = self.serve(forth_and_back)
        assert back[::-1] == forth

    def test_an_engine_that_ends_meanwhile_leaves_no_half_answer(self, call: PlainCall[Any]) -> None:
        async def end(model: AsyncLLM, handler: RouteHandler, turns: int) -> tuple[Any, Any]:
            whole = await self._answer(handler, call)
            task = asyncio.create_task(self._answer(handler, call))
            for _ in range(turns):
                await asyncio.sleep(0)
            await model.shutdown()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            return whole, ended

        for turns in (_TURNS[0], _TURNS[-1]):  # before it can have been answered, and in the midst of it
            whole, ended = self.serve(partial(end, turns=turns))
            assert ended == whole or isinstance(ended, EngineDeadError | HTTPError), f"it answered {ended!r}"

    def test_a_client_that_leaves_leaves_nothing_running(self, call: PlainCall[Any]) -> None:
        async def leave(model: AsyncLLM, handler: RouteHandler) -> tuple[Any, Any]:
            before = await self._answer(handler, call)
            for turns in _TURNS:
                task = asyncio.create_task(self._answer(handler, call))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait((task,))
                assert not model.num_unfinished, f"it left after {turns} turns, and its requests go on"
            return before, await self._answer(handler, call)

        before, after = self.serve(leave)
        assert after == before

    def test_what_is_refused_is_told_why(self, refused_call: PlainCall[Any]) -> None:
        async def ask(model: AsyncLLM, handler: RouteHandler) -> None:
            with pytest.raises((InvalidRequestError, HTTPError)):
                await self._answer(handler, refused_call)
            assert not model.num_unfinished
            await self._answer(handler, self.calls[0])

        self.serve(ask)


async def _whole(handler: RouteHandler, call: PlainCall[Any]) -> Any:
    """A record, an `HTTPContent`, or the list of all records of a stream."""
    found = await handler(call)
    if not isinstance(found, HTTPEvents):
        return found
    async with aclosing(found.records) as records:
        return [record async for record in records]
