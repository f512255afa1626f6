"""`octavo plugins new`: a plugin of one's own that already works, to change step by step.

Owns: names, and where a template's files go. Must never know: what templates hold, or any contract.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from octavo.errors import ConfigError, suggestion
from octavo.plugins import PluginReport

_TEMPLATES = Path(__file__).with_name("templates")
_SHARED = "shared"
KINDS = tuple(sorted(path.name for path in _TEMPLATES.iterdir() if path.name != _SHARED))
_LONGEST_NAME = 32
"""Templates keep within the line length with names up to this one."""

_CLASSES = {"model": "{stem}ForCausalLM", "kv-policy": "{stem}Spec"}
"""Kinds whose offers go by a class's name."""


def write_plugin(name: str, kind: str | None, output: str | None, installed: Sequence[PluginReport]) -> str:
    """Write the plugin, and say what to do next.

    Raises `ConfigError` for a name that is malformed or taken by one of `installed`, an unknown kind, and a folder
    that exists.
    """
    if kind not in KINDS:
        said = f"no kind of plugin is called {kind!r}{suggestion(kind, KINDS)}" if kind else "say which kind it is"
        raise ConfigError(f"--kind: {said}; there is: {', '.join(KINDS)}")
    names = _names(_words(name), kind)
    _check_free({names["plugin"], _CLASSES.get(kind, "{plugin}").format(**names)}, installed)
    folder = Path(output or f"octavo-{names['name']}")
    if folder.exists():
        raise ConfigError(f"{folder} exists; choose another folder with --output")
    for template in sorted(path for part in (_SHARED, kind) for path in (_TEMPLATES / part).iterdir()):
        target = folder / _place(template.stem, names)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(template.read_text(encoding="utf-8")).substitute(names), encoding="utf-8")
    return "\n".join(
        (
            f"wrote {folder}, the {names['kind']} {names['plugin']}; its comments say what to change. Next:",
            f'  pip install --editable "{folder}[test]"',
            f'  pytest "{folder}"',
            "  octavo plugins doctor",
        )
    )


def _words(name: str) -> list[str]:
    """The parts of a plugin's name, which may be written as a distribution's or a package's."""
    own = re.sub("^octavo[-_]", "", name).replace("_", "-")
    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", own) or len(own) > _LONGEST_NAME:
        raise ConfigError(
            f"a plugin cannot be called {name!r}: write small letters, digits and dashes, "
            f"a letter first, {_LONGEST_NAME} at most, like my-drafter"
        )
    return own.split("-")


def _names(words: Sequence[str], kind: str) -> dict[str, str]:
    """What templates are filled in with."""
    noun = kind.split("-")[-1]
    stem = words[:-1] if len(words) > 1 and words[-1] == noun else words  # MyDrafter, not MyDrafterDrafter
    return {
        "kind": kind.replace("-", " "),
        "name": "-".join(words),
        "plugin": "_".join(words),
        "package": f"octavo_{'_'.join(words)}",
        "stem": "".join(map(str.capitalize, stem)),
    }


def _check_free(names: set[str], installed: Sequence[PluginReport]) -> None:
    """Raises `ConfigError` if a plugin, or something that a plugin offers, is already called so."""
    for report in installed:
        for kind, name in [("plugin", report.name), *((offer.kind, offer.name) for offer in report.offers)]:
            if name in names:
                where = f"{report.distribution} {report.version}"
                raise ConfigError(f"the {kind} {name!r} is there already, from {where}; choose another name")


def _place(file: str, names: dict[str, str]) -> Path:
    """Where in the plugin's folder a template's file goes."""
    if file in ("pyproject.toml", "README.md"):
        return Path(file)
    if file == "test.py":
        return Path("tests", f"test_{names['plugin']}.py")
    return Path("src", names["package"], file)
