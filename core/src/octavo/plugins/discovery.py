"""Which plugins there are: entry points of the group `octavo`, with their distributions, not yet imported.

Owns: `Candidate`, and the check of each plugin's own range of core versions. Must never know: hooks, configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from octavo.errors import PluginError
from octavo.extensions import Broken, Origin

GROUP = "octavo"
CORE = "octavo"
BUILTIN = "builtin"


class PluginFault(PluginError):
    """Why one plugin cannot be loaded, and what to do about it."""

    def __init__(self, reason: str, mend: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.mend = mend

    def broken(self, origin: Origin) -> Broken:
        uninstall = f"update it, uninstall it (pip uninstall {origin.distribution}), or disable it: disable_plugins"
        return Broken(origin, self.reason, self.mend or uninstall)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that could be loaded."""

    origin: Origin
    load: Callable[[], object]
    """Imports it."""
    requires: str = ""
    """The core versions that it says it works with, `octavo<0.2,>=0.1`; empty if it does not say."""
    fault: PluginFault | None = None
    """Set if it must not even be imported."""
    module: str = ""
    """The module that its entry point names."""
    passed_in: bool = False
    """Whether the caller handed it over instead of installing it."""

    @property
    def name(self) -> str:
        return self.origin.plugin


def core_version() -> str | None:
    """Version of core's distribution; None in a source tree that was never installed."""
    try:
        return importlib_metadata.version(CORE)
    except importlib_metadata.PackageNotFoundError:
        return None


def installed(core: str | None) -> tuple[Candidate, ...]:
    """Every entry point of the group, by name (their own order is arbitrary), checked against version `core`.

    Imports nothing.
    """
    found = [_candidate(entry_point, core) for entry_point in importlib_metadata.entry_points(group=GROUP)]
    return tuple(sorted(found, key=lambda candidate: (candidate.name, candidate.origin.distribution)))


def passed_in(plugin: object) -> Candidate:
    """A plugin that the caller handed over as a module or an object.

    It is called as an entry point would call it: the module `octavo_ngram.plugin` is `ngram`; an object goes by its
    class.
    """
    if isinstance(plugin, ModuleType):
        name = re.sub(r"^octavo_(?=.)", "", plugin.__name__.removesuffix(".plugin"))
    else:
        name = (plugin if isinstance(plugin, type) else type(plugin)).__name__
    return Candidate(Origin(name, "passed to the engine", "-"), lambda: plugin, passed_in=True)


def _candidate(entry_point: importlib_metadata.EntryPoint, core: str | None) -> Candidate:
    origin = Origin(entry_point.name, "unknown", "-")
    distribution: Any = entry_point.dist
    try:
        module = entry_point.module
        metadata = distribution.metadata  # read once: every property parses it anew
        origin = Origin(entry_point.name, metadata["Name"], metadata["Version"])
        requires = _core_requirement(metadata.get_all("Requires-Dist") or [])
    except InvalidRequirement as error:
        return Candidate(origin, entry_point.load, fault=PluginFault(f"unreadable requirement: {error}"))
    except (AttributeError, KeyError, OSError, ValueError) as error:
        fault = PluginFault(f"its installation is damaged: {type(error).__name__}: {error}", "install it again")
        return Candidate(origin, entry_point.load, fault=fault)
    fault = None
    if requires and core and not requires.specifier.contains(core, prereleases=True):
        upgrade = f"pip install --upgrade {origin.distribution}"
        fault = PluginFault(
            f"it needs {requires}, this is octavo {core}", f"install a release for octavo {core}: {upgrade}"
        )
    return Candidate(origin, entry_point.load, str(requires or ""), fault, module)


def _core_requirement(lines: list[str]) -> Requirement | None:
    """The requirement on core that holds in this environment, those of extras left out; all of them in one."""
    found: Requirement | None = None
    for line in lines:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) == CORE and applies:
            requirement.marker = None
            if found:
                requirement.specifier &= found.specifier
            found = requirement
    return found
