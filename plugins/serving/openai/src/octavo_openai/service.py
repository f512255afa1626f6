"""The model as handlers see it: whether it can answer, what it is called, how its messages are parsed.

Owns: `Service`. Must never know: HTTP, what an answer looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from octavo import AsyncLLM
from octavo.errors import EngineDeadError, suggestion
from octavo.spec import MakeReasoningParser, ReasoningParserEntry, ToolParserEntry
from octavo_openai.errors import MODEL_LOADING, APIError
from octavo_openai.observation.metrics import EngineMetrics
from octavo_openai.observation.token_count import TokenCounts
from octavo_openai.options import ServerOptions

if TYPE_CHECKING:
    from octavo.extensions import Extensions, Offer, Registry

P = TypeVar("P", ToolParserEntry, ReasoningParserEntry)

_MODEL_SUFFIX = re.compile(r"(\.(I?Q\d\w*|[BF]\d+))?\.gguf$", re.IGNORECASE)
"""What the name of a model file has behind the model's own."""


class Service:
    """Without a model until `attach`; from then on as long as the engine lives and the server is not draining."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.created = int(time.time())
        """Seconds since 1970."""
        self.model_names: tuple[str, ...] = ()
        """All of them are the one model; the first is its own."""
        self.tool_parser: Offer[ToolParserEntry] | None = None
        self.make_reasoning_parser: MakeReasoningParser | None = None
        self.draining = False
        self.turns = asyncio.Lock()
        """Whoever holds it does a part of some work that would take too long in one go, and lets it go."""
        self.metrics: EngineMetrics | None = None
        """Counts since `attach`."""
        self.token_counts = TokenCounts()
        self._llm: AsyncLLM | None = None
        self._num_logprob_entries = 0
        """Those that live requests may bring."""

    def attach(self, llm: AsyncLLM) -> None:
        """Answer with this model from now on. Raises `PluginError` for a parser that nobody offers."""
        template = (llm.tokenizer and llm.tokenizer.chat_template) or ""
        extensions, options = llm.extensions, self.options
        self.tool_parser = _choose_parser(extensions, extensions.tool_parsers, options.tool_parser, template)
        reasoning = _choose_parser(extensions, extensions.reasoning_parsers, options.reasoning_parser, template)
        self.make_reasoning_parser = None if reasoning is None else reasoning.make
        self.model_names = options.served_model_name or _names_of(llm)
        self.metrics = EngineMetrics(self.model_names[0])
        for observer in (self.metrics, self.token_counts):
            llm.observe(observer)
        self._llm = llm

    @property
    def llm(self) -> AsyncLLM:
        """The engine, able to take requests. Raises `APIError` (503) or `EngineDeadError` while it is not."""
        if self.draining:
            raise APIError.unavailable("the server is about to stop", "draining")
        if self._llm is None:
            raise still_loading()
        if self._llm.error is not None:
            raise EngineDeadError(str(self._llm.error))
        return self._llm

    def check_ready(self) -> None:
        """Raises what `llm` raises."""
        _ = self.llm

    def admit(self) -> AsyncLLM:
        """The engine, for one more request that computes. Raises also `APIError` (429) while too many wait."""
        llm = self.llm
        if llm.num_waiting > self.options.max_queued_requests:
            message = f"{llm.num_waiting} requests wait already; try again later"
            raise APIError.unavailable(message, "rate_limit_exceeded", status=429)
        return llm

    @contextlib.contextmanager
    def room_for_logprobs(self, num_entries: int) -> Generator[None]:
        """Room for so many, until it is left.

        Raises `APIError` (429) where they do not fit beside those of other requests; alone, any number does.
        """
        taken, limit = self._num_logprob_entries, self.options.max_live_logprob_entries
        if taken and taken + num_entries > limit:
            message = (
                f"{num_entries} log probabilities do not fit beside others' {taken}; ask for fewer, or again later"
            )
            raise APIError.unavailable(message, "rate_limit_exceeded", status=429)
        self._num_logprob_entries += num_entries
        try:
            yield
        finally:
            self._num_logprob_entries -= num_entries

    def find_model(self, name: str | None) -> str:
        """The name to answer under; None takes the model's own.

        Raises `APIError` (404) for an unknown one, and what `llm` raises.
        """
        self.check_ready()  # it has no names before it is there
        names = self.model_names
        if name is None or name in names:
            return name or names[0]
        message = f"the model {name!r} does not exist{suggestion(name, names)}; there is: {', '.join(names)}"
        raise APIError(404, message, param="model", code="model_not_found")


def still_loading() -> APIError:
    return APIError.unavailable("the model is being loaded", MODEL_LOADING)


def _choose_parser(extensions: Extensions, parsers: Registry[P], name: str, chat_template: str) -> Offer[P] | None:
    if name == "none":
        return None
    return extensions.suiting(parsers, chat_template) if name == "auto" else parsers.find(name)


def _names_of(llm: AsyncLLM) -> tuple[str, ...]:
    """The name of the model's folder or file, and the path or hub id that it was asked for by."""
    given = llm.config.model.path
    path = given or llm.description["model"]
    if given is not None and not Path(given).exists():
        return (given,)  # a hub id
    name = _MODEL_SUFFIX.sub("", Path(path).resolve().name)
    return (name,) if given is None else tuple(dict.fromkeys((name, given)))
