"""Tokenizers out of GGUF fields, against naive ones."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from octavo_gguf.reader import GGUFFile
from octavo_gguf.source import GGUFSource
from octavo_gguf.tokenizer import tokenizer_data

TEXTS = [
    "Hello world",
    "The year is 2024, or 12345678.",
    "def f(x):\n    return x ** 2  # note\n\n\n",
    "a  12 b   7\t\t3",
    "naïve café — 한국어 日本語 😀🏳️‍🌈 e\u0301",
    "   leading and trailing   ",
    "don't I'LL we've",
    "<|im_start|>user\nhi<|im_end|>\n",
    "½ ² ٣٤٥",
    "",
]


def build(data):
    return Tokenizer.from_str(data.tokenizer_json)


def make(tiny, tmp_path, fields):
    model = tiny("llama")
    model.tokenizer = fields
    data = GGUFSource(model.write(tmp_path / "m.gguf")).tokenizer()
    return build(data), data


@pytest.fixture(scope="module")
def packaged(packaged_path):
    data = tokenizer_data(GGUFFile(packaged_path))
    return build(data), data


@pytest.mark.parametrize("text", TEXTS)
def test_the_packaged_tokenizer_loses_nothing(packaged, text):
    tokenizer, _ = packaged
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_packaged_tokenizers_parts(packaged):
    tokenizer, data = packaged
    assert data.bos_token == "<|im_start|>"
    assert data.eos_tokens == ("<|im_end|>",)
    assert data.special_tokens["unk_token"] == "<|endoftext|>"
    assert "<|im_start|>" in data.chat_template
    assert tokenizer.get_vocab_size() == 49152
    assert tokenizer.encode("hi").ids == tokenizer.encode("hi", add_special_tokens=False).ids
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [1, tokenizer.token_to_id("a"), 2]
    assert tokenizer.decode([1, tokenizer.token_to_id("a"), 2]) == "a"


@pytest.mark.parametrize("text", TEXTS)
def test_digits_are_the_only_difference_to_gpt2(packaged, text):
    """SmolLM2's own file has Digits(individual_digits) before ByteLevel: also the space before a digit stays alone."""
    tokenizer, data = packaged
    plain = build(data)
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if any(c.isnumeric() for c in text):
        spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert all(end - begin == 1 for begin, end in spans if any(c.isnumeric() for c in text[begin:end]))
    else:
        assert tokenizer.encode(text).ids == plain.encode(text).ids


def test_spaces_before_a_digit(packaged):
    assert packaged[0].encode("a  12 b").tokens == ["a", "ĠĠ", "1", "2", "Ġb"]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("OCTAVO_SLOW_TESTS"), reason="set OCTAVO_SLOW_TESTS=1")
def test_the_packaged_tokenizer_against_transformers(packaged, packaged_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(packaged_path.rpartition("/")[0], gguf_file=packaged_path)
    for text in TEXTS:
        if any(c.isnumeric() for c in text):
            continue  # transformers leaves the digit step out
        ids = packaged[0].encode(text).ids
        assert ids == theirs(text)["input_ids"]
        assert packaged[0].decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "ab 1234 don't", ["ab", "Ġ1234", "Ġdon", "'t"]),
        ("default", "x\n\ny", ["x", "Ċ", "Ċ", "y"]),
        ("smollm", "ab 1234", ["ab", "Ġ", "1", "2", "3", "4"]),
        ("qwen2", "ab 123 DON'T", ["ab", "Ġ", "1", "2", "3", "ĠDON", "'T"]),
        ("llama-bpe", "ab 12345 DON'T", ["ab", "Ġ", "123", "45", "ĠDON", "'T"]),
        ("llama-bpe", "x\n\n  y", ["x", "ĊĊ", "Ġ", "Ġy"]),
    ],
)
def test_words_of_each_pre_tokenizer(tiny, tmp_path, tokenizer_fields, pre, text, words):
    tokenizer, _ = make(tiny, tmp_path, tokenizer_fields(pre))
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == words


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_byte_level_round_trip(tiny, tmp_path, tokenizer_fields, pre, text):
    tokenizer, _ = make(tiny, tmp_path, tokenizer_fields(pre, words=["Hello", " world", "한"]))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_kinds_of_tokens(tiny, tmp_path, tokenizer_fields):
    tokenizer, _ = make(tiny, tmp_path, tokenizer_fields("gpt-2"))
    ids = tokenizer.encode("a<|end|>b<tool>").ids
    assert [tokenizer.id_to_token(i) for i in ids] == ["a", "<|end|>", "b", "<tool>"]
    assert tokenizer.decode(ids) == "ab<tool>"  # user-defined tokens are text, control tokens are not


