"""A vocabulary of all bytes and some longer tokens, and what the tests ask of a backend over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from octavo.config import StructuredOutputsConfig
from octavo.spec import MaskRows, ProcessorContext
from octavo.structured_outputs import StructuredOutputsParams
from octavo_llguidance.backend import LLGuidanceBackend
from octavo_llguidance.matcher import Matcher

SPECIAL = 3
LONGER = (
    *(b"12", b"ab", b"abc", b'{"', b'":', b'","', b'"a', b"xx", b"00", b"01", b'":true', b'"}', b"))", b"1,", b"[1"),
    *(b'x"', b"a\n", b"\xc3\xa9a", b"aaaa", b"  ", b"ab"),
)


class BytesTokenizer:
    """Ids 0, 1, 2 are special tokens; then come the bytes, then longer tokens."""

    def __init__(self, num_tokens: int | None = None) -> None:
        tokens = [b""] * SPECIAL + [bytes([i]) for i in range(256)] + list(LONGER)
        self.tokens = tokens[:num_tokens]
        self.vocab_size = len(self.tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def ids(self, text: str | bytes) -> list[int]:
        return [SPECIAL + byte for byte in (text.encode() if isinstance(text, str) else text)]


class Kit:
    """A backend, and short ways to ask it."""

    def __init__(self, num_tokens: int | None = None, padding: int = 7, **config: Any) -> None:
        self.tokenizer = BytesTokenizer(num_tokens)
        self.vocab_size = self.tokenizer.vocab_size + padding
        self.backend = LLGuidanceBackend(
            ProcessorContext(
                options=None,
                tokenizer=self.tokenizer,
                vocab_size=self.vocab_size,
                device=torch.device("cpu"),
                structured_outputs=StructuredOutputsConfig(**config),
                max_num_seqs=8,
                max_num_draft_tokens=8,
            )
        )

    def matcher(self, stops: Sequence[int] = (2,), **constraint: Any) -> Matcher:
        return self.backend.compile(StructuredOutputsParams(**constraint)).matcher(frozenset(stops))

    def masks(self, *work: tuple[Matcher, Sequence[int]]) -> list[list[set[int]]]:
        """For each matcher with its drafts the token ids that each of its rows allows."""
        rows, first = [], 1  # row 0 is somebody else's
        for matcher, drafts in work:
            rows.append(MaskRows(matcher, first, drafts))
            first += 1 + len(drafts)
        bitmask = np.full((first, -(-self.vocab_size // 32)), -1, dtype=np.int32)
        self.backend.fill_bitmask(rows, bitmask)
        assert (bitmask[0] == -1).all()
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
        allowed = [set(np.flatnonzero(row).tolist()) for row in bits]
        return [allowed[item.first_row : item.first_row + 1 + len(item.draft_token_ids)] for item in rows]

    def mask(self, matcher: Matcher) -> set[int]:
        return self.masks((matcher, ()))[0][0]

    def takes(self, text: str, **constraint: Any) -> bool:
        """Whether `text`, and nothing less, is an output."""
        matcher = self.matcher(**constraint)
        return all(matcher.accept(token_id) for token_id in self.tokenizer.ids(text)) and matcher.accept(2)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session")
def make_kit() -> type[Kit]:
    return Kit
