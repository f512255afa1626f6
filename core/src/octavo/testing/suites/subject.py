"""The plugin that a suite is about: its entry, engines with it, how much it holds, what it does in another process.

Owns: `PluginSuite`, `footprint`. Must never know: what any kind of plugin does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import pickle
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import pytest
import torch

from octavo.config import EngineConfig
from octavo.extensions import Extensions, Offer
from octavo.plugins import load_extensions, resolve_settings
from octavo.plugins.discovery import BUILTIN, passed_in
from octavo.request import Request
from octavo.runner.input_batch import RunnerSequence
from octavo.sampling_params import SamplingParams
from octavo.testing.table_model import TablePlugin, table_llm


class PluginSuite:
    """What all suites share; see `octavo.testing.suites`. Without `plugin` it is about what core brings along."""

    plugin: Any = None
    name: str = ""
    options: ClassVar[Mapping[str, Any]] = {}
    helpers: Sequence[Any] = ()

    registry: ClassVar[str]
    """Field of `Extensions` that holds entries of the kind."""

    def llm(self, **keywords: Any) -> Any:
        """An `LLM` that has the plugin and what else the laws hand over as `plugins`; keywords as for `LLM`."""
        plugins = [*self._modules(), *keywords.pop("plugins", ())]
        return table_llm(plugins=plugins, options=self._plugin_options(), **keywords)

    @cached_property
    def offer(self) -> Offer[Any]:
        """The entry under test, with its origin."""
        offers = getattr(self.extensions, self.registry)
        if self.name:
            return offers.find(self.name)
        own = [offer for offer in offers.values() if offer.origin.plugin == self._plugin_name()]
        assert len(own) == 1, f"set `name` to one of {[offer.entry.name for offer in own]}"
        return own[0]

    @cached_property
    def extensions(self) -> Extensions:
        """What the plugin and its helpers offer, next to core and the table model."""
        keywords = {"autoload_plugins": False, "plugins": self._plugin_options()}
        config: EngineConfig = resolve_settings(keywords=keywords).config
        return load_extensions(config, [TablePlugin(), *self._modules()])

    def in_fresh_process(self, method: str, *arguments: Any) -> Any:
        """What the suite's `method` returns where nothing but the plugin's module has been imported."""
        if not isinstance(self.plugin, str | ModuleType | None):
            pytest.skip("the plugin is an object; another process can only import a module")
        suite = next(c for c in type(self).__mro__ if c.__module__.startswith("octavo.testing.suites."))
        fields = {name: value for c in reversed(type(self).__mro__) for name, value in vars(c).items()}
        plain = {name: value for name, value in fields.items() if not name.startswith("_") and _is_plain(value)}
        plain["plugin"] = self.plugin.__name__ if isinstance(self.plugin, ModuleType) else self.plugin
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_ask, sys.path, suite.__module__, suite.__name__, plain, method, arguments).result()

    def _modules(self) -> list[Any]:
        given = (() if self.plugin is None else (self.plugin,), self.helpers)
        return [importlib.import_module(p) if isinstance(p, str) else p for group in given for p in group]

    def _plugin_name(self) -> str:
        return BUILTIN if self.plugin is None else passed_in(self._modules()[0]).origin.plugin

    def _plugin_options(self) -> dict[str, Mapping[str, Any]]:
        return {self._plugin_name(): self.options} if self.options else {}


def _is_plain(value: object) -> bool:
    """Whether another process can be told it: data, no code."""
    if isinstance(value, FunctionType | ModuleType | property | cached_property | classmethod | staticmethod):
        return False
    try:
        pickle.dumps(value)
    except Exception:  # whatever an object's own pickling raises
        return False
    return True


def _ask(
    path: list[str], module: str, suite: str, fields: dict[str, Any], method: str, arguments: tuple[Any, ...]
) -> Any:
    sys.path[:] = path
    torch.set_num_threads(1)
    fresh = type("Fresh", (getattr(importlib.import_module(module), suite),), fields)
    return getattr(fresh(), method)(*arguments)


@contextmanager
def no_errors_logged() -> Generator[None]:
    """Raises `AssertionError` if Octavo logs an error meanwhile: the engine goes on where a plugin has failed."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("octavo")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not records, "; ".join(
        f"{r.getMessage()} {r.exc_info[1]!r}" if r.exc_info else r.getMessage() for r in records
    )


def sequence(
    sequence_id: int,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    params: SamplingParams | None = None,
    **fields: Any,
) -> RunnerSequence:
    """A sequence as plugins see it; `append` is the engine's business. `fields` are further ones of `Request`."""
    request = Request(
        request_id=f"request-{sequence_id}",
        prompt_token_ids=tuple(prompt),
        sampling_params=params or SamplingParams(),
        seed=1,
        eos_token_ids=frozenset(),
        max_tokens=1000,
        arrival_time=0.0,
        **fields,
    )
    view = RunnerSequence(sequence_id, request, 0)
    view.append(output)
    return view


def footprint(root: object) -> int:
    """Bytes of all Python objects and tensors that `root` reaches, code left out. Memory of C libraries is not seen."""
    seen = {id(root)}
    todo, size = [root], 0
    while todo:
        value = todo.pop()
        size += sys.getsizeof(value, 0)
        if isinstance(value, torch.Tensor):
            size += value.untyped_storage().nbytes()
        for other in gc.get_referents(value):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                todo.append(other)
    return size
