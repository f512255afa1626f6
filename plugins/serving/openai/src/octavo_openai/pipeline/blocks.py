"""An answer as a row of blocks: reasoning, text and calls, in the order in which the model said them.

A stream and a whole answer have the same blocks, for both are read by the same steps.
Owns: where a block begins and ends. Must never know: what an API calls its blocks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum, auto

from octavo.request import TokenLogprobs
from octavo.spec import ToolCallDelta
from octavo_openai.pipeline.choices import ChoiceDelta
from octavo_openai.pipeline.conversation import Answer


class Kind(Enum):
    """What a block holds."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


class Step(Enum):
    """What happens to a block. Each begins, grows any number of times and ends before the next one begins."""

    BEGIN = auto()
    GROW = auto()
    END = auto()


@dataclass(slots=True, kw_only=True)
class Block:
    """A part of the answer, as far as it has come."""

    index: int
    kind: Kind
    tool: str = ""
    """The one that is called."""
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of a call: its arguments, JSON unless the model erred or was cut off."""
        return "".join(self.texts)


@dataclass(slots=True)
class Change:
    """One step of one block."""

    step: Step
    block: Block
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """By which it grows."""
        return "".join(self.texts)


class BlockAnswer:
    """Computes an answer and reads it into blocks. There is at least one at the end: an empty text, if nothing else."""

    def __init__(self, answer: Answer) -> None:
        self.blocks: list[Block] = []
        self.logprobs: list[TokenLogprobs] = []
        """Of all tokens, whatever they became, if they were asked for."""
        self.finish_reason: str | None = None
        """`stop`, `length` or `tool_calls`, once it has ended."""
        self.stop_reason: str | int | None = None
        self._answer = answer
        self._open: Block | None = None

    async def changes(self, incremental: bool) -> AsyncGenerator[list[Change], None]:
        """What is new, perhaps nothing, whenever something was computed; not `incremental`: everything at once.

        Leaving it aborts the request; so close it.
        """
        async with aclosing(self._answer.deltas(incremental, in_order=True)) as all_deltas:
            async for deltas in all_deltas:
                changes: list[Change] = []
                for delta in deltas:
                    self._read(delta, changes)
                yield changes

    async def finish(self) -> None:
        """Compute all of it."""
        async with aclosing(self.changes(incremental=False)) as changes:
            async for _ in changes:
                pass

    def is_cut(self, block: Block) -> bool:
        """Whether the answer had to end, or failed, in the middle of it."""
        return block is self._open or (self.finish_reason == "length" and block is self.blocks[-1])

    def _read(self, delta: ChoiceDelta, changes: list[Change]) -> None:
        self.logprobs += delta.logprobs or ()
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        for piece in delta.pieces:
            calls = list(piece.tool_calls)
            while calls and calls[0].name is None:  # of the call that is open; text in between would end it
                self._call(calls.pop(0), changes)
            if piece.reasoning:
                self._grow(Kind.REASONING, piece.reasoning, changes)
            if piece.content:
                self._grow(Kind.TEXT, piece.content, changes)
            for call in calls:
                self._call(call, changes)
        if delta.finish_reason is not None:
            if not self.blocks:
                self._begin(Kind.TEXT, "", changes)
            self._end(changes)

    def _call(self, call: ToolCallDelta, changes: list[Change]) -> None:
        if call.name is not None:
            self._begin(Kind.CALL, call.name, changes)
        if call.arguments:
            self._grow(Kind.CALL, call.arguments, changes)

    def _begin(self, kind: Kind, tool: str, changes: list[Change]) -> Block:
        self._end(changes)
        block = self._open = Block(index=len(self.blocks), kind=kind, tool=tool)
        self.blocks.append(block)
        changes.append(Change(Step.BEGIN, block))
        return block

    def _grow(self, kind: Kind, text: str, changes: list[Change]) -> None:
        block = self._open
        if block is None or block.kind is not kind:
            block = self._begin(kind, "", changes)
        block.texts.append(text)
        if changes and changes[-1].step is Step.GROW:
            changes[-1].texts.append(text)
        else:
            changes.append(Change(Step.GROW, block, [text]))

    def _end(self, changes: list[Change]) -> None:
        if self._open is not None:
            changes.append(Change(Step.END, self._open))
            self._open = None
