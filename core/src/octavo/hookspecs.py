"""The hooks through which a plugin offers things. Called only while an engine or the CLI is being built.

A plugin is a module with functions of these names, marked with `hookimpl`:

    from octavo.hookspecs import hookimpl
    from octavo.spec import ModelEntry

    @hookimpl
    def octavo_register_models():
        return [ModelEntry(name="MyForCausalLM", factory="my_plugin.model:MyForCausalLM")]

Owns: names and signatures of the hooks. Must never know: who calls them, or in which order.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from octavo.config import EngineConfig, Section
from octavo.spec import (
    AttentionBackendEntry,
    AttentionLayerParams,
    Command,
    DrafterEntry,
    ExecutorEntry,
    KVCacheSpec,
    KVPolicyEntry,
    LogitsProcessorEntry,
    ModelEntry,
    ModelTransform,
    Observer,
    PlatformEntry,
    ReasoningParserEntry,
    RouteEntry,
    ToolParserEntry,
    Verifier,
    WaitingQueue,
    WeightFormatEntry,
)

PROJECT = "octavo"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def octavo_options() -> type[Section]:
    """The plugin's options: a `Section` subclass, filled from `plugins.<name>` of the configuration."""
    raise NotImplementedError


@hookspec
def octavo_register_models() -> Iterable[ModelEntry]:
    """Model classes, by architecture name."""
    raise NotImplementedError


@hookspec
def octavo_register_weight_formats() -> Iterable[WeightFormatEntry]:
    """Formats of model files: which paths they can read, and how to open them."""
    raise NotImplementedError


@hookspec
def octavo_register_attention_backends() -> Iterable[AttentionBackendEntry]:
    """Attention backends, each with what it supports and its priority."""
    raise NotImplementedError


@hookspec
def octavo_register_kv_policies() -> Iterable[KVPolicyEntry]:
    """Policies for kinds of KV cache specs."""
    raise NotImplementedError


@hookspec
def octavo_register_drafters() -> Iterable[DrafterEntry]:
    """Drafters for speculative decoding. They do nothing until `speculation.drafter` names one."""
    raise NotImplementedError


@hookspec
def octavo_register_logits_processors() -> Iterable[LogitsProcessorEntry]:
    """Logits processors. They do nothing until the configuration or a request's `extra_args` names them."""
    raise NotImplementedError


@hookspec
def octavo_register_executors() -> Iterable[ExecutorEntry]:
    """Executors: where model runners run."""
    raise NotImplementedError


@hookspec
def octavo_register_platforms() -> Iterable[PlatformEntry]:
    """Kinds of device."""
    raise NotImplementedError


@hookspec
def octavo_register_tool_parsers() -> Iterable[ToolParserEntry]:
    """Ways to write calls of tools in text. A server uses the one that is named, or that suits the model."""
    raise NotImplementedError


@hookspec
def octavo_register_reasoning_parsers() -> Iterable[ReasoningParserEntry]:
    """Ways to set reasoning apart from the answer. A server uses the one that is named, or that suits the model."""
    raise NotImplementedError


@hookspec
def octavo_register_commands() -> Iterable[Command]:
    """Subcommands of `octavo`."""
    raise NotImplementedError


@hookspec
def octavo_register_routes() -> Iterable[RouteEntry]:
    """Paths that a server answers besides its own API."""
    raise NotImplementedError


@hookspec
def octavo_transform_models() -> Iterable[ModelTransform]:
    """Steps between loading a model and using it, applied in rising priority."""
    raise NotImplementedError


@hookspec
def octavo_make_observers(config: EngineConfig, options: Section | None) -> Iterable[Observer]:
    """Observers for a new engine. `options` are the plugin's own, as `octavo_options` describes them."""
    raise NotImplementedError


@hookspec(firstresult=True)
def octavo_choose_attention_backend(
    layer: AttentionLayerParams, spec: KVCacheSpec, device: str, dtype: str, candidates: tuple[str, ...]
) -> str | None:
    """Name of the backend for one KV cache group, out of those that support it; None leaves it to others."""
    raise NotImplementedError


@hookspec(firstresult=True)
def octavo_make_verifier(name: str) -> Verifier | None:
    """The acceptance rule of that name; None if it is not this plugin's."""
    raise NotImplementedError


@hookspec(firstresult=True)
def octavo_make_queue(policy: str) -> WaitingQueue | None:
    """A waiting queue with that policy; None if it is not this plugin's."""
    raise NotImplementedError
