"""What this plugin offers: the command `serve`, and its options. Owns: those. Must never know: HTTP."""

from __future__ import annotations

from octavo.config import Section
from octavo.hookspecs import hookimpl
from octavo.spec import Command
from octavo_openai.options import ServerOptions


@hookimpl
def octavo_options() -> type[Section]:
    return ServerOptions


@hookimpl
def octavo_register_commands() -> list[Command]:
    return [
        Command(
            name="serve",
            help="answer HTTP requests as OpenAI's API does",
            configure="octavo_openai.options:add_flags",
            run="octavo_openai.serve:run",
            takes_engine_options=True,
        )
    ]
