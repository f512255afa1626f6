"""A route as it should be, and ones that are each wrong in one way, under their suite.

They have the model go on with a text, and shout what it says.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import msgspec

from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.hookspecs import hookimpl
from octavo.request import CompletionOutput, RequestOutput
from octavo.spec import HTTPEvents, RouteEntry
from octavo.testing import PlainCall, RouteSuite


class Shout(msgspec.Struct):
    text: str
    streams: bool = False


class Shouted(msgspec.Struct):
    text: str


class Other(msgspec.Struct):
    text: str


class Handler:
    answer = Shouted

    def __init__(self, model, options):
        self.model = model

    async def __call__(self, call):
        text = await self.text_of(call)
        if not text:
            raise InvalidRequestError("text", "is empty")
        params = self.model.default_sampling_params(max_tokens=40)
        request = await self.model.make_request(self.id_of(call), f"<say>{text}</say>", params)
        if call.body.streams:
            return HTTPEvents(self.stream(request))
        return self.answer((await self.complete(request)).outputs[0].text.upper())

    async def stream(self, request):
        async with aclosing(self.model.stream(request)) as outputs:
            async for output in outputs:
                yield self.answer(output.outputs[0].text.upper())

    async def text_of(self, call):
        return call.body.text

    def id_of(self, call):
        return call.new_request_id()

    async def complete(self, request):
        return await self.model.complete(request)


class Undeclared(Handler):
    """Answers with a record that its entry does not name."""

    answer = Other


class Careless(Handler):
    """Takes the client's word for an id that nobody else has."""

    def id_of(self, call):
        return call.request_id


class Orphaning(Handler):
    """Lets the model go on when nobody waits any more."""

    async def complete(self, request):
        return await asyncio.shield(super().complete(request))


class Mixing(Handler):
    """Keeps what a call asks for where the next one puts its own."""

    async def text_of(self, call):
        self.text = call.body.text
        await asyncio.sleep(0)
        return self.text


class Counting(Handler):
    """Says how many it has heard."""

    num_heard = 0

    async def complete(self, request):
        output = await super().complete(request)
        self.num_heard += 1
        (said,) = output.outputs
        return replace(output, outputs=(replace(said, text=f"{said.text} {self.num_heard}"),))


class Brave(Handler):
    """Answers without a model, if need be."""

    async def complete(self, request):
        try:
            return await super().complete(request)
        except EngineDeadError:
            empty = CompletionOutput(index=0, text="", token_ids=())
            return RequestOutput(request_id="", prompt=None, prompt_token_ids=(), outputs=(empty,), finished=True)


class Silent(Handler):
    """Takes what it cannot answer."""

    async def text_of(self, call):
        return call.body.text or "nothing"


def plugin_of(handler, summary="Louder", streams=True):
    entry = RouteEntry(
        method="POST", path="/shout", factory=handler, summary=summary, body=Shout, answer=Shouted, streams=streams
    )

    class Plugin:
        @hookimpl
        def octavo_register_routes(self):
            return [entry]

    return Plugin()


class ShoutSuite(RouteSuite):
    calls = (
        PlainCall(Shout("the inn is in the north, then there, and then in another one again")),
        PlainCall(Shout("an inner thing " * 4)),
        PlainCall(Shout("on and on and on", streams=True)),
    )
    refused = (PlainCall(Shout("")),)


class TestRight(ShoutSuite):
    plugin = plugin_of(Handler)


class TestUndeclared(ShoutSuite):
    plugin = plugin_of(Undeclared)


class TestUnannounced(ShoutSuite):
    plugin = plugin_of(Handler, streams=False)


class TestCareless(ShoutSuite):
    plugin = plugin_of(Careless)


class TestOrphaning(ShoutSuite):
    plugin = plugin_of(Orphaning)


class TestMixing(ShoutSuite):
    plugin = plugin_of(Mixing)


class TestCounting(ShoutSuite):
    plugin = plugin_of(Counting)


class TestBrave(ShoutSuite):
    plugin = plugin_of(Brave)


class TestUndescribed(ShoutSuite):
    plugin = plugin_of(Handler, summary="")


class TestSilent(ShoutSuite):
    plugin = plugin_of(Silent)
