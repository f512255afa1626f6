"""What can be said about plugins: each one's state, what it offers, and every problem with its mend.

Owns: the records behind `octavo plugins`. Must never know: how they are printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import msgspec

from octavo.config import EngineConfig
from octavo.errors import one_line
from octavo.extensions import Extensions, Offer, Origin
from octavo.plugins.discovery import PluginFault
from octavo.plugins.keys import leaves_of
from octavo.plugins.loading import CALLABLES, COLLECTING, MAKERS, Loaded
from octavo.plugins.resolve import Resolution
from octavo.spec import load_factory

State = Literal["active", "idle", "disabled", "broken"]
_WAITING_MAKERS = {"octavo_make_verifier", "octavo_make_queue"}


@dataclass(frozen=True, slots=True)
class OfferReport:
    """One thing on offer."""

    kind: str
    name: str
    capabilities: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptionReport:
    """One option of a plugin."""

    name: str
    type: str
    default: Any
    value: Any
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """One plugin."""

    name: str
    distribution: str
    version: str
    requires: str = ""
    """The core versions that it says it works with."""
    state: State
    reason: str = ""
    """Why it is broken."""
    hooks: tuple[str, ...] = ()
    offers: tuple[OfferReport, ...] = ()
    options: tuple[OptionReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, and what to do about it."""

    plugin: str
    """Whose; empty if no single plugin's."""
    problem: str
    mend: str


class Survey:
    """Everything that is known about plugins under one configuration."""

    def __init__(self, config: EngineConfig, extensions: Extensions, resolution: Resolution) -> None:
        self.config = config
        self.extensions = extensions
        self._resolution = resolution

    def plugins(self) -> list[PluginReport]:
        """One report for each plugin, by name."""
        requires = {c.origin: c.requires for c in (*self._resolution.candidates, *self._resolution.disabled)}
        reports = [self._of_loaded(one) for one in self._resolution.loaded.values()]
        for broken in self.extensions.broken:
            reports.append(_report(broken.origin, requires.get(broken.origin, ""), "broken", reason=broken.reason))
        reports += [_report(c.origin, c.requires, "disabled") for c in self._resolution.disabled]
        return sorted(reports, key=lambda report: (report.name, report.distribution))

    def problems(self) -> list[Problem]:
        """Everything wrong, with its mend. Imports all that is on offer, torch too."""
        extensions = self.extensions
        problems = [Problem(b.origin.plugin, f"{b.origin} is broken: {b.reason}", b.mend) for b in extensions.broken]
        for error in self._resolution.errors:
            if not isinstance(error, PluginFault):  # those are about broken plugins
                problems.append(Problem("", str(error), "correct the configuration; `octavo config` shows its sources"))
        problems += [problem for one in self._resolution.loaded.values() for problem in _import_problems(one)]
        for offer in extensions.attention_backends.values():
            if reason := _unavailable(offer):
                mend = f"give it what it lacks, or disable plugin {offer.origin.plugin}"
                problems.append(
                    Problem(offer.origin.plugin, f"attention backend {offer.entry.name!r} cannot run: {reason}", mend)
                )
        needed = (
            (extensions.models, "llama"),
            (extensions.weight_formats, "safetensors"),
            (extensions.attention_backends, "torch-sdpa"),
        )
        for registry, package in needed:
            if not registry:
                mend = f"install one, for example octavo-{package}, and see that it is not disabled"
                problems.append(Problem("", f"no installed plugin offers any {registry.kind}", mend))
        return problems

    def _of_loaded(self, one: Loaded) -> PluginReport:
        offers = [
            OfferReport(kind.word, entry.name, _capabilities(entry))
            for kind in COLLECTING.values()
            for entry in one.entries.get(kind.registry, ())
        ]
        options: list[OptionReport] = []
        if one.schema:
            values = self.extensions.options[one.name]
            for leaf in leaves_of(one.schema).values():
                value = getattr(values, leaf.key, leaf.default)
                options.append(OptionReport(leaf.key, leaf.type_name, _plain(leaf.default), _plain(value), leaf.help))
        return _report(
            one.candidate.origin,
            one.candidate.requires,
            "active" if self._is_active(one) else "idle",
            hooks=tuple(sorted(one.hooks)),
            offers=tuple(offers),
            options=tuple(options),
        )

    def _is_active(self, one: Loaded) -> bool:
        """Whether anything of it takes part; a drafter that nobody selected does not."""
        config = self.config
        named = {
            "drafters": {config.speculation.drafter},
            "logits_processors": set(config.sampling.logits_processors),
            "executors": {config.parallel.executor},
        }
        for registry, entries in one.entries.items():
            for entry in entries:
                if registry not in named or entry.name in named[registry] or getattr(entry, "always", False):
                    return True
        makers = {hook for hook in one.hooks if hook in MAKERS}
        chosen = config.sampling.verifier != "exact" or config.scheduler.policy not in ("fcfs", "priority")
        return bool(makers - _WAITING_MAKERS) or (bool(makers) and chosen)


def _report(origin: Origin, requires: str, state: State, **details: Any) -> PluginReport:
    return PluginReport(
        name=origin.plugin,
        distribution=origin.distribution,
        version=origin.version,
        requires=requires,
        state=state,
        **details,
    )


def _import_problems(one: Loaded) -> Iterator[Problem]:
    """What of the plugin's import strings leads nowhere."""
    mend = "correct it, if the plugin is yours; otherwise install what it lacks, update it, or disable it"
    for kind in COLLECTING.values():
        for entry in one.entries.get(kind.registry, ()):
            for name in CALLABLES:
                if not isinstance(target := getattr(entry, name, None), str):
                    continue
                try:
                    found = load_factory(target)
                except (Exception, SystemExit) as error:
                    reason = f"cannot be imported: {type(error).__name__}: {one_line(error)}"
                else:
                    reason = "" if callable(found) else "is not callable"
                if reason:
                    what = f"{one.candidate.origin}: {name} {target!r} of {kind.word} {entry.name!r}"
                    yield Problem(one.name, f"{what} {reason}", mend)


def _unavailable(offer: Offer[Any]) -> str | None:
    try:
        return offer.entry.unavailable()
    except Exception as error:  # the report must come out whatever a plugin does
        return f"asking it failed: {type(error).__name__}: {error}"


def _capabilities(entry: Any) -> dict[str, Any]:
    """What an entry declares besides its name and how to make it."""
    found: dict[str, Any] = {}
    for field in fields(entry):
        value = getattr(entry, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            found |= _capabilities(value)
        elif field.name != "name" and (isinstance(value, type) or not callable(value)):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return msgspec.to_builtins(value, enc_hook=repr)
