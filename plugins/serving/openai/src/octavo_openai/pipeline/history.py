"""A conversation so far, put together from the pieces that some APIs cut its turns into.

Owns: what becomes one message. Must never know: the JSON of any API, chat templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class History:
    """Takes pieces in their order. What the assistant says, thinks and calls in a row is one message."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def messages(self) -> list[dict[str, Any]]:
        """As chat templates get them; without the assistant's where it did nothing but think."""
        return [message for message in self._messages if "content" in message or "tool_calls" in message]

    def say(self, role: str, texts: Sequence[str]) -> None:
        """A text, or several that stay apart."""
        if role != "assistant":
            self._messages.append({"role": role, "content": _content(texts)})
            return
        turn = self._assistant_turn()
        turn["content"] = _content([*_texts(turn.get("content")), *texts])

    def think(self, text: str) -> None:
        """The assistant's reasoning."""
        turn = self._assistant_turn()
        turn["reasoning"] = f"{turn['reasoning']}\n{text}" if "reasoning" in turn else text

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """The assistant calls a tool. `arguments`: an object, or the JSON text of one."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant_turn().setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, texts: Sequence[str]) -> None:
        """What a call came to."""
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": _content(texts)})

    def _assistant_turn(self) -> dict[str, Any]:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant"})
        return self._messages[-1]


def _content(texts: Sequence[str]) -> str | list[dict[str, str]]:
    if len(texts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _texts(content: Any) -> list[str]:
    if isinstance(content, list):
        return [part["text"] for part in content]
    return [content] if content else []
