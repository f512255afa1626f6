"""Routes that other plugins offer, as routes of this server.

Owns: making their handlers, refusing those in the way of the server's own. Must never know: what they answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from octavo import AsyncLLM
from octavo.errors import PluginError, one_line
from octavo.spec import HTTPContent, HTTPEvents, RouteEntry, RouteHandler, ServedModel
from octavo_openai.http.answers import EventStream, frame
from octavo_openai.http.api_call import APICall
from octavo_openai.http.route import Answer, Route


class UndescribedEvent(msgspec.Struct):
    """An event of a route whose plugin does not say what it holds."""


def plugin_routes(llm: AsyncLLM, is_taken: Callable[[str, str], bool]) -> list[Route]:
    """Routes of all plugins, with handlers for this model.

    `is_taken(method, path)` says what the server answers itself. Raises `PluginError` for such a route, and for one
    whose handler cannot be made or whose records cannot be described.
    """
    extensions = llm.extensions
    model: ServedModel = llm
    routes = []
    for offer in extensions.routes.values():
        entry = offer.entry
        if is_taken(entry.method, entry.path):
            raise PluginError(
                f"plugin {offer.origin} offers {entry.name}, which the server answers itself; disable the plugin: "
                f'disable_plugins = ["{offer.origin.plugin}"]'
            )
        try:
            msgspec.json.schema_components([kind for kind in (entry.body, entry.answer) if kind is not None])
        except TypeError as error:
            raise PluginError(
                f"plugin {offer.origin} offers {entry.name}, whose records have no JSON schema: {one_line(error)}"
            ) from error
        handler = offer.make(model, extensions.options_of(offer))
        if not callable(handler):
            raise PluginError(f"plugin {offer.origin} makes {handler!r:.80} for {entry.name}, which cannot be called")
        routes.append(_route(entry, handler))
    return routes


def _route(entry: RouteEntry, handler: RouteHandler) -> Route:
    async def answer(api_call: APICall) -> Answer:
        if entry.body is None:
            api_call.service.check_ready()
        else:  # what brings a body is likely to compute, so it waits in the same queue as the server's own requests
            api_call.service.admit()
        found = await handler(api_call)
        if isinstance(found, HTTPEvents):
            return EventStream(_frames(found.records))
        if not isinstance(found, msgspec.Struct | HTTPContent):
            raise TypeError(f"the handler of {entry.name} returned {found!r:.80}: no record, HTTPContent or HTTPEvents")
        return found

    return Route(
        method=entry.method,
        path=entry.path,
        handler=answer,
        operation_id=re.sub(r"\W+", "_", entry.name).strip("_").lower(),
        summary=entry.summary,
        body=entry.body,
        answer=entry.answer,
        events=(entry.answer or UndescribedEvent,) if entry.streams else (),
        is_open=lambda options: entry.is_open,
    )


async def _frames(records: AsyncGenerator[msgspec.Struct, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(records):
        async for record in records:
            yield frame(record)
            await asyncio.sleep(0)  # nothing else may wait in here: not even that the client leaves would be noticed
