"""From token ids to text, piece by piece: what may be shown now, and where a stop string ends it.

Owns: `IncrementalDetokenizer` and `StopStringMatcher`, one of each for a sequence. Must never know: requests,
scheduling, torch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from octavo.spec import Tokenizer

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTEXT = 4
"""Tokens kept to decode the next one after: a UTF-8 character has at most 4 bytes, a token at least one."""
_WINDOW = 2 * _CONTEXT


class IncrementalDetokenizer:
    """Turns output tokens into pieces of text that are never taken back and never end inside a character.

    The pieces do not depend on how tokens are grouped into pushes. Together with `flush()` they join to
    `decode(prompt + output)` without `decode(prompt)`. If the prompt ends inside a character that the output
    completes, the whole character counts as output; if the output breaks it off, its U+FFFD stays the prompt's.

    Two kinds of token can hold part of a character, and each has its own way here:

    - Byte-level BPE: every token is some bytes. A few last tokens are decoded together, and all of the text but a
      final U+FFFD is settled, since later bytes can only change the last character.
    - Byte fallback (`<0xE2>`): a run of such tokens is UTF-8, or else one U+FFFD for each byte of the run. The
      one difference from decoding it all at once: characters already shown stay when the run turns out broken.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._byte_values: dict[int, int | None] = {}
        self._window: list[int] = []
        """The last tokens that are not fallback bytes."""
        self._shown = 0
        """How many characters of the window's text are settled."""
        self._prompt_tail = False
        """Whether the window's unsettled U+FFFD belongs to the prompt."""
        self._run = bytearray()
        """Bytes of the current run of fallback tokens that are not shown yet."""
        self._run_is_broken = False
        self._prompt_run_len = 0
        """How many of them came from the prompt."""
        self._prime(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens add for certain."""
        return "".join([self._push_token(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """What was held back, as it decodes if nothing follows."""
        return self._end_run() + self._settle_window()

    def _is_skipped(self, token_id: int) -> bool:
        if not 0 <= token_id < self._tokenizer.vocab_size:  # padding of the vocabulary: spells nothing
            return True
        return self._skip_special_tokens and token_id in self._tokenizer.special_token_ids

    def _byte(self, token_id: int) -> int | None:
        """The byte that a fallback token stands for; None for other tokens."""
        if token_id not in self._byte_values:
            spelling = self._tokenizer.token(token_id)
            match = _BYTE_TOKEN.fullmatch(spelling)
            if match and self._decode([token_id]) == spelling:
                match = None  # a tokenizer without byte fallback just has such a word
            self._byte_values[token_id] = int(match[1], 16) if match else None
        return self._byte_values[token_id]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _prime(self, prompt_token_ids: Sequence[int]) -> None:
        last: deque[int] = deque()
        for token_id in reversed(prompt_token_ids):
            if len(last) == _WINDOW:
                break
            if not self._is_skipped(token_id):
                last.appendleft(token_id)
        run: list[int] = []
        while last and (byte := self._byte(last[-1])) is not None:
            run.insert(0, byte)
            last.pop()
        if len(run) == _WINDOW:  # it may begin inside a character
            run = run[next((i for i, byte in enumerate(run) if byte & 0xC0 != 0x80), 0) :]
        # An empty window would make the decoder strip the next token's leading space, so any prompt token will do.
        self._window = list(last) or [t for t in prompt_token_ids if not self._is_skipped(t)][:1]
        text = self._decode(self._window)
        self._prompt_tail = text.endswith(REPLACEMENT) and not run
        self._shown = len(text) - self._prompt_tail
        for byte in run:
            self._push_byte(byte)
        self._prompt_run_len = len(self._run)

    def _push_token(self, token_id: int) -> str:
        if self._is_skipped(token_id):
            return ""
        byte = self._byte(token_id)
        if byte is not None:
            return self._settle_window() + self._push_byte(byte)
        piece = self._end_run()
        self._window.append(token_id)
        text = self._decode(self._window)
        end = len(text) - text.endswith(REPLACEMENT)
        piece += self._window_text(text, end)
        if len(self._window) > _WINDOW:
            unsettled = len(text) - self._shown
            self._window = self._window[-_CONTEXT:]
            self._shown = len(self._decode(self._window)) - unsettled
        return piece

    def _window_text(self, text: str, end: int) -> str:
        """Settle the window's text up to `end` and return what that adds to the output."""
        if self._prompt_tail and end > self._shown:
            self._shown += text[self._shown] == REPLACEMENT
            self._prompt_tail = False
        piece = text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _settle_window(self) -> str:
        text = self._decode(self._window)
        return self._window_text(text, len(text))

    def _push_byte(self, byte: int) -> str:
        self._run.append(byte)
        if not self._run_is_broken:
            try:
                text = self._run.decode("utf-8")
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    return ""
                self._run_is_broken = True
            else:
                self._run.clear()
                self._prompt_run_len = 0
                return text
        return self._broken_bytes()

    def _broken_bytes(self) -> str:
        piece = REPLACEMENT * (len(self._run) - self._prompt_run_len)
        self._run.clear()
        self._prompt_run_len = 0
        return piece

    def _end_run(self) -> str:
        self._run_is_broken = False
        return self._broken_bytes() if self._run else ""


class StopStringMatcher:
    """Finds the first stop string to be completed, in text that comes in pieces of any size.

    The result does not depend on the pieces. Of several strings completed by the same character the first in list
    order counts. Text that may be the beginning of a stop string is held back, and no more than that.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        self._stop = tuple(stop)
        self._sorted = sorted(stop)
        self._longest = max(map(len, stop))
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, enabled: bool = True) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that ended it, if one did.

        Text after the stop string is dropped. While not `enabled` (fewer than `min_tokens` so far) stop strings
        that are completed are passed over.
        """
        pending = self._held + text
        for end in range(len(self._held) + 1, len(pending) + 1):
            if enabled and pending.endswith(self._stop, 0, end):
                stop = next(stop for stop in self._stop if pending.endswith(stop, 0, end))
                self._held = ""
                return pending[: end if self._include_stop else end - len(stop)], stop
        settled = max(0, len(pending) - self._longest)
        while settled < len(pending) and not self._begins_a_stop(pending[settled:]):
            settled += 1
        self._held = pending[settled:]
        return pending[:settled], None

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _begins_a_stop(self, tail: str) -> bool:
        position = bisect_left(self._sorted, tail)  # strings that begin with `tail` stand together from here on
        return position < len(self._sorted) and self._sorted[position].startswith(tail)
