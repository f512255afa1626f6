"""The logits processors of one engine: who is attached to which sequence, and what happens when one fails.

Owns: attachment, the wait for background work, calling processors in order. Must never know: what any of them does.
"""

from __future__ import annotations

import concurrent.futures
import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import torch

from octavo.errors import InvalidRequestError, OctavoError
from octavo.extensions import Extensions, Offer
from octavo.spec import (
    LogitRow,
    LogitsProcessor,
    LogitsProcessorEntry,
    ProcessorContext,
    RefinesDrafts,
    SequenceView,
)
from octavo.step import Attachment

logger = logging.getLogger(__name__)


class ProcessorChain:
    """Every processor that some request has needed so far, in rising order."""

    def __init__(
        self,
        extensions: Extensions,
        configured: Sequence[str],
        make_context: Callable[[Offer[LogitsProcessorEntry]], ProcessorContext],
    ) -> None:
        """`configured`: names of processors that see every request, besides those that always do."""
        self._registry = extensions.logits_processors
        self._make_context = make_context
        self._processors: dict[str, LogitsProcessor] = {}
        always = [name for name, offer in self._registry.items() if offer.entry.always]
        self._for_all = list(dict.fromkeys([*always, *configured]))
        self._attached: dict[int, list[str]] = {}
        self._pending: dict[int, list[Future[Any]]] = {}
        self._settled: list[Attachment] = []
        for name in self._for_all:
            self._processor(name)

    def attach(self, sequence: SequenceView) -> None:
        """Offer the sequence to all processors that it may concern; `poll` tells when it can run."""
        names = dict.fromkeys([*self._for_all, *sequence.request.processors])
        attached = self._attached[sequence.sequence_id] = []
        pending: list[Future[Any]] = []
        name = None
        try:
            for name in sorted(names, key=lambda n: (self._registry.find(n).entry.order, n)):
                answer = self._processor(name).attach(sequence)
                if answer is not False:
                    attached.append(name)
                if isinstance(answer, Future):
                    pending.append(answer)
        except Exception as error:
            for future in pending:
                future.cancel()
            self._settled.append(self._failed(sequence.sequence_id, name, error))
            return
        if pending:
            self._pending[sequence.sequence_id] = pending
        else:
            self._settled.append(Attachment(sequence.sequence_id))

    def poll(self, timeout: float) -> list[Attachment]:
        """Sequences that became ready or failed; waits up to `timeout` seconds if there is none yet."""
        self._settle()
        if timeout and self._pending and not self._settled:
            futures = [f for pending in self._pending.values() for f in pending if not f.done()]
            concurrent.futures.wait(futures, timeout, return_when=concurrent.futures.FIRST_COMPLETED)
            self._settle()
        settled, self._settled = self._settled, []
        return settled

    def _settle(self) -> None:
        for sequence_id, futures in list(self._pending.items()):
            error = next((e for f in futures if f.done() and (e := _error_of(f)) is not None), None)
            if error is not None or all(f.done() for f in futures):
                del self._pending[sequence_id]
                for future in futures:
                    future.cancel()
                self._settled.append(self._failed(sequence_id, None, error) if error else Attachment(sequence_id))

    def release(self, sequence_id: int) -> None:
        for future in self._pending.pop(sequence_id, ()):
            future.cancel()
        for name in self._attached.pop(sequence_id, ()):
            try:
                self._processors[name].release(sequence_id)
            except Exception:
                logger.exception("logits processor %r failed to release a sequence", name)

    def rows_for(
        self, sequences: Iterable[SequenceView], drafts: Iterable[Sequence[int]], first_rows: Iterable[int]
    ) -> list[tuple[str, list[LogitRow]]]:
        """The logit rows that each attached processor is to see, processors in order.

        `first_rows[i]` is the logits row of sequence i's last committed token; its drafts' rows follow.
        """
        by_name: dict[str, list[LogitRow]] = {}
        for sequence, draft, first in zip(sequences, drafts, first_rows, strict=False):
            names = self._attached.get(sequence.sequence_id)
            if names:
                rows = [LogitRow(first + i, sequence, tuple(draft[:i])) for i in range(len(draft) + 1)]
                for name in names:
                    by_name.setdefault(name, []).extend(rows)
        return sorted(by_name.items(), key=lambda item: (self._registry[item[0]].entry.order, item[0]))

    def shutdown(self) -> None:
        """Let processors that hold threads or processes give them back."""
        for name, processor in self._processors.items():
            shutdown = getattr(processor, "shutdown", None)
            if callable(shutdown):
                try:
                    shutdown()
                except Exception:
                    logger.exception("logits processor %r failed to shut down", name)

    def prepare(self, work: list[tuple[str, list[LogitRow]]], errors: dict[int, str]) -> None:
        """Let processors do their CPU work; failures are noted in `errors` by sequence id."""
        for name, rows in work:
            self._guard(name, rows, errors, self._prepare_one, name, rows, errors)

    def _prepare_one(self, name: str, rows: list[LogitRow], errors: dict[int, str]) -> None:
        failed = self._processors[name].prepare(rows)
        errors.update({i: str(reason) for i, reason in dict(failed or {}).items()})

    def apply(self, work: list[tuple[str, list[LogitRow]]], logits: torch.Tensor, errors: dict[int, str]) -> None:
        for name, rows in work:
            rows = [row for row in rows if row.sequence.sequence_id not in errors]
            if rows:
                self._guard(name, rows, errors, self._processors[name].apply, logits, rows)

    def accept(self, sequence: SequenceView, token_ids: Sequence[int], errors: dict[int, str]) -> int | None:
        """Tell the attached processors what was committed; the number of tokens with which the output is complete."""
        complete: int | None = None
        for name in self._attached.get(sequence.sequence_id, ()):
            try:
                answer = self._processors[name].accept(sequence, token_ids)
                if answer is not None and not 1 <= operator.index(answer) <= len(token_ids):
                    raise ValueError(f"accept returned {answer!r} for {len(token_ids)} tokens")
            except Exception as error:
                errors[sequence.sequence_id] = self._describe(name, error)
                return None
            if answer is not None:
                complete = answer if complete is None else min(answer, complete)
        return complete

    def refines(self, sequence: SequenceView) -> bool:
        """Whether any attached processor refines drafts."""
        return any(self._registry[n].entry.refines_drafts for n in self._attached.get(sequence.sequence_id, ()))

    def refine(
        self, sequence: SequenceView, drafts: Sequence[int], max_drafts: int, errors: dict[int, str]
    ) -> Sequence[int]:
        """The drafts as those attached processors leave them that know something of what comes."""
        for name in self._attached.get(sequence.sequence_id, ()):
            if self._registry[name].entry.refines_drafts:
                processor = cast(RefinesDrafts, self._processors[name])
                try:
                    drafts = [operator.index(i) for i in processor.refine_drafts(sequence, drafts, max_drafts)]
                except Exception as error:  # its state may be halfway through the drafts
                    errors[sequence.sequence_id] = self._describe(name, error)
        return drafts

    def _processor(self, name: str) -> LogitsProcessor:
        if name not in self._processors:
            offer = self._registry.find(name)
            self._processors[name] = offer.make(self._make_context(offer))
        return self._processors[name]

    def _guard(
        self, name: str, rows: list[LogitRow], errors: dict[int, str], call: Callable[..., None], *args: Any
    ) -> None:
        try:
            call(*args)
        except Exception as error:
            message = self._describe(name, error)
            errors.update((row.sequence.sequence_id, message) for row in rows)

    def _failed(self, sequence_id: int, name: str | None, error: BaseException) -> Attachment:
        field = error.field if isinstance(error, InvalidRequestError) else None
        return Attachment(sequence_id, self._describe(name, error), field)

    def _describe(self, name: str | None, error: BaseException) -> str:
        """One line for the user; the traceback of what is not a user's error goes to the log."""
        if isinstance(error, OctavoError):
            return str(error)
        what = f"logits processor {name!r} of plugin {self._registry[name].origin}" if name else "preparing the request"
        logger.error("%s failed", what, exc_info=error)
        return f"{what} failed: {error!r}"


def _error_of(future: Future[Any]) -> BaseException | None:
    """What a future that is done failed with, if it did."""
    try:
        return future.exception()
    except concurrent.futures.CancelledError as error:  # by the processor itself
        return error
