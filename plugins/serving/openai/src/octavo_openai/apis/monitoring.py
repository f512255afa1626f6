"""`GET /metrics` and `GET /status`: the engine for machines and for people who look on.

Owns: where their parts come from. Must never know: the metrics' names, the status's records.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from octavo.spec import HTTPContent
from octavo_openai.errors import APIError
from octavo_openai.http.api_call import APICall
from octavo_openai.observation.metrics import EngineMetrics
from octavo_openai.observation.status import Status, make_status
from octavo_openai.service import still_loading

_PATIENCE = 10.0
"""Seconds that a status waits for the engine, which answers between two steps."""


async def get_metrics(api_call: APICall[None]) -> HTTPContent:
    """Answered while the server drains and after the engine's end, too."""
    return HTTPContent(*_metrics_of(api_call).exposition(api_call.headers.get("accept", "")))


async def get_status(api_call: APICall[None]) -> Status:
    service = api_call.service
    metrics, llm = _metrics_of(api_call), service.llm
    try:
        async with asyncio.timeout(_PATIENCE):
            snapshot = await llm.inspect()
    except TimeoutError:
        raise APIError.unavailable("the engine is in a long step; try again", "busy") from None
    return make_status(
        snapshot,
        metrics.totals(),
        model=service.model_names[0],
        version=version("octavo"),
        uptime=api_call.created - service.created,
        description=llm.description,
        max_num_seqs=llm.config.scheduler.max_num_seqs,
        plugins=llm.extensions.plugins,
        broken=llm.extensions.broken,
    )


def _metrics_of(api_call: APICall[None]) -> EngineMetrics:
    if api_call.service.metrics is None:
        raise still_loading()
    return api_call.service.metrics
