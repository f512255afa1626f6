"""Runs the requests that a client's request consists of.

Owns: one stream of outputs out of several, errors of completions. Must never know: text, messages, HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo import AsyncLLM
from octavo.errors import InvalidRequestError
from octavo.request import Request, RequestOutput
from octavo_openai.errors import APIError

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]
"""Outputs with the index of their request."""


def generate(llm: AsyncLLM, requests: Sequence[Request], incremental: bool) -> Outputs:
    """Deltas as they come, or one whole output of each request.

    Leaving it aborts the requests; so close it. Raises for a completion that failed, and then none of them goes on.
    """
    sources = [_outputs(llm, index, request, incremental) for index, request in enumerate(requests)]
    return sources[0] if len(sources) == 1 else _merged(sources)


async def _outputs(llm: AsyncLLM, index: int, request: Request, incremental: bool) -> Outputs:
    if not incremental:
        yield index, _sound(await llm.complete(request))
        return
    async with aclosing(llm.stream(request)) as outputs:
        async for output in outputs:
            yield index, _sound(output)


def _sound(output: RequestOutput) -> RequestOutput:
    """The output itself. Raises if one of its completions failed."""
    for completion in output.outputs:
        if completion.error_field is not None:
            message = (completion.error or "").removeprefix(f"{completion.error_field}: ")
            raise InvalidRequestError(completion.error_field, message)
        if completion.error is not None:
            raise APIError(500, completion.error, code="generation_failed")
    return output


async def _merged(sources: Sequence[Outputs]) -> Outputs:
    """What any of the sources yields. None of them runs ahead of the reader by more than one output."""
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(source: Outputs) -> None:
        try:
            async for output in source:
                await queue.put(output)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    pumps = [asyncio.create_task(pump(source)) for source in sources]
    try:
        live = len(pumps)
        while live:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                live -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for source in sources:
            await source.aclose()
