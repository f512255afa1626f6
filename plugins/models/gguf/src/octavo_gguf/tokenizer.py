"""Builds a tokenizer of the `tokenizers` library from the `tokenizer.*` fields of a GGUF file.

Owns: which splits and decoders belong to which `tokenizer.ggml.model` and `tokenizer.ggml.pre`. Must never know:
tensors, architectures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo.errors import ModelLoadError
from octavo.spec import TokenizerData
from octavo_gguf.reader import GGUFFile

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of `tokenizer.ggml.token_type`."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of cl100k and its descendants; `%s` is how many digits make a word."""


@dataclass(frozen=True, slots=True)
class _Split:
    """How a byte-level tokenizer cuts text into words before it merges."""

    pattern: str | None = None
    """None: GPT-2's own, which the ByteLevel pre-tokenizer has built in."""
    single_digits: bool = False
    """Each digit is a word of its own, before the pattern applies."""
    nfc: bool = False
    """Text is brought into Unicode's composed form first."""
    whole_words: bool = False
    """A word that the vocabulary holds is one token, whatever the merges say."""
    adds_bos: bool = False
    """What holds if the file has no `tokenizer.ggml.add_bos_token`."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        return pre_tokenizers.Sequence([*steps, byte_level])


_GPT2 = _Split()
_LLAMA3 = _Split(pattern=_WORDS % r"\p{N}{1,3}", whole_words=True, adds_bos=True)
_QWEN2 = _Split(pattern=_WORDS % r"\p{N}", nfc=True)
_SMOLLM = _Split(single_digits=True)
SPLITS = {
    "default": _GPT2,  # files from before `pre` existed
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
}
"""By `tokenizer.ggml.pre`. Extend it together with a test against the original tokenizer."""


def tokenizer_data(file: GGUFFile) -> TokenizerData:
    """The tokenizer as data. Raises `ModelLoadError` for a kind that is not mapped, or contradictory fields."""
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in file.fields.items()}
    tokens = fields.get("tokens")
    kinds = fields.get("token_type") or [1] * len(tokens or ())
    if not isinstance(tokens, list) or len(kinds) != len(tokens):
        raise ModelLoadError(f"{file.path}: the GGUF header has no tokenizer, or one whose parts differ in length")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    model = fields.get("model")
    if model not in builders:
        raise ModelLoadError(
            f"{file.path}: octavo-gguf does not map the tokenizer {model!r}, only {', '.join(builders)}"
        )
    tokenizer, adds_bos = builders[model](file, fields, tokens)
    for kind, special in ((_CONTROL, True), (_UNKNOWN, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    named = {name: _named(file, fields, tokens, key) for name, key in _NAMES.items()}
    bos, eos, eot = named["bos_token"], named["eos_token"], named.pop("eot_token")
    template = [f"{bos}:0"] if bos and fields.get("add_bos_token", adds_bos) else []
    template.append("$A:0")
    template += [f"{eos}:0"] if eos and fields.get("add_eos_token", False) else []
    if len(template) > 1:
        ids = [(token, tokens.index(token)) for token in dict.fromkeys([bos, eos]) if token]
        tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(template), special_tokens=ids)
    return TokenizerData(
        tokenizer_json=tokenizer.to_str(),
        bos_token=bos,
        eos_tokens=tuple(dict.fromkeys(token for token in (eos, eot) if token)),
        special_tokens={name: token for name, token in named.items() if token},
        chat_template=file.fields.get("tokenizer.chat_template"),
    )


_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
    "eot_token": "eot_token_id",
}


def _named(file: GGUFFile, fields: dict[str, Any], tokens: list[str], key: str) -> str | None:
    token_id = fields.get(key)
    if token_id is None or token_id == 2**32 - 1:  # converters write -1 for "none"
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise ModelLoadError(f"{file.path}: tokenizer.ggml.{key} is {token_id!r}, but there are {len(tokens)} tokens")
    return tokens[token_id]


def _byte_level(file: GGUFFile, fields: dict[str, Any], tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE: every token is some bytes, each written as a printable character."""
    pre = fields.get("pre", "default")
    if pre not in SPLITS:
        raise ModelLoadError(
            f"{file.path}: octavo-gguf does not map the pre-tokenizer {pre!r}, only {', '.join(SPLITS)}"
        )
    split = SPLITS[pre]
    vocabulary = _vocabulary(file, tokens)
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in fields.get("merges", ()))]
    lost = sum(not {left, right, left + right} <= vocabulary.keys() for left, right in merges)
    if lost:
        raise ModelLoadError(f"{file.path}: {lost} merges name tokens that the vocabulary lacks")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.adds_bos


def _sentencepiece(file: GGUFFile, fields: dict[str, Any], tokens: list[str]) -> tuple[Tokenizer, bool]:
    """SentencePiece's BPE: the adjacent pair whose union scores highest is merged first; bytes are the fallback."""
    vocabulary = _vocabulary(file, tokens)
    scores = fields.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelLoadError(f"{file.path}: the GGUF header has no score for every token; convert the model again")
    unknown = fields.get("unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(vocabulary, scores),
            unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    # As in llama.cpp, each stretch of text between special tokens gets the prefix, not just the first.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer, True


def _vocabulary(file: GGUFFile, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelLoadError(f"{file.path}: the vocabulary holds {len(tokens) - len(vocabulary)} tokens twice")
    return vocabulary


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best token first."""
    ranked = []
    for token, token_id in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[token_id], token_id, vocabulary[left], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]
