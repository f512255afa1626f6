"""Where configuration values come from, and which of them wins.

Owns: the merge of defaults, file, environment, command line and keyword arguments into one `EngineConfig`, with the
source of each value. Must never know: what a value means, or plugins' own options (`octavo.plugins.resolve` parses
those, once the plugins are loaded).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.errors import ConfigError, one_line, suggestion
from octavo.plugins.discovery import installed
from octavo.plugins.keys import Leaf, leaves_of, shortened

PREFIX = "OCTAVO_"
CONFIG_VARIABLE = "OCTAVO_CONFIG"
RESERVED = (CONFIG_VARIABLE, "OCTAVO_API_KEY", "OCTAVO_CACHE_DIR", "OCTAVO_LOG")
"""Variables that are no configuration keys."""

COMMAND_LINE = "command line"
ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration, and where each value came from."""

    config: EngineConfig
    sources: Mapping[str, str]
    """Dotted key to `default`, `file PATH`, `environment OCTAVO_…`, `command line` or `argument`."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value as one source gives it."""

    key: str
    value: Any
    source: str
    text: bool = False


def resolve_settings(
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    command_line: Mapping[str, str] | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge every source; later ones win: defaults, `file`, `env`, `command_line`, `keywords`.

    `file` is TOML or YAML and defaults to `OCTAVO_CONFIG`. `env` defaults to the process's. `command_line` has dotted
    keys. `keywords` are those of `LLM(...)`: a section with a mapping, a leaf's own name, `model=path`, `plugins`.
    What is installed tells where a plugin's name ends in `OCTAVO_PLUGINS_…`.
    `disable_plugins` adds up over all sources. Raises `ConfigError` naming the key, its source and the nearest name.
    """
    env = os.environ if env is None else env
    leaves = leaves_of(EngineConfig)
    file = file if file is not None else env.get(CONFIG_VARIABLE) or None
    assignments = [
        *(_of_file(leaves, Path(file)) if file is not None else ()),
        *_of_environment(leaves, env),
        *_of_command_line(leaves, command_line or {}),
        *_of_keywords(leaves, keywords or {}),
    ]
    values = {key: leaf.default for key, leaf in leaves.items()}
    sources = dict.fromkeys(leaves, "default")
    plugins: dict[str, dict[str, Any]] = {}
    for given in assignments:
        if given.key.startswith("plugins."):
            _, name, option = given.key.split(".", 2)
            plugins.setdefault(name, {})[option] = given.value
            sources[given.key] = given.source
            continue
        value = leaves[given.key].convert(given.value, given.source, text=given.text)
        if given.key == "disable_plugins":
            added = sources[given.key] != "default"
            values[given.key] = tuple(dict.fromkeys((*values[given.key], *value)))
            sources[given.key] = f"{sources[given.key]}, {given.source}" if added else given.source
            continue
        values[given.key], sources[given.key] = value, given.source
    del values["plugins"], sources["plugins"]
    return Settings(_build(values, plugins), sources)


def _build(values: Mapping[str, Any], plugins: dict[str, dict[str, Any]]) -> EngineConfig:
    tree: dict[str, Any] = {"plugins": plugins}
    for key, value in values.items():
        section, dot, name = key.rpartition(".")
        (tree.setdefault(section, {}) if dot else tree)[name] = value
    return msgspec.convert(tree, EngineConfig)


def _of_file(leaves: Mapping[str, Leaf], path: Path) -> Iterator[Assignment]:
    source = f"file {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"configuration {source} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration {source} is not UTF-8 text") from error
    parsers = {".toml": tomllib.loads, ".yaml": _parse_yaml, ".yml": _parse_yaml}
    if path.suffix not in parsers:
        raise ConfigError(f"configuration {source} must end in .toml, .yaml or .yml")
    try:
        tree: Any = parsers[path.suffix](text)
    except Exception as error:  # YAML's constructors raise what they like, and brackets can nest too deep
        kind = "TOML" if path.suffix == ".toml" else "YAML"
        raise ConfigError(f"configuration {source} is not valid {kind}: {one_line(error)}") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"configuration {source} must hold sections, not a {type(tree).__name__}")
    for key, value in tree.items():
        yield from _branch(leaves, str(key), value, source)


def _parse_yaml(text: str) -> Any:
    import yaml  # only here: it is slow to import

    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise ValueError("aliases (*name) are not allowed; write the value out")  # a few of them can make terabytes
    return yaml.safe_load(text)


def _of_environment(leaves: Mapping[str, Leaf], env: Mapping[str, str]) -> Iterator[Assignment]:
    variables = {_variable(key): key for key in leaves if key != "plugins"}
    for variable, value in sorted(env.items()):
        source = f"environment {variable}"
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        if variable in variables:
            yield Assignment(variables[variable], value, source, text=True)
        elif variable.startswith("OCTAVO_PLUGINS_"):
            yield Assignment(_plugin_key(variable), value, source, text=True)
        else:
            raise ConfigError(
                f"unknown environment variable {variable}{suggestion(variable, (*variables, *RESERVED))}"
                "; see `octavo config` for the keys"
            )


def _plugin_key(variable: str) -> str:
    names = sorted((candidate.name for candidate in installed(None)), key=len, reverse=True)
    for name in names:  # torch_sdpa before torch
        prefix = f"{_variable(f'plugins.{name}')}_"
        if variable.startswith(prefix) and variable != prefix:
            return f"plugins.{name}.{variable.removeprefix(prefix).lower()}"
    raise ConfigError(
        f"environment variable {variable} names no installed plugin; there is: {', '.join(sorted(names)) or 'none'}"
    )


def _variable(key: str) -> str:
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", key.upper())


def _of_command_line(leaves: Mapping[str, Leaf], command_line: Mapping[str, str]) -> Iterator[Assignment]:
    for key, value in command_line.items():
        if key.startswith("plugins."):
            if key.count(".") < 2 or not all(key.split(".")):
                raise ConfigError(f"--{key}: write --plugins.<plugin>.<option> VALUE")
        elif key not in leaves:
            raise ConfigError(f"unknown key {key!r} on the {COMMAND_LINE}{suggestion(key, leaves)}")
        yield Assignment(key, value, COMMAND_LINE, text=True)


def _of_keywords(leaves: Mapping[str, Leaf], keywords: Mapping[str, Any]) -> Iterator[Assignment]:
    short: dict[str, list[str]] = {}
    for key in leaves:
        short.setdefault(key.rpartition(".")[2], []).append(key)
    sections = {key.partition(".")[0] for key in leaves}
    for name, value in keywords.items():
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        if name == "model" and not isinstance(plain, Mapping):
            yield Assignment("model.path", plain, ARGUMENT)
        elif name in sections:
            yield from _branch(leaves, name, plain, ARGUMENT)
        elif len(short.get(name, ())) == 1:
            yield Assignment(short[name][0], plain, ARGUMENT)
        elif name in short:
            raise ConfigError(f"keyword argument {name!r} could be {' or '.join(short[name])}; give its section")
        else:
            raise ConfigError(f"unknown keyword argument {name!r}{suggestion(name, (*short, *sections))}")


def _branch(leaves: Mapping[str, Leaf], name: str, value: Any, source: str) -> Iterator[Assignment]:
    """What a nested mapping assigns below the top-level key `name`."""
    if name in leaves and name != "plugins":
        yield Assignment(name, value, source)
        return
    tops = list(dict.fromkeys(key.partition(".")[0] for key in leaves))
    if name not in tops:
        near = suggestion(name, (*tops, *(key.rpartition(".")[2] for key in leaves)))
        owner = next(
            (f" (it belongs in section {k.partition('.')[0]!r})" for k in leaves if k.endswith(f".{name}")), ""
        )
        raise ConfigError(f"unknown key {name!r} from {source}{owner or near}")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: must be a section of keys; got {shortened(value)} from {source}")
    for key, below in value.items():
        dotted = f"{name}.{key}"
        if name == "plugins":
            if not isinstance(below, Mapping):
                raise ConfigError(
                    f"{dotted}: must be a section of the plugin's options; got {shortened(below)} from {source}"
                )
            for option, chosen in below.items():
                yield Assignment(f"{dotted}.{option}", chosen, source)
        elif dotted in leaves:
            yield Assignment(dotted, below, source)
        else:
            raise ConfigError(f"unknown key {dotted!r} from {source}{suggestion(dotted, leaves)}")
