"""One plugin at a time: import it, check its hooks, ask it what it offers.

Owns: `load` and the order in which hook implementations are asked. Must never know: configuration, other plugins'
offers. Implementations are called one by one, so that an exception names its plugin, and a plugin that fails in any
hook offers nothing at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import pluggy

from octavo import hookspecs
from octavo.config import Section
from octavo.errors import one_line, suggestion
from octavo.extensions import Offer
from octavo.plugins.discovery import BUILTIN, Candidate, PluginFault
from octavo.plugins.keys import leaves_of
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
)

OPTIONS_HOOK = "octavo_options"
HOOKS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(hook).parameters)
    for name, hook in vars(hookspecs).items()
    if name.startswith("octavo_")
}
"""Every hook and the arguments that it passes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What one collecting hook yields, and where it goes."""

    registry: str
    """Field of `Extensions`."""
    word: str
    record: type


COLLECTING: Mapping[str, Kind] = {
    "octavo_register_models": Kind("models", "model", ModelEntry),
    "octavo_register_weight_formats": Kind("weight_formats", "weight format", WeightFormatEntry),
    "octavo_register_attention_backends": Kind("attention_backends", "attention backend", AttentionBackendEntry),
    "octavo_register_kv_policies": Kind("kv_policies", "KV policy", KVPolicyEntry),
    "octavo_register_drafters": Kind("drafters", "drafter", DrafterEntry),
    "octavo_register_logits_processors": Kind("logits_processors", "logits processor", LogitsProcessorEntry),
    "octavo_register_executors": Kind("executors", "executor", ExecutorEntry),
    "octavo_register_platforms": Kind("platforms", "platform", PlatformEntry),
    "octavo_register_tool_parsers": Kind("tool_parsers", "tool parser", ToolParserEntry),
    "octavo_register_reasoning_parsers": Kind("reasoning_parsers", "reasoning parser", ReasoningParserEntry),
    "octavo_register_commands": Kind("commands", "command", Command),
    "octavo_register_routes": Kind("routes", "route", RouteEntry),
    "octavo_transform_models": Kind("model_transforms", "model transform", ModelTransform),
}
MAKERS: Mapping[str, str] = {
    "octavo_choose_attention_backend": "backend_choosers",
    "octavo_make_verifier": "verifier_makers",
    "octavo_make_queue": "queue_makers",
    "octavo_make_observers": "observer_makers",
}
"""Hooks that the engine calls itself, later, to the field of `Extensions` that holds their implementations."""

CALLABLES = ("factory", "configure", "run", "apply", "can_read", "unavailable", "suits", "spell_out")
"""Fields of entries that hold a callable or the import string of one."""
_RENAME = "rename it, if the plugin is yours; otherwise update it, uninstall it, or disable it: disable_plugins"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that passed every check."""

    candidate: Candidate
    hooks: Mapping[str, pluggy.HookImpl]
    entries: Mapping[str, tuple[Any, ...]]
    """What it offers, by field of `Extensions`."""
    schema: type[Section] | None

    @property
    def name(self) -> str:
        return self.candidate.name


def load(candidate: Candidate) -> Loaded:
    """Import and question one plugin. Raises `PluginFault` with the reason if anything about it is wrong."""
    if candidate.fault:
        raise candidate.fault
    try:
        plugin = candidate.load()
    except (Exception, SystemExit) as error:  # a plugin may not end the program; Ctrl-C may
        raise PluginFault(f"importing it failed: {type(error).__name__}: {one_line(error)}") from error
    implementations = _implementations(plugin)
    if not implementations:
        raise PluginFault(f"it has no hooks; does its entry point name the right module? ({_describe(plugin)})")
    entries = {
        kind.registry: _entries(hook, kind, implementations[hook])
        for hook, kind in COLLECTING.items()
        if hook in implementations
    }
    schema = _schema(implementations[OPTIONS_HOOK]) if OPTIONS_HOOK in implementations else None
    return Loaded(candidate, implementations, entries, schema)


def rank_makers(loaded: Sequence[Loaded]) -> dict[str, tuple[Offer[Callable[..., Any]], ...]]:
    """Implementations of the hooks that the engine calls itself, by field of `Extensions`, in the order to ask them.

    By plugin name, built-ins last; `tryfirst` and `trylast` are respected.
    """

    def rank(one: Loaded, hook: str) -> tuple[bool, bool, bool, str]:
        implementation = one.hooks[hook]
        return implementation.trylast, not implementation.tryfirst, one.name == BUILTIN, one.name

    return {
        registry: tuple(
            Offer(_maker(hook, one.hooks[hook]), one.candidate.origin)
            for one in sorted((one for one in loaded if hook in one.hooks), key=lambda one: rank(one, hook))
        )
        for hook, registry in MAKERS.items()
    }


