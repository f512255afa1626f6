"""Makes a logits processor out of a grammar backend: what every backend needs and none should write again.

    def make(context: ProcessorContext) -> GrammarProcessor:  # the factory of a LogitsProcessorEntry
        return GrammarProcessor(MyBackend(context), context)

Owns: compiling in the background, the cache of compiled grammars, bitmask rows, the state of each sequence, forced
text as drafts, the vocabulary in bytes. Must never know: any grammar library, how a request came to its backend.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from octavo.config import StructuredOutputsConfig
from octavo.errors import InvalidRequestError
from octavo.spec import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    LogitRow,
    MaskRows,
    ProcessorContext,
    SequenceView,
)
from octavo.structured_outputs import StructuredOutputsParams

_NUM_COMPILE_THREADS = 8
"""Threads that wait for compilations; how many compile at the same time is the backend's affair."""
_RETOKENISED_TOKENS = 3
"""Forced text is tokenised together with so many tokens before it, for tokens reach over its start."""


class GrammarCache:
    """Compilations by what is compiled; the least recently used go first. Failures are not kept.

    Requests that ask for one grammar share one compilation, also while it runs. One that has not begun when nobody
    waits for it any more is dropped.
    """

    def __init__(self, backend: GrammarBackend, config: StructuredOutputsConfig) -> None:
        self._backend, self._config = backend, config
        self._pool = ThreadPoolExecutor(_NUM_COMPILE_THREADS, thread_name_prefix="octavo-grammar")
        self._compilations: OrderedDict[tuple[str, str, bool], Future[CompiledGrammar]] = OrderedDict()
        self._num_waiting: Counter[Future[CompiledGrammar]] = Counter()

    def get(self, params: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """The grammar, done or in the making. Raises `InvalidRequestError` for a source that is too large."""
        source = params.source
        size, limit = len(source.encode(errors="surrogatepass")), self._config.max_source_bytes
        if size > limit:
            raise InvalidRequestError(
                "structured_outputs",
                f"{params.kind} has {size} bytes; at most {limit} are compiled; "
                "simplify it, or raise structured_outputs.max_source_bytes",
            )
        key = (params.kind, source, params.any_whitespace)
        known = self._compilations.get(key)
        if known is None or _failed(known):
            self._compilations[key] = known = self._pool.submit(self._backend.compile, params)
        self._compilations.move_to_end(key)
        self._evict()
        return known

    def follow(self, compilation: Future[CompiledGrammar]) -> Future[CompiledGrammar]:
        """A future of its own for one sequence: others may wait for the same compilation when it is cancelled."""
        future: Future[CompiledGrammar] = Future()
        self._num_waiting[compilation] += 1

        def copy(done: Future[CompiledGrammar]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            error = CancelledError("the engine shuts down") if done.cancelled() else done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        def leave(done: Future[CompiledGrammar]) -> None:
            self._num_waiting[compilation] -= 1
            if not self._num_waiting[compilation]:
                del self._num_waiting[compilation]
                compilation.cancel()  # without effect on one that runs or is done

        compilation.add_done_callback(copy)
        future.add_done_callback(leave)
        return future

    def shutdown(self) -> None:
        """Drop what has not begun; the backend ends what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _evict(self) -> None:
        """Forget the least recently used ones beyond the bound, and failures; the last one asked for stays."""
        total = 0
        for key, compilation in reversed(list(self._compilations.items())):
            if not compilation.done():
                continue
            failed = _failed(compilation)
            total += 0 if failed else compilation.result().num_bytes
            if failed or (total > self._config.max_cached_bytes and key != next(reversed(self._compilations))):
                del self._compilations[key]


@dataclass(slots=True)
class _State:
    """One sequence: its grammar, and where it stands in it from its first step on."""

    compilation: Future[CompiledGrammar]
    matcher: GrammarMatcher | None = None


class GrammarProcessor:
    """Keeps every sequence that has `structured_outputs` to its grammar; implements `RefinesDrafts`.

    A sequence whose output is whole, so that nothing but its end could follow, ends there without an EOS token.
    Text that the grammar forces is proposed as drafts in the tokens that the tokenizer itself would choose. The
    model still decides between these tokens and others that spell the same, so drafts change no output; where the
    mask leaves one token, the model has no say and the draft is certain.
    """

    def __init__(self, backend: GrammarBackend, context: ProcessorContext) -> None:
        self._backend, self._context = backend, context
        self._cache = GrammarCache(backend, context.structured_outputs)
        self._states: dict[int, _State] = {}
        self._num_words = -(-context.vocab_size // 32)
        self._bitmask = np.empty((0, self._num_words), dtype=np.int32)
        self._mask_row: dict[int, int] = {}
        """Row of `_bitmask` for each row of logits in this step."""

    def attach(self, sequence: SequenceView) -> bool | Future[CompiledGrammar]:
        params = sequence.request.sampling_params.structured_outputs
        if params is None:
            return False
        compilation = self._cache.get(params)
        if compilation.done():
            compilation.result()  # raises what it failed with
        self._states[sequence.sequence_id] = _State(compilation)
        return True if compilation.done() else self._cache.follow(compilation)

    def prepare(self, rows: Sequence[LogitRow]) -> Mapping[int, str]:
        """Fill the bitmask; a sequence's rows stand together, the one after its committed tokens first."""
        self._bitmask = np.full((len(rows), self._num_words), -1, dtype=np.int32)
        self._mask_row = {row.index: i for i, row in enumerate(rows)}
        drafts = {row.sequence.sequence_id: row.draft_token_ids for row in rows}  # its last row has them all
        work = {
            row.sequence.sequence_id: MaskRows(self._matcher(row.sequence), i, drafts[row.sequence.sequence_id])
            for i, row in enumerate(rows)
            if not row.draft_token_ids
        }
        self._backend.fill_bitmask(list(work.values()), self._bitmask)
        failures = {sequence_id: item.matcher.failure for sequence_id, item in work.items()}
        return {i: f"structured_outputs: {failure}" for i, failure in failures.items() if failure is not None}

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitRow]) -> None:
        words = self._bitmask[[self._mask_row[row.index] for row in rows]]
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        forbidden = torch.from_numpy(bits == 0).to(logits.device)  # [len(rows), vocab_size]
        for row, mask in zip(rows, forbidden, strict=True):
            logits[row.index].masked_fill_(mask, -torch.inf)

    def accept(self, sequence: SequenceView, token_ids: Sequence[int]) -> int | None:
        matcher, stops = self._matcher(sequence), sequence.request.stop_token_ids
        for count, token_id in enumerate(token_ids, 1):
            if not matcher.accept(token_id) and token_id not in stops:
                raise RuntimeError(f"the grammar does not take token {token_id}, which its own bitmask allowed")
            if matcher.is_finished():
                return count
        return None

    def refine_drafts(self, sequence: SequenceView, draft_token_ids: Sequence[int], max_drafts: int) -> Sequence[int]:
        """The drafts up to the first that the grammar forbids, and behind them what it forces."""
        matcher = self._matcher(sequence)
        kept = _accept_prefix(matcher, draft_token_ids[:max_drafts])
        if len(kept) < max_drafts and self._context.structured_outputs.jump_forward:
            forced = self._tokens_of(sequence, kept, matcher.forced_text())
            kept += _accept_prefix(matcher, forced[: max_drafts - len(kept)])
        matcher.rollback(len(kept))
        return kept

    def release(self, sequence_id: int) -> None:
        self._states.pop(sequence_id, None)

    def shutdown(self) -> None:
        self._cache.shutdown()
        self._backend.shutdown()

    def _matcher(self, sequence: SequenceView) -> GrammarMatcher:
        """The sequence's matcher, moved over what it has already; made when it is first needed."""
        state = self._states[sequence.sequence_id]
        if state.matcher is None:
            state.matcher = state.compilation.result().matcher(sequence.request.eos_token_ids)
            _accept_prefix(state.matcher, sequence.output_token_ids.tolist())
        return state.matcher

    def _tokens_of(self, sequence: SequenceView, drafts: Sequence[int], text: str) -> list[int]:
        """Tokens for text that follows the sequence and `drafts`, as far as later text cannot change them."""
        tokenizer = self._context.tokenizer
        if not text or tokenizer is None:
            return []
        before = [*sequence.output_token_ids[-_RETOKENISED_TOKENS:].tolist(), *drafts][-_RETOKENISED_TOKENS:]
        token_ids = tokenizer.encode(tokenizer.decode(before) + text, add_special_tokens=False)
        if token_ids[: len(before)] != before:  # another way to spell it; no reason to doubt the rest
            before, token_ids = [], tokenizer.encode(text, add_special_tokens=False)
        return token_ids[len(before) : -1]  # the last one may merge with what comes


def vocabulary_of(context: ProcessorContext) -> list[bytes]:
    """The text of each token id of the logits, in UTF-8; empty for what is no text: special tokens and padding.

    [vocab_size]. Raises `InvalidRequestError` if the model has no tokenizer.
    """
    tokenizer = context.tokenizer
    if tokenizer is None:
        raise InvalidRequestError(
            "structured_outputs",
            "this model has no tokenizer, and constraints are about text; set model.tokenizer, or leave them out",
        )
    known = min(tokenizer.vocab_size, context.vocab_size)
    return [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (context.vocab_size - known)


def _failed(compilation: Future[CompiledGrammar]) -> bool:
    return compilation.done() and (compilation.cancelled() or compilation.exception() is not None)


def _accept_prefix(matcher: GrammarMatcher, token_ids: Sequence[int]) -> list[int]:
    """Accept tokens up to the first that is forbidden; the accepted ones."""
    accepted = []
    for token_id in token_ids:
        if not matcher.accept(token_id):
            break
        accepted.append(token_id)
    return accepted
