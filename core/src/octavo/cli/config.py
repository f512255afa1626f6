"""`octavo config`: the resulting configuration, and where each value came from.

Owns: how they are printed. Must never know: how they are merged.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from octavo.cli.options import add_engine_options, settings_from
from octavo.cli.parser import Parser
from octavo.cli.tables import shown, table
from octavo.config import EngineConfig
from octavo.extensions import Extensions
from octavo.plugins import Settings, leaves_of, load_extensions


def configure(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    extensions = load_extensions(settings.config, sources=settings.sources)
    values = _values(settings, extensions)
    if arguments.json:
        found = {key: {"value": value, "source": source} for key, value, source in values}
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        rows = [[key, shown(value), source] for key, value, source in values]
        print(table(["KEY", "VALUE", "SOURCE"], rows))
    return 0


def _values(settings: Settings, extensions: Extensions) -> list[tuple[str, Any, str]]:
    """Every key with its value, unless that is secret, and its source; plugins' own options included."""
    found = []
    for key, leaf in leaves_of(EngineConfig).items():
        if key == "plugins":
            continue
        value: Any = settings.config
        for part in key.split("."):
            value = getattr(value, part)
        found.append((key, leaf.shown(value), settings.sources[key]))
    for plugin, options in sorted(extensions.options.items()):
        for name, leaf in leaves_of(type(options)).items():
            key = f"plugins.{plugin}.{name}"
            found.append((key, leaf.shown(getattr(options, name)), settings.sources.get(key, "default")))
    return found
