"""`octavo bench serve`: a load on a server that runs already, and how it answers.

Owns: the order of what is done, the exit code. Must never know: how anything is sent or counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from octavo.errors import OctavoError
from octavo_bench.options import choose_dataset
from octavo_bench.output import publish, tell, write_file
from octavo_bench.serve.arrivals import arrival_times
from octavo_bench.serve.client import Client
from octavo_bench.serve.exchange import Exchange
from octavo_bench.serve.load import Load, Offered
from octavo_bench.serve.options import check, key_of
from octavo_bench.serve.plot import draw
from octavo_bench.serve.prompts import Prompt, exchanges_of, file_prompts, random_prompts
from octavo_bench.serve.report import Setting, as_record, lines_of
from octavo_bench.serve.results import results_of
from octavo_bench.workload import Workload

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_OTHER_SEED = 2**31
"""Added to the seed for requests to warm up, so that the measured prompts are new to the server."""
_PROGRESS_PERIOD = 0.5
"""Seconds."""


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, 1 if a request failed, 130 after Ctrl-C, which ends the load and leaves a report of a part."""
    workload = choose_dataset(arguments, "serve")
    check(arguments, workload)
    key = key_of(arguments, os.environ)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        setting, offered = runner.run(_measure(arguments, workload, key))
    tell("")
    results = results_of(offered, setting.percentiles, setting.goals)
    lines = lines_of(setting, results, offered.interrupted)
    publish(lines, as_record(setting, offered, results), arguments.json)
    if arguments.plot:
        write_file("--plot", arguments.plot, draw(lines[:2], offered))
    if offered.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if results.num_failed else 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop needs about half of asyncio's time for a chunk. None, asyncio's own, on Windows, where it does not run."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def _measure(arguments: argparse.Namespace, workload: Workload, key: str | None) -> tuple[Setting, Offered]:
    endpoint = arguments.endpoint
    async with Client(arguments.base_url, endpoint, key, arguments.timeout) as client:
        model = await client.choose_model(arguments.model)
        fields = _fields(arguments, model.name)
        measured, before = _prompts(arguments, workload, arguments.vocab_size or model.vocab_size)
        exchanges = exchanges_of(measured, endpoint, fields)
        times = arrival_times(len(exchanges), arguments.request_rate, arguments.burstiness, arguments.seed)
        for exchange, arrival in zip(exchanges, times, strict=True):
            exchange.arrival = arrival
        if before:
            await _warm_up(client, exchanges_of(before, endpoint, fields), arguments.max_concurrency)
        watch = asyncio.create_task(_show_progress(exchanges))
        offered = await Load(exchanges, client.send, arguments.max_concurrency).run()
        watch.cancel()
    return _setting(arguments, workload, model.name), offered


def _fields(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """What is the same in every request."""
    fields: dict[str, Any] = {"model": model, "temperature": arguments.temperature}
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    return {**fields, **arguments.extra_body}


def _prompts(
    arguments: argparse.Namespace, workload: Workload, vocab_size: int | None
) -> tuple[list[Prompt], list[Prompt]]:
    """What is measured, and what is sent before: other random prompts, or the first ones of the file."""
    seed, num_warmups = arguments.seed, arguments.num_warmups
    if workload.dataset == "jsonl":
        found = file_prompts(arguments.dataset_path, workload, arguments.endpoint, seed)
        return found, list(itertools.islice(itertools.cycle(found), num_warmups))
    assert workload.num_prompts is not None
    as_text = _prompt_format(arguments, workload) == "text"
    return (
        random_prompts(workload, workload.num_prompts, as_text=as_text, vocab_size=vocab_size, seed=seed),
        random_prompts(workload, num_warmups, as_text=as_text, vocab_size=vocab_size, seed=seed + _OTHER_SEED),
    )


def _prompt_format(arguments: argparse.Namespace, workload: Workload) -> str:
    if workload.dataset == "jsonl":
        return "file"
    return arguments.prompt_format or ("text" if arguments.endpoint == "chat" else "ids")


async def _warm_up(client: Client, exchanges: Sequence[Exchange], max_concurrency: int | None) -> None:
    """Raises `OctavoError` if one fails: then most of the others would, for the same reason."""
    tell("warming up")
    offered = await Load(exchanges, client.send, max_concurrency).run()
    if offered.interrupted:
        raise KeyboardInterrupt
    for exchange in exchanges:
        if (failure := exchange.failure) is not None:
            raise OctavoError(
                f"nothing was measured, for a request to warm up failed ({failure.kind}): {failure.message}; "
                f"--num-warmups 0 measures all the same"
            )


async def _show_progress(exchanges: Sequence[Exchange]) -> None:
    while True:
        tell(f"{sum(e.end is not None for e in exchanges):,} of {len(exchanges):,} requests")
        await asyncio.sleep(_PROGRESS_PERIOD)


def _setting(arguments: argparse.Namespace, workload: Workload, model: str) -> Setting:
    return Setting(
        base_url=arguments.base_url,
        endpoint=arguments.endpoint,
        model=model,
        dataset=workload.dataset,
        prompt_format=_prompt_format(arguments, workload),
        seed=arguments.seed,
        request_rate=arguments.request_rate,
        burstiness=arguments.burstiness,
        max_concurrency=arguments.max_concurrency,
        timeout=arguments.timeout,
        num_warmups=arguments.num_warmups,
        temperature=arguments.temperature,
        ignore_eos=arguments.ignore_eos,
        extra_body=arguments.extra_body,
        percentiles=arguments.percentiles,
        goals=dict(arguments.goodput),
    )
