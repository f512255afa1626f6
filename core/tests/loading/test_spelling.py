"""Bytes of tokens: what each adds to a text, for the ways in which vocabularies spell."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.loading.spelling import Spelling
from octavo.loading.tokenizer import HFTokenizer
from octavo.spec import TokenizerData


def test_every_byte_has_a_character_of_its_own_in_byte_level_bpe() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelling = Spelling(json.dumps({"decoder": {"type": "ByteLevel"}}))
    assert {spelling.to_bytes(character) for character in alphabet} == {bytes([b]) for b in range(256)}
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("héllo wörld", "日本\n\t", "🦜"):
        ((piece, _),) = pre.pre_tokenize_str(text)
        assert spelling.to_bytes(piece) == text.encode()


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    ],
)
def test_sentencepiece_marks_are_spaces(decoder) -> None:
    spelling = Spelling(json.dumps({"decoder": decoder}))
    assert spelling.to_bytes("▁the") == b" the"
    falls_back = decoder["type"] == "Sequence"
    assert spelling.to_bytes("<0xE6>") == (b"\xe6" if falls_back else b"<0xE6>")


def test_a_tokenizer_without_decoder_spells_as_it_is() -> None:
    assert Spelling(json.dumps({"decoder": None})).to_bytes("wörd") == "wörd".encode()


def test_special_tokens_and_unknown_ids_add_nothing_and_added_words_are_themselves() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens([AddedToken("Ġé", normalized=False)])
    made = HFTokenizer(
        TokenizerData(
            tokenizer_json=tokenizer.to_str(), bos_token=None, eos_tokens=(), special_tokens={}, chat_template=None
        )
    )
    assert made.token_bytes(256) == b""
    assert made.token_bytes(257) == "Ġé".encode()
    assert made.token_bytes(9999) == b""
