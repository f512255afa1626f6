"""The grammar backend: compiles constraints, follows sequences through them, fills bitmasks.

Owns: xgrammar's objects. Must never know: logits, batches, how a schema is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.grammar import GrammarProcessor
from octavo.spec import MaskRows, ProcessorContext
from octavo.structured_outputs import StructuredOutputsParams
from octavo.trial import Limits
from octavo_xgrammar.worker import Job, Setup, compile_with
from octavo_xgrammar.workers import Workers

_SLOW_SECONDS = 0.02
_MAX_SLOW_SECONDS = 2.0
"""CPU seconds that one sequence may spend in single calls slower than `_SLOW_SECONDS`: ambiguous grammars grow."""


def make(context: ProcessorContext) -> GrammarProcessor:
    """The factory of the logits processor. Cheap: xgrammar is imported in the thread that first compiles."""
    return GrammarProcessor(XGrammarBackend(context), context)


@dataclass(frozen=True, slots=True)
class _Library:
    """xgrammar, imported, with this model's vocabulary."""

    compiler: Any
    matcher: type[Any]


class XGrammarBackend:
    """Implements `GrammarBackend`."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context, self._options = context, context.options
        self._lock = threading.Lock()
        config = context.structured_outputs
        limits = Limits(config.compile_timeout / 2, config.max_compile_bytes)  # the other half is for compiling here
        self._workers = Workers(self._options.num_workers, limits)

    @cached_property
    def _vocabulary(self) -> list[bytes]:
        """The bytes of each token; ids without bytes are special to xgrammar, which never allows them."""
        tokenizer = self._context.tokenizer
        if tokenizer is None:
            raise InvalidRequestError(
                "structured_outputs",
                "this model has no tokenizer, and a grammar is about text; use a model that has one",
            )
        size = min(tokenizer.vocab_size, self._context.vocab_size)
        return [tokenizer.token_bytes(i) for i in range(size)]

    @property
    def _padded_size(self) -> int:
        """The vocabulary with whole words of a bitmask, so that xgrammar clears the bits that are no tokens."""
        return -(-self._context.vocab_size // 32) * 32

    @cached_property
    def _setup(self) -> Setup:
        options = self._options
        return Setup(
            self._vocabulary, self._padded_size, options.max_whitespace, options.closed_objects, options.cache_bytes
        )

    @cached_property
    def _no_tokens(self) -> frozenset[int]:
        """Ids that are no text: special tokens and padding."""
        known = self._vocabulary
        return frozenset(i for i in range(self._context.vocab_size) if i >= len(known) or not known[i])

    @cached_property
    def _library(self) -> Future[_Library]:
        """xgrammar, imported in a thread of its own: it takes seconds, in which the first worker starts."""
        return ThreadPoolExecutor(1, thread_name_prefix="octavo-xgrammar-import").submit(self._import)

    def _import(self) -> _Library:
        import xgrammar

        info = xgrammar.TokenizerInfo(self._vocabulary, vocab_size=self._padded_size, stop_token_ids=[])
        limit = self._options.cache_bytes
        return _Library(xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=limit), xgrammar.GrammarMatcher)

    def compile(self, params: StructuredOutputsParams) -> XGrammarCompiled:
        """Compile in a worker process, and if that ends well, here.

        What xgrammar makes of a grammar cannot be handed over cheaply (its serialised form grows with the square of
        the number of rules), while compiling again takes as long as it took there, which is known to be short.
        """
        with self._lock:  # each is made once, although many threads may come first
            setup, library, no_tokens = self._setup, self._library, self._no_tokens
        reply = self._workers.ask(setup, Job(params.kind, params.source, params.any_whitespace))
        if reply.refused is not None:
            raise InvalidRequestError("structured_outputs", f"{params.kind}: {reply.refused}")
        compiler, matcher = library.result().compiler, library.result().matcher
        grammar = compile_with(compiler, reply.method, reply.text)
        compiled = XGrammarCompiled(grammar, matcher, self._context.vocab_size, no_tokens)
        if compiled.matcher(frozenset()).is_stuck():
            raise InvalidRequestError(
                "structured_outputs", f"{params.kind}: this model has no token that an output could begin with"
            )
        return compiled

    def shutdown(self) -> None:
        self._workers.close()

    def fill_bitmask(self, work: Sequence[MaskRows], bitmask: np.ndarray) -> None:
        for rows in work:
            matcher = rows.matcher
            assert isinstance(matcher, XGrammarMatcher)
            matcher.fill(bitmask, rows.first_row, rows.draft_token_ids)


class XGrammarCompiled:
    """Implements `CompiledGrammar`."""

    def __init__(self, grammar: Any, matcher: type[Any], vocab_size: int, no_tokens: frozenset[int]) -> None:
        self._grammar, self._matcher = grammar, matcher
        self.vocab_size, self.no_tokens = vocab_size, no_tokens
        self.num_bytes: int = grammar.memory_size_bytes

    def matcher(self, stop_token_ids: frozenset[int]) -> XGrammarMatcher:
        stops = frozenset(i for i in stop_token_ids if 0 <= i < self.vocab_size)
        stand_in = None
        if not stops:
            stand_in = min(self.no_tokens, default=None)
            if stand_in is None:
                raise InvalidRequestError(
                    "structured_outputs", "xgrammar needs a special token or an EOS token, and this model has neither"
                )
        handle = self._matcher(self._grammar, override_stop_tokens=sorted(stops) if stops else [stand_in])
        return XGrammarMatcher(handle, stops, stand_in, self)


class XGrammarMatcher:
    """Implements `GrammarMatcher`."""

    __slots__ = ("_compiled", "_handle", "_slow_seconds", "_stand_in", "_stops", "_watched", "failure")

    def __init__(self, handle: Any, stops: frozenset[int], stand_in: int | None, compiled: XGrammarCompiled) -> None:
        """`stand_in` is the stop token that xgrammar insists on where there is none; it is never let through."""
        self._handle, self._stops, self._stand_in, self._compiled = handle, stops, stand_in, compiled
        self._slow_seconds, self._watched = 0.0, False
        self.failure: str | None = None

    def accept(self, token_id: int) -> bool:
        if not self._is_token(token_id) or self._handle.is_terminated():
            return False
        return self._timed(self._handle.accept_token, token_id)

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._handle.rollback(num_tokens)

    def is_finished(self) -> bool:
        return self._handle.is_terminated() or (self._handle.is_completed() and self.is_stuck())

    def is_stuck(self) -> bool:
        """Whether no token but a stop token may follow."""
        row = np.empty((1, -(-self._compiled.vocab_size // 32)), dtype=np.int32)
        self._handle.fill_next_token_bitmask(row, 0)
        for stop in self._stops if self._stand_in is None else (self._stand_in,):
            _forbid(row, stop)
        return not row.any()

    def forced_text(self) -> str:
        return "" if self._handle.is_terminated() else self._handle.find_jump_forward_string()

    def fill(self, bitmask: np.ndarray, first_row: int, draft_token_ids: Sequence[int]) -> None:
        """Fill the row that follows the committed tokens, and those behind drafts, up to the first forbidden one."""
        if self._handle.is_terminated():
            return
        drafts = list(takewhile(self._is_token, draft_token_ids)) if draft_token_ids else ()
        if not drafts:
            self._timed(self._handle.fill_next_token_bitmask, bitmask, first_row)
            if self._stand_in is not None:
                _forbid(bitmask[first_row : first_row + 1], self._stand_in)
            return
        rows = bitmask[first_row : first_row + len(drafts) + 1]
        chain = np.arange(1, len(drafts) + 2, dtype=np.int64)
        chain[-1] = -1
        tokens = np.array([-1, *drafts], dtype=np.int64)  # the first node is the last committed token
        self._timed(self._handle.traverse_draft_tree, chain, np.full_like(chain, -1), tokens, rows)
        if self._stand_in is not None:
            _forbid(rows, self._stand_in)
        allowed = rows[chain[:-1] - 1, tokens[1:] >> 5] >> (tokens[1:] & 31) & 1
        ends = np.flatnonzero((allowed == 0) | np.isin(tokens[1:], list(self._stops)))
        if len(ends):  # rows behind are never reached, and xgrammar has written that nothing may follow
            rows[ends[0] + 1 :] = -1

    def _is_token(self, token_id: int) -> bool:
        """Whether the id may ever be accepted; xgrammar writes a warning for each that may not."""
        known = 0 <= token_id < self._compiled.vocab_size
        return known and (token_id not in self._compiled.no_tokens or token_id in self._stops)

    def _timed(self, call: Callable[..., bool], *arguments: Any) -> bool:
        """Call, and after a call that took long, which may have waited for something else, count CPU time."""
        clock = time.thread_time if self._watched else time.perf_counter
        started = clock()
        result = call(*arguments)
        seconds = clock() - started
        if seconds > _SLOW_SECONDS:
            self._slow_seconds += seconds if self._watched else 0.0
            self._watched = True
            if self._slow_seconds > _MAX_SLOW_SECONDS:
                self.failure = (
                    f"following the grammar took {self._slow_seconds:.1f} s of CPU, for it is ambiguous and there are "
                    "ever more ways to read the output; make its repetitions unambiguous"
                )
        return result


def _forbid(rows: np.ndarray, token_id: int) -> None:
    rows.view(np.uint32)[:, token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))
