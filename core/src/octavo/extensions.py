"""What plugin resolution ends in: one frozen record of everything on offer, with who offers it.

Owns: `Extensions` and look-ups with good errors. Must never know: pluggy, entry points, how plugins were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from octavo.config import Section
from octavo.errors import OctavoError, PluginError, quoted, suggestion
from octavo.spec import (
    AttentionBackendEntry,
    Command,
    DrafterEntry,
    ExecutorEntry,
    KVPolicyEntry,
    LogitsProcessorEntry,
    ModelEntry,
    ModelTransform,
    PlatformEntry,
    ReasoningParserEntry,
    RouteEntry,
    ToolParserEntry,
    WeightFormatEntry,
    load_factory,
)

T = TypeVar("T")
P = TypeVar("P", ToolParserEntry, ReasoningParserEntry)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who offers a thing."""

    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """A thing on offer, and by whom."""

    entry: T
    origin: Origin

    def make(self, *arguments: Any) -> Any:
        """Call the entry's factory. Raises `PluginError` naming the plugin if it fails or makes nothing."""
        entry: Any = self.entry
        try:
            made = load_factory(entry.factory)(*arguments)
        except OctavoError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin {self.origin} cannot make {entry.name!r}: {error!r}") from error
        if made is None:
            raise PluginError(f"plugin {self.origin} cannot make {entry.name!r}: its factory returned None")
        return made


@dataclass(frozen=True, slots=True)
class Broken:
    """An installed plugin that could not be loaded: nothing of it is on offer."""

    origin: Origin
    reason: str
    mend: str = ""
    """What the user can do about it."""

    def __str__(self) -> str:
        return f"plugin {self.origin} is broken: {self.reason}"


class Registry(Mapping[str, Offer[T]]):
    """Offers of one kind by name, in the plugins' alphabetical order; a failed look-up says what there is."""

    def __init__(self, kind: str, offers: Mapping[str, Offer[T]], broken: tuple[Broken, ...] = ()) -> None:
        self.kind = kind
        self._offers = MappingProxyType(dict(offers))
        self._broken = broken

    def __getitem__(self, name: str) -> Offer[T]:
        return self._offers[name]

    def __iter__(self):
        return iter(self._offers)

    def __len__(self) -> int:
        return len(self._offers)

    def find(self, name: str) -> Offer[T]:
        """The offer of that name. Raises `PluginError` listing what exists and what is broken."""
        if name in self._offers:
            return self._offers[name]
        raise PluginError(self.not_found(name))

    def not_found(self, name: str) -> str:
        """The message for a name that nobody offers."""
        parts = [f"no {self.kind} is called {quoted(name)}{suggestion(name, self._offers)}"]
        there = ", ".join(f"{n} [{o.origin.plugin}]" for n, o in self._offers.items())
        parts.append(f"there is: {there}" if there else f"no installed plugin offers any {self.kind}")
        if self._broken:
            parts.append(
                "broken plugins that might offer it: " + "; ".join(f"{b.origin}: {b.reason}" for b in self._broken)
            )
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """Everything that plugins offer to one engine. Built once, never changed."""

    models: Registry[ModelEntry]
    weight_formats: Registry[WeightFormatEntry]
    attention_backends: Registry[AttentionBackendEntry]
    kv_policies: Registry[KVPolicyEntry]
    drafters: Registry[DrafterEntry]
    logits_processors: Registry[LogitsProcessorEntry]
    executors: Registry[ExecutorEntry]
    platforms: Registry[PlatformEntry]
    tool_parsers: Registry[ToolParserEntry]
    reasoning_parsers: Registry[ReasoningParserEntry]
    commands: Registry[Command]
    routes: Registry[RouteEntry]
    model_transforms: Registry[ModelTransform]
    backend_choosers: tuple[Offer[Callable[..., Any]], ...] = ()
    verifier_makers: tuple[Offer[Callable[..., Any]], ...] = ()
    queue_makers: tuple[Offer[Callable[..., Any]], ...] = ()
    observer_makers: tuple[Offer[Callable[..., Any]], ...] = ()
    options: Mapping[str, Section] = field(default_factory=dict)
    """Each plugin's own options, parsed by its schema, by plugin name."""
    plugins: tuple[Origin, ...] = ()
    """The plugins that are loaded; a worker process loads exactly these."""
    broken: tuple[Broken, ...] = ()

    def options_of(self, offer: Offer[Any]) -> Section | None:
        """Options of the plugin behind an offer; None if it declares none."""
        return self.options.get(offer.origin.plugin)

    def suiting(self, parsers: Registry[P], chat_template: str) -> Offer[P] | None:
        """What `auto` takes of `tool_parsers` or `reasoning_parsers` for a model: the highest priority that suits.

        Raises `PluginError` if a parser cannot tell.
        """
        found: list[Offer[P]] = []
        for offer in parsers.values():
            try:
                suits = offer.entry.suits(chat_template)
            except Exception as error:
                raise PluginError(
                    f"plugin {offer.origin} cannot tell whether {parsers.kind} {offer.entry.name!r} suits the model's "
                    f"chat template: {error!r}; name a {parsers.kind} instead of auto"
                ) from error
            if suits:
                found.append(offer)
        return max(found, key=lambda offer: offer.entry.priority, default=None)

    def first(self, makers: tuple[Offer[Callable[..., Any]], ...], kind: str, name: str) -> Any:
        """The first maker's answer that is not None, or `PluginError`."""
        for maker in makers:
            try:
                made = maker.entry(name)
            except Exception as error:
                raise PluginError(f"plugin {maker.origin} failed to make {kind} {name!r}: {error!r}") from error
            if made is not None:
                return made
        asked = ", ".join(str(m.origin) for m in makers)
        raise PluginError(f"no plugin makes the {kind} {name!r} (asked: {asked}); see `octavo plugins`")
