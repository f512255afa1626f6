"""How a vocabulary spells bytes: the alphabet of byte-level BPE, or SentencePiece's marks.

Owns: `Spelling`. Must never know: tokenizers, ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """Reads the decoder of a serialised tokenizer (`tokenizers` format) and turns tokens into bytes as it would."""

    def __init__(self, tokenizer_json: str) -> None:
        parts = list(_parts(json.loads(tokenizer_json).get("decoder")))
        kinds = {part["type"] for part in parts}
        self._alphabet = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self._space = next((part.get("replacement", "▁") for part in parts if part["type"] == "Metaspace"), None)
        for part in parts:
            if part["type"] == "Replace" and part.get("content") == " ":
                self._space = part["pattern"].get("String")

    def to_bytes(self, token: str) -> bytes:
        """The bytes that an ordinary token adds to a text."""
        if self._alphabet is not None and all(character in self._alphabet for character in token):
            return bytes(self._alphabet[character] for character in token)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return (token.replace(self._space, " ") if self._space else token).encode()


def _parts(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """A decoder and those in it, for a sequence of decoders."""
    if isinstance(decoder, Mapping) and "type" in decoder:
        yield decoder
        for part in decoder.get("decoders", ()):
            yield from _parts(part)


def _byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE (Radford et al. 2019, GPT-2's vocabulary).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from 256 on.
    """
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(b): b for b in themselves} | {chr(256 + i): b for i, b in enumerate(others)}