@pytest.mark.parametrize(
    ("pre", "more", "first", "last"),
    [
        ("gpt-2", {}, "a", "a"),
        ("gpt-2", {"add_bos_token": True}, "<|bos|>", "a"),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, "<|bos|>", "<|end|>"),
        ("llama-bpe", {}, "<|bos|>", "a"),
        ("llama-bpe", {"add_bos_token": False}, "a", "a"),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(tiny, tmp_path, tokenizer_fields, pre, more, first, last):
    tokenizer, _ = make(tiny, tmp_path, tokenizer_fields(pre, **more))
    tokens = tokenizer.encode("a").tokens
    assert (tokens[0], tokens[-1]) == (first, last)
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["a"]


def test_chat_template(tiny, tmp_path, tokenizer_fields):
    fields = tokenizer_fields("gpt-2") | {"tokenizer.chat_template": "{{ messages }}"}
    assert make(tiny, tmp_path, fields)[1].chat_template == "{{ messages }}"


PIECES = ["▁", "▁a", "ab", "▁ab", "b", "a", "abc", "c", "bc", "▁b", "ca", "▁▁", "é"]


def sentencepiece_fields(seed=0, **more):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]
    scores = [0.0] * 259 + [-float(i) for i in random.Random(seed).sample(range(len(PIECES)), len(PIECES))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(PIECES)
    pads = [f"[PAD{i}]" for i in range(300 - len(tokens))]
    return {
        "model": "llama",
        "tokens": tokens + pads,
        "scores": scores + [-1e4] * len(pads),
        "token_type": kinds + [5] * len(pads),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | more


def naive_sentencepiece(fields, text, prefix=True):
    """Merge the adjacent pair whose union scores highest, the leftmost first, until no pair is a token."""
    score = dict(zip(fields["tokens"], fields["scores"], strict=True))
    parts = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
    while True:
        pairs = [(score[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return [t for part in parts for t in ([part] if part in score else [f"<0x{b:02X}>" for b in part.encode()])]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_sentencepiece_against_a_naive_one(tiny, tmp_path, seed, prefix):
    fields = sentencepiece_fields(seed, add_space_prefix=prefix)
    tokenizer, _ = make(tiny, tmp_path, fields)
    rng = random.Random(seed)
    for _ in range(200):
        text = "".join(rng.choice("aabbc é한") for _ in range(rng.randrange(12)))
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert encoding.tokens == naive_sentencepiece(fields, text, prefix)
        assert tokenizer.decode(encoding.ids) == text


def test_sentencepiece_adds_bos_and_prefixes_after_special_tokens(tiny, tmp_path):
    tokenizer, data = make(tiny, tmp_path, sentencepiece_fields())
    assert tokenizer.encode("a").tokens == ["<s>", "▁a"]
    assert tokenizer.encode("a</s>b", add_special_tokens=False).tokens == ["▁a", "</s>", "▁b"]
    assert data.eos_tokens == ("</s>",)
    tokenizer, _ = make(tiny, tmp_path, sentencepiece_fields(add_bos_token=False))
    assert tokenizer.encode("a").tokens == ["▁a"]
