"""A vocabulary of single bytes and a few longer tokens, and backends over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from octavo.config import StructuredOutputsConfig
from octavo.spec import MaskRows, ProcessorContext
from octavo_xgrammar.backend import XGrammarBackend
from octavo_xgrammar.plugin import XGrammarOptions

LONGER = [
    '{"',
    '":',
    '"}',
    ',"',
    "ab",
    "aba",
    "12",
    "tr",
    "true",
    "é",
    "日本",
    "😀",
    "\\n",
    '\\"',
    "  ",
    "\n",
    "no",
    "yes",
]
SPECIALS = ("<eos>", "<end>", "<pad>")


class ByteTokenizer:
    """Specials 0 to 2, then all bytes, then some longer tokens; one id in between has no token."""

    tokens = (*(b"" for _ in SPECIALS), *(bytes([i]) for i in range(256)), b"", *(text.encode() for text in LONGER))
    vocab_size = len(tokens)
    special_token_ids = frozenset(range(len(SPECIALS)))

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]


class Grammars:
    """A backend with shorthands."""

    eos, end = 0, 1
    tokens = ByteTokenizer.tokens
    vocab_size = ByteTokenizer.vocab_size + 5  # padded

    def __init__(self, options: XGrammarOptions | None = None, tokenizer: Any = ByteTokenizer(), **limits: Any) -> None:  # noqa: B008
        self.backend = XGrammarBackend(
            ProcessorContext(
                options=options or XGrammarOptions(),
                tokenizer=tokenizer,
                vocab_size=self.vocab_size,
                device=torch.device("cpu"),
                structured_outputs=StructuredOutputsConfig(**limits),
                max_num_seqs=4,
                max_num_draft_tokens=8,
            )
        )

    def compile(self, **constraint: Any) -> Any:
        from octavo.structured_outputs import StructuredOutputsParams

        return self.backend.compile(StructuredOutputsParams(**constraint))

    def matcher(self, *stops: int, **constraint: Any) -> Any:
        return self.compile(**constraint).matcher(frozenset(stops))

    def byte(self, character: str | int) -> int:
        """The token that is one byte."""
        return len(SPECIALS) + (ord(character) if isinstance(character, str) else character)

    def spell(self, text: str) -> list[int]:
        """The text in tokens of one byte."""
        return [self.byte(byte) for byte in text.encode()]

    def accepts(self, grammar: Any, text: str) -> bool:
        """Whether the text is one of the grammar's."""
        matcher = grammar.matcher(frozenset([self.eos]))
        return all(matcher.accept(token) for token in self.spell(text)) and self.eos in self.allowed(matcher)

    def masks(self, matcher: Any, drafts: Sequence[int] = ()) -> list[set[int]]:
        """The ids that each row allows."""
        bitmask = np.full((len(drafts) + 3, -(-self.vocab_size // 32)), -1, dtype=np.int32)
        self.backend.fill_bitmask([MaskRows(matcher, 1, drafts)], bitmask)
        assert (bitmask[[0, -1]] == -1).all(), "rows of others were touched"
        bits = np.unpackbits(bitmask[1:-1].view(np.uint8), axis=1, bitorder="little")
        return [set(np.flatnonzero(row).tolist()) for row in bits]

    def allowed(self, matcher: Any) -> set[int]:
        return self.masks(matcher)[0]


@pytest.fixture(scope="session")
def grammars() -> Grammars:
    return Grammars()


@pytest.fixture(scope="session")
def make_grammars() -> Callable[..., Grammars]:
    return Grammars
