"""What this plugin offers: commands. Owns: the registration. Must never know: torch."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import Command

_ENGINE_COMMANDS = {
    "latency": "time to first token, time per token and end to end of one batch",
    "throughput": "requests and tokens per second of many requests at once",
}


@hookimpl
def octavo_register_commands() -> list[Command]:
    return [
        *(
            Command(
                name=f"bench {name}",
                help=text,
                configure=f"octavo_bench.{name}:configure",
                run=f"octavo_bench.{name}:run",
                takes_engine_options=True,
            )
            for name, text in _ENGINE_COMMANDS.items()
        ),
        Command(
            name="bench serve",
            help="a load on an OpenAI-compatible server that runs already: latencies, rates, failures",
            configure="octavo_bench.serve.options:configure",
            run="octavo_bench.serve.command:run",
        ),
    ]
