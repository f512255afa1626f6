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
_CONSTRAINT = "structured_outputs"
"""Where a grammar fails between two tokens, only the error's words say that it is this field's."""


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
        if completion.error is None:
            continue
        field = completion.error_field
        if field is None and completion.error.startswith(f"{_CONSTRAINT}: "):
            field = _CONSTRAINT
        if field is None:
            raise APIError(500, completion.error, code="generation_failed")
        raise InvalidRequestError(field, completion.error.removeprefix(f"{field}: "))
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
