"""One choice of an answer: its text taken apart into content, reasoning and calls of tools.

Owns: `ChoiceDelta`, the order of parsers, finish reasons. Must never know: which parsers there are, HTTP, JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.request import CompletionOutput, FinishReason, TokenLogprobs
from octavo.spec import MessageDelta, MessageParser, ToolCallDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """What is new of one choice."""

    index: int
    message: MessageDelta
    """With at most one piece of each call."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    """One for each token, if they were asked for."""
    finish_reason: str | None
    """`stop`, `length` or `tool_calls`, in the choice's last delta."""
    stop_reason: str | int | None
    """The stop string or stop token id that ended it."""


class ChoiceReader:
    """Reads the outputs of one choice.

    The content that one parser finds is what the next one reads. Calls from number `most_calls` on are left out.
    """

    def __init__(self, parsers: Sequence[MessageParser], most_calls: int | None, ends_with_calls: bool) -> None:
        self.reasoning = ""
        """All that was set apart so far."""
        self._parsers = parsers
        self._most_calls, self._ends_with_calls = most_calls, ends_with_calls
        self._has_calls = self._is_finished = False

    def read(self, output: CompletionOutput) -> ChoiceDelta | None:
        """What the output adds; None if nothing."""
        if self._is_finished or not (output.token_ids or output.finished):
            return None
        self._is_finished = output.finished
        message = self._parse(output.text, output.finished)
        if message.tool_calls:
            self._has_calls = True
        if message.reasoning:
            self.reasoning += message.reasoning
        return ChoiceDelta(
            index=output.index,
            message=message,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            finish_reason=self._finish_reason(output),
            stop_reason=output.stop_reason,
        )

    def _parse(self, text: str, is_last: bool) -> MessageDelta:
        message = MessageDelta(content=text)
        if not text and not is_last:
            return message
        for parser in self._parsers:
            found = parser.push(message.content)
            if is_last:
                found = _joined(found, parser.flush())
            message = _joined(replace(message, content=""), found)
        return replace(message, tool_calls=self._gathered(message.tool_calls)) if message.tool_calls else message

    def _gathered(self, pieces: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
        """One piece for each call, for that is all that clients join by; none for a call too many."""
        calls: dict[int, ToolCallDelta] = {}
        for piece in pieces:
            if self._most_calls is not None and piece.index >= self._most_calls:
                continue
            known = calls.get(piece.index)
            if known is not None:
                piece = ToolCallDelta(piece.index, known.name, known.arguments + piece.arguments)
            calls[piece.index] = piece
        return tuple(calls.values())

    def _finish_reason(self, output: CompletionOutput) -> str | None:
        if output.finish_reason is FinishReason.STOP and self._has_calls and self._ends_with_calls:
            return "tool_calls"
        return None if output.finish_reason is None else output.finish_reason.value


def _joined(first: MessageDelta, second: MessageDelta) -> MessageDelta:
    return MessageDelta(
        content=first.content + second.content,
        reasoning=first.reasoning + second.reasoning,
        tool_calls=first.tool_calls + second.tool_calls,
    )
