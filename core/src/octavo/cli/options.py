"""The configuration tree as command line flags, for every command that builds an engine.

Owns: the flags. Must never know: what a key means; the tree itself says its type, default and help.
"""

from __future__ import annotations

import argparse
from typing import Any

from octavo.cli.parser import SETTING, Parser
from octavo.cli.tables import shown
from octavo.config import EngineConfig
from octavo.plugins import Settings, leaves_of, resolve_settings

_SHORT = {
    "model.path": "--model",
    "model.dtype": "--dtype",
    "model.device": "--device",
    "model.max_model_len": "--max-model-len",
    "model.chat_template": "--chat-template",
    "sampling.seed": "--seed",
    "speculation.drafter": "--drafter",
    "attention.backend": "--attention-backend",
}
_PLUGIN_OPTIONS = "An option of a plugin: --plugins.NAME.OPTION VALUE. `octavo plugins show NAME` tells which it has."


def add_engine_options(parser: Parser, listed: bool = True) -> None:
    """One flag `--section.key VALUE` for each key of the configuration, and short forms for the most used.

    A short form that the parser has already stays what it was. Unless `listed`, the help leaves the flags out.
    """
    groups: dict[str, Any] = {}
    for key, leaf in leaves_of(EngineConfig).items():
        section, dot, _ = key.rpartition(".")
        if key in ("plugins", "disable_plugins"):  # --plugins.<plugin>.<option> and --disable-plugin
            continue
        if section not in groups:
            title, described = (f"{section} options", None) if dot else ("plugin options", _PLUGIN_OPTIONS)
            groups[section] = parser.add_argument_group(title, described if listed else None)
        dashed = f"--{key.replace('_', '-')}"
        settings = {"dest": SETTING + key, "metavar": "VALUE", "default": argparse.SUPPRESS}
        flags = [flag for flag in (_SHORT.get(key), dashed) if flag and not parser.has_flag(flag)]
        text = f"{leaf.help} ({leaf.type_name}; default: {shown(leaf.default)})".replace("%", "%%")
        groups[section].add_argument(*flags, help=text if listed else argparse.SUPPRESS, **settings)


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings of a parsed command line, over file and environment."""
    given = {key.removeprefix(SETTING): value for key, value in vars(arguments).items() if key.startswith(SETTING)}
    disabled = getattr(arguments, "disable_plugin", [])
    if disabled:
        given["disable_plugins"] = ",".join(disabled)
    return resolve_settings(getattr(arguments, "config", None), command_line=given)
