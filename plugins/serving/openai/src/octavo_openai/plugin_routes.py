"""Routes that other plugins offer, as routes of this server.

Owns: making their handlers, refusing those in the way of the server's own. Must never know: what they answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from octavo import AsyncLLM
from octavo.errors import PluginError
from octavo.spec import HTTPEvents, RouteEntry, RouteHandler, ServedModel
from octavo_openai.http.answers import EventStream, frame
from octavo_openai.http.api_call import APICall
from octavo_openai.http.route import Answer, Route


def plugin_routes(llm: AsyncLLM, is_taken: Callable[[str, str], bool]) -> list[Route]:
    """Routes of all plugins, with handlers for this model.

    `is_taken(method, path)` says what the server answers itself. Raises `PluginError` for such a route, and for one
    whose handler cannot be made.
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
        routes.append(_route(entry, offer.make(model, extensions.options_of(offer))))
    return routes


def _route(entry: RouteEntry, handler: RouteHandler) -> Route:
    async def answer(api_call: APICall) -> Answer:
        if entry.body is None:
            api_call.service.check_ready()
        else:  # what brings a body is likely to compute, so it waits in the same queue as the server's own requests
            api_call.service.admit()
        found = await handler(api_call)
        return EventStream(_frames(found.records)) if isinstance(found, HTTPEvents) else found

    return Route(
        method=entry.method,
        path=entry.path,
        handler=answer,
        operation_id=re.sub(r"\W+", "_", entry.name).strip("_").lower(),
        summary=entry.summary,
        body=entry.body,
        answer=entry.answer,
        is_open=lambda options: entry.is_open,
    )


async def _frames(records: AsyncGenerator[msgspec.Struct, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(records):
        async for record in records:
            yield frame(record)
