"""`octavo config`: the resulting configuration, where each value came from, and its JSON schema.

Owns: how they are printed. Must never know: how they are merged.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from octavo.cli.options import add_engine_options, settings_from
from octavo.cli.tables import shown, table
from octavo.config import EngineConfig
from octavo.extensions import Extensions
from octavo.plugins import Settings, leaves_of, load_extensions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "schema"), default="show")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    extensions = load_extensions(settings.config, sources=settings.sources)
    if arguments.action == "schema":
        print(json.dumps(_schema(extensions), indent=2))
        return 0
    values = _values(settings, extensions)
    if arguments.json:
        found = {key: {"value": value, "source": source} for key, value, source in values}
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        rows = [[key, shown(value), source] for key, value, source in values]
        print(table(["KEY", "VALUE", "SOURCE"], rows))
    return 0


def _values(settings: Settings, extensions: Extensions) -> list[tuple[str, Any, str]]:
    """Every key with its value and source, plugins' own options included."""
    found = []
    for key in leaves_of(EngineConfig):
        if key == "plugins":
            continue
        value: Any = settings.config
        for part in key.split("."):
            value = getattr(value, part)
        found.append((key, value, settings.sources[key]))
    for plugin, options in sorted(extensions.options.items()):
        for leaf in leaves_of(type(options)):
            key = f"plugins.{plugin}.{leaf}"
            found.append((key, getattr(options, leaf), settings.sources.get(key, "default")))
    return found


def _schema(extensions: Extensions) -> dict[str, Any]:
    """JSON schema of a configuration file, with the options of the plugins that are loaded."""
    kinds = {plugin: type(options) for plugin, options in sorted(extensions.options.items())}
    (tree, *options), parts = msgspec.json.schema_components(
        [EngineConfig, *kinds.values()], ref_template="#/$defs/{name}"
    )
    root = parts[EngineConfig.__name__]
    root["properties"]["plugins"] |= {
        "properties": dict(zip(kinds, options, strict=True)),
        "additionalProperties": False,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree, "$defs": parts}
