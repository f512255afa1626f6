"""What hooks return: small records that name a thing and say how to make it. Making it is put off until it is used.

A `Factory` is a callable, or better an import string `"package.module:name"`, so that a plugin's entry module
stays free of heavy imports.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from octavo.spec.attention import AttentionCapabilities
from octavo.spec.dialogue import MakeReasoningParser, MakeToolParser, SpellOut
from octavo.spec.kv import KVCacheSpec

Factory = Callable[..., Any] | str
F = TypeVar("F", bound=Callable[..., Any])
HTTPMethod = Literal["GET", "POST", "PUT", "DELETE"]

_PARAMETER_NAME = re.compile(r"\{\w+")
_ROUTE_PATH = re.compile(r"(/([\w.~-]+|\{[a-z_]+(:path)?\}))+")


def load_factory(factory: F | str) -> F:
    """The callable itself, or the one that an import string names."""
    if not isinstance(factory, str):
        return factory
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model class: `factory(config, context) -> Model`."""

    name: str
    """The architecture as `config.json` names it, `LlamaForCausalLM`."""
    factory: Factory


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormatEntry:
    """A format of model files: `factory(path) -> ModelSource`."""

    name: str
    can_read: Callable[[str], bool]
    """Whether an existing path looks like this format; cheap, never raises."""
    factory: Factory
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackendEntry:
    """An attention backend: `factory(options) -> AttentionBackend`."""

    name: str
    factory: Factory
    capabilities: AttentionCapabilities
    priority: int = 0
    """`auto` takes the highest that supports the layers; references have 0, native backends 100."""
    unavailable: Callable[[], str | None] = field(default=lambda: None)
    """Why this machine cannot run it (no compiler, no GPU), or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPolicyEntry:
    """The policy of a kind of KV cache: `factory(spec, max_step_tokens) -> KVPolicy`.

    `max_step_tokens` is the most tokens that one step adds to a sequence: a window holds that much more.
    """

    spec_type: type[KVCacheSpec]
    factory: Factory

    @property
    def name(self) -> str:
        return self.spec_type.__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterEntry:
    """A drafter: `factory(target) -> Drafter`."""

    name: str
    factory: Factory
    rewinds: bool = True
    """Whether its drafts can be rejected, so that every KV cache has to be rewindable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessorEntry:
    """A logits processor: `factory(context) -> LogitsProcessor`."""

    name: str
    factory: Factory
    always: bool = False
    """True: asked about every request. False: only where the configuration or `extra_args` names it."""
    order: int = 0
    """Processors apply in rising order; masks (grammars) come last, at 100."""
    refines_drafts: bool = False
    """Whether it has `refine_drafts`; see `RefinesDrafts`."""
    grammar_kinds: frozenset[str] = frozenset()
    """Kinds of `StructuredOutputsParams` that it enforces; exactly one such processor gets a request that has one."""
    priority: int = 0
    """Among those that enforce a kind, the highest serves requests that name no backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorEntry:
    """An executor: `factory(context) -> Executor`."""

    name: str
    factory: Factory


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEntry:
    """A platform: `factory() -> Platform`."""

    name: str
    factory: Factory
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParserEntry:
    """A way to write calls of tools in text: `factory(tools) -> MessageParser`.

    `tools` are those that the request offers, as chat templates get them (see `Tool`).
    """

    name: str
    factory: MakeToolParser | str
    suits: Callable[[str], bool]
    """Whether a model with this chat template (Jinja source) writes calls so; cheap, never raises."""
    priority: int = 0
    """`auto` takes the highest that suits."""
    spell_out: SpellOut | str | None = None
    """`spell_out(messages, tools) -> messages`: a conversation about tools told in plain messages (tools in the
    system message, calls and results in the model's own format), for a chat template that has no word for `tools`.
    None: the format is that of models whose templates have."""
    keep_special_tokens: bool = False
    """Whether marks of the format are special tokens, so that the text must be made with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParserEntry:
    """A way to set reasoning apart from the answer: `factory(prompt) -> MessageParser`, without calls of tools.

    `prompt` is the text that the model continues, or the end of it: where a chat template opens the reasoning itself,
    the output starts inside.
    """

    name: str
    factory: MakeReasoningParser | str
    suits: Callable[[str], bool]
    """Whether a model with this chat template (Jinja source) reasons so; cheap, never raises."""
    priority: int = 0
    """`auto` takes the highest that suits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTransform:
    """A step between loading and use (quantise, prepack, compile): `apply(model, options) -> Model`."""

    name: str
    apply: Factory
    priority: int = 0
    """Transforms run in rising order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand of `octavo`."""

    name: str
    """One word, or two (`bench latency`), so that commands of several plugins can share the first one."""
    help: str
    configure: Factory
    """`configure(parser: argparse.ArgumentParser)` adds arguments to the command's own parser."""
    run: Factory
    """`run(arguments: argparse.Namespace) -> int` does it and returns the exit code."""
    takes_engine_options: bool = False
    """True: there is a flag for every key of the configuration, and `arguments.engine_config` is the `EngineConfig`
    that file, environment and flags make. A flag that `configure` adds wins over a short form (`--seed`) like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry:
    """A path that a server answers: `factory(model: ServedModel, options) -> RouteHandler`.

    The factory is called once, in a thread, when the model is loaded; until it returns, the server answers that it is
    loading. The server also sees to keys, limits, timeouts, the log and metrics, and describes the route to clients by
    what stands here.
    Raises `ValueError` for an unknown method, a malformed path, or a body or answer that is no record.
    """

    method: HTTPMethod
    path: str
    """Like `/v1/rerank`. `{name}` stands for one part, `{name:path}` for any number: see `HTTPCall.path`."""
    factory: Factory
    summary: str
    """A few words on what it answers."""
    body: type[msgspec.Struct] | None = None
    """What the JSON of a request must hold. None: a request needs no body."""
    answer: type[msgspec.Struct] | None = None
    """What the JSON of an answer holds, or that of each event. None: it has no schema."""
    streams: bool = False
    """Whether it answers with `HTTPEvents`, always or for some calls."""
    is_open: bool = False
    """Whether it answers without an API key."""

    def __post_init__(self) -> None:
        if self.method not in get_args(HTTPMethod):
            raise ValueError(f"a route has one of the methods {', '.join(get_args(HTTPMethod))}, not {self.method!r}")
        if not _ROUTE_PATH.fullmatch(self.path):
            raise ValueError(f"{self.path!r} is no path of a route; write it like /v1/rerank or /v1/notes/{{id}}")
        names = _PARAMETER_NAME.findall(self.path)
        if len(set(names)) < len(names):
            raise ValueError(f"{self.path!r} has two parameters of one name")
        for kind in (self.body, self.answer):
            made_of = get_origin(kind) or kind  # a generic record has an origin
            if made_of is not None and not (isinstance(made_of, type) and issubclass(made_of, msgspec.Struct)):
                raise ValueError(f"the body or answer of a route is a msgspec.Struct, not {kind!r}")

    @property
    def name(self) -> str:
        """Method and path, its parameters without their names: what no two routes share."""
        return f"{self.method} {_PARAMETER_NAME.sub('{', self.path)}"