def _implementations(plugin: object) -> dict[str, pluggy.HookImpl]:
    """The plugin's hook implementations by hook, each one checked."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    found: dict[str, pluggy.HookImpl] = {}
    for attribute in dir(plugin):
        try:
            value: Any = getattr(plugin, attribute, None)
            options = manager.parse_hookimpl_opts(plugin, attribute)
        except (Exception, SystemExit) as error:  # a property, and pluggy looks at every attribute
            raise PluginFault(f"its {attribute} raised {type(error).__name__}: {one_line(error)}") from error
        if options is None:
            if attribute.startswith("octavo_") and not isinstance(value, ModuleType):
                if attribute in HOOKS:
                    raise PluginFault(f"{attribute} is not marked with @hookimpl of octavo.hookspecs")
                raise PluginFault(f"no hook is called {attribute}{suggestion(attribute, HOOKS)}", _RENAME)
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            if options.get("optionalhook"):
                continue
            raise PluginFault(f"no hook is called {hook}{suggestion(hook, HOOKS)}", _RENAME)
        if options.get("wrapper") or options.get("hookwrapper"):
            raise PluginFault(f"{hook} wraps other plugins' hooks; each plugin is asked alone, so wrappers never run")
        implementation = pluggy.HookImpl(plugin, "", value, options)
        surplus = [name for name in implementation.argnames if name not in HOOKS[hook]]
        if surplus:
            passes = ", ".join(HOOKS[hook]) or "nothing"
            raise PluginFault(f"{hook} takes {', '.join(surplus)}; the hook passes {passes}")
        found[hook] = implementation
    return found


def _ask(hook: str, implementation: pluggy.HookImpl) -> Any:
    try:
        answer = implementation.function()
        # a generator runs its body only now
        return tuple(answer) if hook != OPTIONS_HOOK and isinstance(answer, Iterable) else answer
    except (Exception, SystemExit) as error:
        raise PluginFault(f"{hook} raised {type(error).__name__}: {one_line(error)}") from error


def _entries(hook: str, kind: Kind, implementation: pluggy.HookImpl) -> tuple[Any, ...]:
    answer = _ask(hook, implementation)
    if not isinstance(answer, tuple):
        raise PluginFault(f"{hook} returned {_describe(answer)}, not a list of {kind.record.__name__}")
    names: set[str] = set()
    for entry in answer:
        if not isinstance(entry, kind.record):
            raise PluginFault(f"{hook} returned {_describe(entry)} among its entries, not a {kind.record.__name__}")
        if not isinstance(entry.name, str) or not entry.name:
            raise PluginFault(f"{hook} returned an entry whose name is {entry.name!r}")
        if entry.name in names:
            raise PluginFault(f"{hook} returned two entries called {entry.name!r}")
        names.add(entry.name)
        for field in fields(entry):
            factory = getattr(entry, field.name)
            if field.name not in CALLABLES or (factory is None and field.default is None):
                continue
            if not callable(factory) and not _is_import_string(factory):
                raise PluginFault(f"{hook}: {field.name} of {entry.name!r} must be callable or 'module:name'")
    return answer


def _schema(implementation: pluggy.HookImpl) -> type[Section]:
    schema = _ask(OPTIONS_HOOK, implementation)
    if not (isinstance(schema, type) and issubclass(schema, Section)):
        raise PluginFault(f"{OPTIONS_HOOK} returned {_describe(schema)}, not a subclass of octavo.config.Section")
    try:
        leaves = leaves_of(schema)
        schema()
    except (TypeError, NameError) as error:
        raise PluginFault(f"its options need resolvable types and defaults: {one_line(error)}") from error
    if nested := next((key for key in leaves if "." in key), None):
        raise PluginFault(f"its options must be flat, not {nested}")
    return schema


def _maker(hook: str, implementation: pluggy.HookImpl) -> Callable[..., Any]:
    """A plain function that takes what the hook passes and hands on what the implementation wants of it."""
    names = HOOKS[hook]

    def call(*positional: Any, **named: Any) -> Any:
        given = dict(zip(names, positional, strict=False)) | named
        return implementation.function(*(given[name] for name in implementation.argnames))

    return call


def _is_import_string(value: object) -> bool:
    if not isinstance(value, str):
        return False
    module, colon, name = value.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), name])


def _describe(value: object) -> str:
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    return repr(value) if value is None or isinstance(value, str | int) else f"a {type(value).__name__}"
