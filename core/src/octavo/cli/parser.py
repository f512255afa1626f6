"""Command line parsing that ends in typed errors.

Owns: `Parser`, the options that every command has, and what must be known before plugins are loaded. Must never know:
the configuration's keys (`octavo.cli.options`) or any command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from octavo.errors import ConfigError, suggestion

PLUGIN_PREFIX = "--plugins."
SETTING = "setting:"
"""Marks the namespace's attributes that are configuration keys."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `ConfigError` and that takes `--plugins.<plugin>.<option> VALUE`.

    Which plugin options exist is known only once plugins are loaded, so they are taken as they come and checked then.
    Long flags may be spelt with underscores for dashes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # a plugin's command may have its own --config
        super().__init__(*args, allow_abbrev=False, conflict_handler="resolve", **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse would first complain about the unknown flag's value; flags after these belong to somebody else
        if not any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            for flag in map(self._flag, split_plugin_options(args or [])[0]):
                if flag == "--":
                    break
                if flag and flag not in self._option_string_actions:
                    self.error(f"unknown option {flag}{suggestion(flag, self._option_string_actions)}")
        return super().parse_args(args, namespace)

    def has_flag(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def _flag(self, argument: str) -> str:
        """The long flag in `argument`, spelt as it was added; empty if there is none."""
        flag = argument.partition("=")[0]
        if not flag.startswith("--") or " " in flag:
            return ""
        dashed = flag.replace("_", "-")
        return dashed if dashed in self._option_string_actions else flag

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        kept, chosen = split_plugin_options([] if args is None else args)
        end = kept.index("--") if "--" in kept else len(kept)
        flags = [self._flag(a) + a[len(self._flag(a)) :] for a in kept[:end]]
        space, left = super().parse_known_args([*flags, *kept[end:]], namespace)
        for key, value in chosen.items():
            setattr(space, SETTING + key, value)
        return space, left


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """`--config` and `--disable-plugin`, which every command has because they decide which commands there are."""
    group = parser.add_argument_group("configuration and plugins")
    group.add_argument("--config", metavar="FILE", help="TOML or YAML configuration file")
    group.add_argument(
        "--disable-plugin", metavar="NAME", action="append", default=[], help="leave a plugin out; repeatable"
    )


def early_options(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration file and the disabled plugins, found before any command's parser exists."""
    early = Parser(add_help=False)
    add_shared_options(early)
    end = list(argv).index("--") if "--" in argv else len(argv)
    found, _ = early.parse_known_args(list(argv[:end]))
    return found.config, found.disable_plugin


def split_command(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """What stands before the command, the command, and what follows it."""
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        position += 2 if argv[position].replace("_", "-") in ("--config", "--disable-plugin") else 1
    if position >= len(argv):
        return list(argv), None, []
    return list(argv[:position]), argv[position], list(argv[position + 1 :])


def split_plugin_options(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without `--plugins.<plugin>.<option> VALUE`, and those as keys and values."""
    kept: list[str] = []
    chosen: dict[str, str] = {}
    rest = iter(args)
    for argument in rest:
        if argument == "--":
            kept += [argument, *rest]
        elif argument.startswith(PLUGIN_PREFIX):
            flag, equals, value = argument.partition("=")
            plugin, dot, option = flag.removeprefix(PLUGIN_PREFIX).rpartition(".")
            if not equals:
                value = next(rest, None)  # type: ignore[assignment]
            if not (plugin and dot and option) or value is None:
                raise ConfigError(f"{flag}: write {PLUGIN_PREFIX}<plugin>.<option> VALUE")
            chosen[f"plugins.{plugin}.{option.replace('-', '_')}"] = value
        else:
            kept.append(argument)
    return kept, chosen
