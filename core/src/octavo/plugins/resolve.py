"""From what is installed and what the configuration asks for to one frozen `Extensions`.

Owns: which plugins are loaded, what happens if one fails, name clashes, plugins' own options. Must never know: what
the things on offer do.

Nothing is raised on the way: every fault is collected, so that `octavo plugins` can list them all, and building an
engine raises the first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from octavo.config import EngineConfig, Section
from octavo.errors import ConfigError, OctavoError, PluginError, suggestion
from octavo.extensions import Broken, Extensions, Offer, Origin, Registry
from octavo.plugins import builtin
from octavo.plugins.discovery import BUILTIN, CORE, Candidate, PluginFault, core_version, installed, passed_in
from octavo.plugins.keys import leaves_of
from octavo.plugins.loading import COLLECTING, Loaded, load, rank_makers


@dataclass(slots=True)
class Resolution:
    """How far resolution has come; at its end, everything that is known about plugins."""

    candidates: list[Candidate]
    loaded: dict[str, Loaded] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    disabled: list[Candidate] = field(default_factory=list)
    errors: list[OctavoError] = field(default_factory=list)
    """What keeps an engine from being built, in the order in which it was found."""
    options: dict[str, Section] = field(default_factory=dict)

    def break_plugin(self, candidate: Candidate, fault: PluginFault) -> None:
        """Take the plugin out, with all that it offered."""
        self.loaded.pop(candidate.name, None)
        self.options.pop(candidate.name, None)
        self.broken.append(fault.broken(candidate.origin))


def resolve(
    config: EngineConfig,
    plugins: Sequence[object],
    only: Collection[str] | None = None,
    sources: Mapping[str, str] | None = None,
) -> tuple[Resolution, Extensions]:
    """Load what is to be loaded and sort out what collides. `only` names exactly the plugins to load."""
    core = core_version()
    found = installed(core) if config.autoload_plugins or only is not None else ()
    candidates = _with_handed_over(found, plugins)
    state = Resolution(sorted((c for c in candidates if only is None or c.name in only), key=lambda c: c.name))
    if only is None:
        _disable(state, config)
    else:
        _require(state, only)
    asked = set(config.plugins) | set(only or ()) | {c.name for c in state.candidates if c.passed_in}
    _load_all(state, Candidate(Origin(BUILTIN, CORE, core or "-"), lambda: builtin), asked)
    _settle_clashes(state, config)
    _parse_options(state, config, sources or {})
    extensions = _freeze(state, config)
    _check_named(state, config, extensions)
    return state, extensions


def plugin_suggestion(name: str, names: Iterable[str]) -> str:
    """`suggestion` for a plugin's name, which may be written as its distribution's: `octavo-torch-sdpa`."""
    return suggestion(re.sub("^octavo[-_]", "", name).replace("-", "_"), names)


def _with_handed_over(found: Sequence[Candidate], plugins: Sequence[object]) -> list[Candidate]:
    """Installed plugins and those that the caller passed. One that is both keeps its distribution."""
    modules = {plugin.__name__ for plugin in plugins if isinstance(plugin, ModuleType)}
    asked = [replace(c, passed_in=True) if c.module in modules else c for c in found]
    there = {c.module for c in asked if c.passed_in}
    return [*asked, *(passed_in(p) for p in plugins if not (isinstance(p, ModuleType) and p.__name__ in there))]


def _disable(state: Resolution, config: EngineConfig) -> None:
    """Set aside what the configuration disables. Without autoload it may name plugins that nobody looked for."""
    names = {candidate.name for candidate in state.candidates}
    for name in config.disable_plugins:
        if name == BUILTIN:
            state.errors.append(ConfigError(f"disable_plugins: {BUILTIN!r} is core itself and cannot be disabled"))
        elif name not in names and config.autoload_plugins:
            there = ", ".join(sorted(names)) or "none"
            state.errors.append(
                ConfigError(
                    f"disable_plugins: no plugin is called {name!r}{plugin_suggestion(name, names)}; there is: {there}"
                )
            )
    state.disabled = [c for c in state.candidates if c.name in config.disable_plugins]
    state.candidates = [c for c in state.candidates if c.name not in config.disable_plugins]


def _require(state: Resolution, only: Collection[str]) -> None:
    for name in sorted(set(only) - {BUILTIN} - {c.name for c in state.candidates}):
        state.errors.append(
            PluginError(
                f"plugin {name!r} is not installed here, so this process cannot load it; a plugin that was passed to "
                "the engine as an object must be packaged with an entry point of the group 'octavo'"
            )
        )


def _load_all(state: Resolution, core: Candidate, asked: Collection[str]) -> None:
    by_name: dict[str, list[Candidate]] = {}
    for candidate in (core, *state.candidates):
        by_name.setdefault(candidate.name, []).append(candidate)
    state.candidates = sorted((core, *state.candidates), key=lambda candidate: candidate.name)
    for name, claimants in sorted(by_name.items()):
        if len(claimants) > 1:
            who = " and ".join(f"{c.origin.distribution} {c.origin.version}" for c in claimants)
            reason = f"the plugin name {name!r} is taken twice, by {who}"
            mend = f"uninstall one of them or disable {name!r}"
            state.errors.append(PluginFault(f"{reason}; {mend}"))
            for candidate in claimants:
                if candidate is not core:
                    state.break_plugin(candidate, PluginFault(reason, mend))
            claimants = claimants[:1] if claimants[0] is core else []
        for candidate in claimants:
            _load_one(state, candidate, name in asked)


def _load_one(state: Resolution, candidate: Candidate, asked: bool) -> None:
    try:
        state.loaded[candidate.name] = load(candidate)
    except PluginFault as fault:
        state.break_plugin(candidate, fault)
        if asked:
            error = PluginFault(str(state.broken[-1]))
            error.__cause__ = fault.__cause__
            state.errors.append(error)


def _settle_clashes(state: Resolution, config: EngineConfig) -> None:
    """Two plugins that offer one name are an error, unless exactly one of them may override."""
    for name in config.override_plugins:
        if name not in {c.name for c in (*state.candidates, *state.disabled)}:
            near = plugin_suggestion(name, state.loaded)
            state.errors.append(ConfigError(f"override_plugins: no plugin is called {name!r}{near}"))
    for kind in COLLECTING.values():
        claims: dict[str, list[Loaded]] = {}
        for one in state.loaded.values():
            for entry in one.entries.get(kind.registry, ()):
                claims.setdefault(entry.name, []).append(one)
        for name, claimants in claims.items():
            winners = [one for one in claimants if one.name in config.override_plugins]
            if len(claimants) == 1 or len(winners) == 1:
                continue
            reason = f"{kind.word} {name!r} is offered by {' and by '.join(str(c.candidate.origin) for c in claimants)}"
            mend = "disable one of them with disable_plugins, or let one win with override_plugins"
            state.errors.append(PluginFault(f"{reason}; {mend}"))
            for one in claimants:
                if one.name != BUILTIN and one.name in state.loaded:
                    state.break_plugin(one.candidate, PluginFault(reason, mend))


def _parse_options(state: Resolution, config: EngineConfig, sources: Mapping[str, str]) -> None:
    state.options = {one.name: one.schema() for one in state.loaded.values() if one.schema}
    disabled = {candidate.name for candidate in state.disabled}
    for name, given in config.plugins.items():
        if name in disabled:
            state.errors.append(ConfigError(f"plugins.{name}: the plugin is disabled; enable it or drop its options"))
        elif name not in state.loaded:
            if not any(b.origin.plugin == name for b in state.broken):  # a broken one was reported already
                state.errors.append(ConfigError(_nobodys_options(name, state.loaded, sources)))
        elif (schema := state.loaded[name].schema) is None:
            state.errors.append(ConfigError(f"plugins.{name}: the plugin has no options"))
        else:
            try:
                state.options[name] = _options(name, schema, given, sources)
            except ConfigError as error:
                state.errors.append(error)


def _nobodys_options(name: str, loaded: Collection[str], sources: Mapping[str, str]) -> str:
    source = next((f" from {sources[key]}" for key in sources if key.startswith(f"plugins.{name}.")), "")
    there = ", ".join(sorted(set(loaded) - {BUILTIN})) or "none"
    return (
        f"plugins.{name}: no such plugin is installed{plugin_suggestion(name, loaded)}; installed: {there}; "
        f"install the plugin, or remove its options{source}"
    )


def _options(name: str, schema: type[Section], given: Mapping[str, Any], sources: Mapping[str, str]) -> Section:
    prefix = f"plugins.{name}."
    leaves = leaves_of(schema, prefix)
    values: dict[str, Any] = {}
    for option, value in given.items():
        key = prefix + option
        source = sources.get(key, "")
        if key not in leaves:
            there = ", ".join(key.removeprefix(prefix) for key in leaves) or "none"
            origin = f" from {source}" if source else ""
            raise ConfigError(f"unknown option {key!r}{origin}{suggestion(key, leaves)}; the plugin has: {there}")
        # environment and command line give text, so text is read leniently wherever it comes from
        values[option] = leaves[key].convert(value, source, text=isinstance(value, str))
    try:
        return schema(**values)
    except (TypeError, ValueError) as error:  # the schema's own __post_init__
        raise ConfigError(f"plugins.{name}: {error}") from error


def _freeze(state: Resolution, config: EngineConfig) -> Extensions:
    loaded = [state.loaded[name] for name in sorted(state.loaded)]
    broken = tuple(sorted(state.broken, key=lambda b: (b.origin.plugin, b.origin.distribution)))
    fields: dict[str, Any] = dict(rank_makers(loaded))
    for kind in COLLECTING.values():
        offers: dict[str, Offer[Any]] = {}
        for one in loaded:
            for entry in one.entries.get(kind.registry, ()):
                if entry.name not in offers or one.name in config.override_plugins:
                    offers[entry.name] = Offer(entry, one.candidate.origin)
        fields[kind.registry] = Registry(kind.word, offers, broken)
    origins = tuple(one.candidate.origin for one in loaded)
    return Extensions(**fields, options=dict(state.options), plugins=origins, broken=broken)


def _check_named(state: Resolution, config: EngineConfig, extensions: Extensions) -> None:
    """Things that the configuration names must be on offer."""
    named: list[tuple[Registry[Any], str]] = [
        (extensions.executors, config.parallel.executor),
        (extensions.drafters, config.speculation.drafter),
        *((extensions.logits_processors, name) for name in config.sampling.logits_processors),
    ]
    if config.attention.backend != "auto":
        named.append((extensions.attention_backends, config.attention.backend))
    for registry, name in named:
        if name not in registry:
            state.errors.append(PluginError(registry.not_found(name)))
