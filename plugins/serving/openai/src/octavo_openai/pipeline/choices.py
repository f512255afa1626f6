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
    """All of it, with at most one piece of each call."""
    pieces: Sequence[MessageDelta]
    """The same in the order in which the model said it; a piece may hold content that came before its calls."""
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

    def __init__(
        self,
        parsers: Sequence[MessageParser],
        most_calls: int | None = None,
        ends_with_calls: bool = True,
        by_character: bool = False,
    ) -> None:
        """`by_character`: the last parser gets one at a time, so that `pieces` do not depend on how the text came."""
        self.reasoning = ""
        """All that was set apart so far."""
        self._parsers = parsers
        self._most_calls, self._ends_with_calls, self._by_character = most_calls, ends_with_calls, by_character
        self._has_calls = self._is_finished = False

    def read(self, output: CompletionOutput) -> ChoiceDelta | None:
        """What the output adds; None if nothing."""
        if self._is_finished or not (output.token_ids or output.finished):
            return None
        self._is_finished = output.finished
        pieces = self._parse(output.text, output.finished)
        message = _joined(pieces)
        if message.tool_calls:
            self._has_calls = True
        if message.reasoning:
            self.reasoning += message.reasoning
        return ChoiceDelta(
            index=output.index,
            message=message,
            pieces=pieces,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            finish_reason=self._finish_reason(output),
            stop_reason=output.stop_reason,
        )

    def _parse(self, text: str, is_last: bool) -> list[MessageDelta]:
        pieces = [MessageDelta(content=text)]
        if not text and not is_last:
            return pieces
        for parser in self._parsers:
            pieces = [found for piece in pieces for found in self._push(parser, piece)]
            if is_last:
                pieces.append(parser.flush())
        if self._most_calls is not None:
            pieces = [_with_calls_below(self._most_calls, piece) for piece in pieces]
        return pieces

    def _push(self, parser: MessageParser, piece: MessageDelta) -> list[MessageDelta]:
        """What the parser makes of the content of a piece, behind what else is in it."""
        found = [replace(piece, content="")] if piece.reasoning or piece.tool_calls else []
        if self._by_character and parser is self._parsers[-1]:
            return found + [parser.push(character) for character in piece.content]
        return [*found, parser.push(piece.content)]

    def _finish_reason(self, output: CompletionOutput) -> str | None:
        if output.finish_reason is FinishReason.STOP and self._has_calls and self._ends_with_calls:
            return "tool_calls"
        return None if output.finish_reason is None else output.finish_reason.value


def _with_calls_below(limit: int, piece: MessageDelta) -> MessageDelta:
    if all(call.index < limit for call in piece.tool_calls):
        return piece
    return replace(piece, tool_calls=tuple(call for call in piece.tool_calls if call.index < limit))


def _joined(pieces: Sequence[MessageDelta]) -> MessageDelta:
    """One piece for each call, for that is all that clients join by."""
    if len(pieces) == 1 and not pieces[0].tool_calls:
        return pieces[0]
    names: dict[int, str | None] = {}
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        for call in piece.tool_calls:
            names.setdefault(call.index, call.name)
            arguments.setdefault(call.index, []).append(call.arguments)
    return MessageDelta(
        content="".join([piece.content for piece in pieces]),
        reasoning="".join([piece.reasoning for piece in pieces]),
        tool_calls=tuple(ToolCallDelta(i, names[i], "".join(said)) for i, said in arguments.items()),
    )
