"""What a text turned out to say, collected until it is asked for.

Owns: `MessageWriter`, and what becomes of white space next to marks. Must never know: formats, where text comes from.
"""

from __future__ import annotations

from octavo.spec import MessageDelta, ToolCallDelta

NOTHING = MessageDelta()


class Prose:
    """Text without the white space between its ends and a mark: what may be such is held until something follows."""

    def __init__(self) -> None:
        self._new: list[str] = []
        self._space: list[str] = []
        self._has_text = self._is_marked = False
        """Whether there was anything but white space, and whether a mark stands behind that."""

    def write(self, text: str) -> None:
        end = len(text.rstrip())
        if end and self._is_marked and not self._has_text:
            self._space.clear()
            text, end = text.lstrip(), len(text.strip())
        if end:
            self._new += (*self._space, text[:end])
            self._space.clear()
            self._has_text, self._is_marked = True, False
        if end < len(text):
            self._space.append(text[end:])

    def mark(self) -> None:
        """A mark of the format stands here."""
        self._is_marked = True

    def finish(self) -> None:
        """The text has ended."""
        if not self._is_marked:
            self._new += self._space
        self._space.clear()

    def take(self) -> str:
        text = "".join(self._new)
        self._new.clear()
        return text


class MessageWriter:
    """A message as it grows."""

    def __init__(self) -> None:
        self.content, self.reasoning = Prose(), Prose()
        self._num_calls = 0
        self._named: str | None = None
        self._arguments: list[str] = []
        self._calls: list[ToolCallDelta] = []

    def begin_call(self, name: str) -> None:
        """A call of a tool."""
        self._close_delta()
        self.content.mark()
        self._num_calls += 1
        self._named = name

    def write_arguments(self, text: str) -> None:
        """Arguments of the call that was begun last."""
        self._arguments.append(text)

    def finish(self) -> None:
        """The text has ended."""
        self.content.finish()
        self.reasoning.finish()

    def take(self) -> MessageDelta:
        """What is new."""
        self._close_delta()
        content, reasoning, calls = self.content.take(), self.reasoning.take(), tuple(self._calls)
        self._calls.clear()
        if not (content or reasoning or calls):
            return NOTHING
        return MessageDelta(content=content, reasoning=reasoning, tool_calls=calls)

    def _close_delta(self) -> None:
        if self._named is not None or self._arguments:
            self._calls.append(ToolCallDelta(self._num_calls - 1, self._named, "".join(self._arguments)))
            self._named = None
            self._arguments.clear()
