"""The command `octavo`: finds the subcommand among those that plugins offer, and runs it.

Owns: exit codes, error lines, the order of start-up. Must never know: what any subcommand does. Only the chosen one
is imported, and nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.cli.interrupts import EXIT_INTERRUPTED
from octavo.cli.options import add_engine_options, settings_from
from octavo.cli.parser import Parser, add_shared_options, early_options, split_command
from octavo.config import EngineConfig
from octavo.errors import ConfigError, OctavoError, PluginError, one_line, suggestion
from octavo.extensions import Offer, Registry
from octavo.plugins import Survey, resolve_settings, survey
from octavo.spec import Command, load_factory

EXIT_ERROR = 2
EXIT_BROKEN_PIPE = 141
"""As the shell reports a program that SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `octavo` with `argv` (default: the process's arguments); the exit code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows `?` for it
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except OctavoError as error:
        print(f"octavo: error: {one_line(error)}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        with contextlib.suppress(OSError):  # the interpreter must not complain at exit of what cannot be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # whoever read our output has left
            return EXIT_BROKEN_PIPE
        print(f"octavo: error: {one_line(error)}", file=sys.stderr)
        return EXIT_ERROR


def _open_closed_streams() -> None:
    """A stream that the caller closed (`octavo … >&-`) is None in Python; it becomes the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as the process


def _run(argv: list[str]) -> int:
    globals_, name, rest = split_command(argv)
    if name is None and "--version" in globals_:
        from octavo.plugins.discovery import core_version

        print(f"octavo {core_version() or 'unknown'}")
        return 0
    if name is None:
        return _help(globals_)
    _configure_logging()
    commands = _survey(argv).extensions.commands
    family = {full: offer for full, offer in commands.items() if full.startswith(f"{name} ")}
    if family and name not in commands and rest[:1] in (["-h"], ["--help"]):
        _list(family)
        return 0
    offer, rest = _find(commands, [name, *rest], family)
    command: Command = offer.entry
    parser = Parser(prog=f"octavo {command.name}", description=command.help)
    add_shared_options(parser)
    _part_of(offer, "configure")(parser)
    if command.takes_engine_options:
        add_engine_options(parser)
    try:
        arguments = parser.parse_args([*globals_, *rest])
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if command.takes_engine_options:
        arguments.engine_config = settings_from(arguments).config
    return int(_part_of(offer, "run")(arguments) or 0)


def _survey(argv: list[str]) -> Survey:
    file, disabled = early_options(argv)
    return survey(resolve_settings(file, command_line={"disable_plugins": ",".join(disabled)}).config)


def _find(
    commands: Registry[Command], words: list[str], family: Mapping[str, Offer[Command]]
) -> tuple[Offer[Command], list[str]]:
    """The command that the first two words name, or else the first, and what follows them."""
    for length in (2, 1):
        if (name := " ".join(words[:length])) in commands:
            return commands[name], words[length:]
    if words[0] in ("list", "show", "doctor"):
        raise ConfigError(f"no command is called {words[0]!r}; did you mean `{' '.join(['octavo plugins', *words])}`?")
    if family:
        near = suggestion(" ".join(words[:2]), family) if words[1:] else ""
        raise ConfigError(f"`octavo {words[0]}` takes one more word{near}; there is: {', '.join(family)}")
    raise ConfigError(commands.not_found(words[0]))


def _part_of(offer: Offer[Command], part: str) -> Any:
    """The command's `configure` or `run`, imported now."""
    try:
        return load_factory(getattr(offer.entry, part))
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PluginError(f"command {offer.entry.name!r} of plugin {offer.origin} cannot be loaded: {error}") from error


def _help(globals_: list[str]) -> int:
    unknown = [option for option in globals_ if option.startswith("-") and option not in ("-h", "--help")]
    if unknown and not set(globals_) & {"-h", "--help"}:
        raise ConfigError(f"no command given with {unknown[0]}; see `octavo --help`")
    try:
        found = _survey(globals_)
    except ConfigError:  # help must come whatever is wrong
        found = survey(EngineConfig(autoload_plugins=False))
    print("usage: octavo [--version] [--help] [--config FILE] [--disable-plugin NAME] COMMAND ...\n")
    _list(found.extensions.commands)
    return 0


def _list(commands: Mapping[str, Offer[Command]]) -> None:
    width = max(map(len, commands))
    print("commands:")
    for name, offer in commands.items():
        origin = "" if offer.origin.distribution == "octavo" else f" [{offer.origin.plugin}]"
        print(f"  {name.ljust(width)}  {offer.entry.help}{origin}")
    print("\n`octavo COMMAND --help` shows a command's options.")


def _configure_logging() -> None:
    level = (os.environ.get("OCTAVO_LOG") or "warning").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"OCTAVO_LOG: must be debug, info, warning or error; got {level.lower()!r}")
    logging.basicConfig(format="octavo: %(levelname)s: %(message)s")
    logging.getLogger("octavo").setLevel(level)
