"""`octavo serve` with the model that says what its prompt tells it to, for tests of the server itself.

    python benchmarks/echo_server.py [--port 8000] [--max-num-seqs 128] [--any-option-of-octavo-serve VALUE]

Prints the address like `octavo serve`, and at its end one JSON object with the delays of its event loop in seconds.

Owns: that start. Must never know: what is asked of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import uvloop
from measuring import quantile

import octavo_llguidance.plugin
from octavo.testing import echo_model
from octavo_openai import serve as serving
from octavo_openai.http.request_log import configure_logging
from octavo_openai.options import add_flags, read_options
from octavo_openai.service import Service

_LOOK = 0.01
"""Seconds between two looks at how late the event loop is."""


async def run(arguments: argparse.Namespace) -> int:
    options = read_options(arguments)
    configure_logging(options.log_format, options.log_requests)
    delays: list[float] = []
    watching = asyncio.create_task(_watch(delays))
    with serving.listen(options) as listener:
        stop = serving.stop_on_signals()
        plugins = [echo_model, octavo_llguidance.plugin]
        code = await serving.serve(Service(options), arguments.engine_config, listener, stop, plugins)
    watching.cancel()
    found = {f"p{q * 100:g}": quantile(delays, q) for q in (0.5, 0.9, 0.99)} | {"max": max(delays)}
    print(json.dumps({"event_loop_delays": found}), flush=True)
    return code


async def _watch(delays: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LOOK
        await asyncio.sleep(_LOOK)
        delays.append(loop.time() - due)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--num-blocks", type=int, default=8192)
    parser.add_argument("--last-words", type=float, default=serving.LAST_WORDS, help="seconds it outlives its engine")
    arguments = parser.parse_args()
    serving.LAST_WORDS = arguments.last_words
    arguments.engine_config = echo_model.echo_config(
        max_num_seqs=arguments.max_num_seqs, num_blocks=arguments.num_blocks
    )
    serving.raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
