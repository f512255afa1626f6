"""xgrammar and llguidance judge each other: along valid outputs their masks are equal, but for what is listed here."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import octavo_llguidance.plugin
import octavo_xgrammar.plugin
from octavo.spec import MaskRows
from octavo.structured_outputs import StructuredOutputsParams
from octavo.testing.table_model import BYTES_VOCAB_SIZE, EOS_TOKEN_ID, table_llm

SCHEMAS = Path(__file__).parent / "data" / "json_schemas.jsonl"
EVERY = 4
"""One of so many schemas of the file is looked at."""

CONSTRAINTS = [
    ({"regex": "[0-9]+"}, ["12"]),
    ({"regex": "(a|ab)(c|bcd)?"}, ["abcd", "ac", "abc"]),
    ({"regex": r"^\d{3}-\w+$"}, ["123-ab_"]),
    ({"regex": "[^a-f]{1,3}é?"}, ["xyz", "né"]),
    ({"regex": "(?:foo|fo)o?|[\\w.+-]+@[a-z]+\\.com"}, ["fooo", "a.b@the.com"]),
    ({"choice": ["a", "ab", "é", "éa", "the end", 'a "quoted" one']}, ["ab", "the end", "éa", 'a "quoted" one']),
    ({"json_object": True}, ['{"a":[1,-2.5e3,null,true,"x"],"é":{"":{}}}']),
    ({"json": {}}, ['{"a":[]}', "null", "-1.5E+3"]),
    ({"json": {"type": "integer"}}, ["0", "-12"]),
    ({"json": {"type": "string", "maxLength": 3}}, ['"aéx"']),
    ({"json": {"type": ["string", "null"], "enum": ["é", "日本", None, 3]}}, ['"日本"', "null"]),
    ({"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}}, ["[true,false,true]"]),
]


def parts(value):
    """All mappings within a JSON value."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(child)


@dataclass(frozen=True)
class Place:
    """A token that one backend allows and the other does not, in the text that it would make."""

    schema: str
    before: str
    text: str
    """`before` and the token; bytes that are no whole character are left out."""
    token: bytes
    by: str

    @property
    def in_string(self) -> bool:
        return len(re.findall(r'(?<!\\)(?:\\\\)*"', self.before)) % 2 == 1

    @property
    def in_open_object(self) -> bool:
        """Whether the schema has an object that says nothing of further properties."""
        return any("properties" in s and "additionalProperties" not in s for s in parts(json.loads(self.schema)))

    @property
    def string(self) -> str:
        """The part of a string that stands open before the token."""
        return self.before[self.before.rindex('"') + 1 :]

    def has_format(self, *names: str) -> bool:
        return self.in_string and any(f'"format":"{name}"' in self.schema for name in names)


DIFFERENCES: dict[str, Callable[[Place], bool]] = {
    "llguidance never writes DEL, which JSON allows": lambda p: p.by == "xgrammar" and b"\x7f" in p.token,
    r"llguidance escapes no more than it must: no \/ and no \u": lambda p: (
        p.by == "xgrammar" and re.search(r"(?<!\\)(?:\\\\)*\\[/u]\w*$", p.text) is not None
    ),
    "llguidance has -0": lambda p: p.by == "llguidance" and p.text.endswith("-0") and not p.in_string,
    "llguidance has small t and z in times (RFC 3339, section 5.6)": lambda p: (
        p.by == "llguidance" and p.has_format("date-time", "time") and p.token in (b"t", b"z")
    ),
    "llguidance has capitals in host names (RFC 1123)": lambda p: (
        p.by == "llguidance" and p.has_format("hostname") and p.token.isalpha()
    ),
    "llguidance has addresses and short names behind @ (RFC 5321, section 4.1.2)": lambda p: (
        p.by == "llguidance" and p.has_format("email") and "@" in p.string
    ),
    "xgrammar has quoted names before @ (RFC 5321, section 4.1.2)": lambda p: (
        p.by == "xgrammar" and p.has_format("email") and p.token == b"\\"
    ),
    "llguidance has all schemes and IP addresses in URIs (RFC 3986, sections 3.1 and 3.2.2)": lambda p: (
        p.by == "llguidance" and p.has_format("uri") and (":" not in p.string or p.text.endswith("://["))
    ),
    "xgrammar has no further properties where the schema says nothing of them": lambda p: (
        p.by == "llguidance" and p.in_open_object
    ),
}
"""Each with the reason why both are right. Nothing else may differ."""
FAULTS: dict[str, Callable[[Place], bool]] = {
    "the lead byte of a surrogate, or an overlong form: no UTF-8 (RFC 3629, section 3)": lambda p: (
        p.by == "xgrammar" and p.in_string and len(p.token) == 1 and (p.token == b"\xed" or 0x80 <= p.token[0] < 0x90)
    ),
    "digits beyond the count of a repetition that something optional follows": lambda p: (
        p.by == "xgrammar" and p.in_string and p.token.isdigit()
    ),
    "no escapes in strings of some lengths": lambda p: (
        p.by == "llguidance" and p.in_string and p.token == b"\\" and "maxLength" in p.schema
    ),
    "names of properties beyond ASCII": lambda p: p.schema != "" and not p.schema.isascii(),
}
"""Where xgrammar is wrong. To be taken out as they are ruled out."""


@pytest.fixture(scope="module")
def llm():
    return table_llm(vocabulary="bytes", plugins=[octavo_xgrammar.plugin, octavo_llguidance.plugin])


@pytest.fixture(scope="module")
def backends(llm):
    processors = llm.engine.core._executor._processors
    return {name: processors._processor(name)._backend for name in ("xgrammar", "llguidance")}


@pytest.fixture(scope="module")
def tokens(llm):
    tokenizer = llm.engine.tokenizer
    known = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    return known + [b""] * (BYTES_VOCAB_SIZE - len(known))


def spelling(text, tokens, rng):
    """One of the ways to spell `text` in tokens."""
    rest, token_ids = text.encode(), []
    while rest:
        token_ids.append(rng.choice([i for i, token in enumerate(tokens) if token and rest.startswith(token)]))
        rest = rest[len(tokens[token_ids[-1]]) :]
    return token_ids


def mask(backend, matcher):
    bitmask = np.full((1, -(-BYTES_VOCAB_SIZE // 32)), -1, dtype=np.int32)
    backend.fill_bitmask([MaskRows(matcher, 0, ())], bitmask)
    bits = np.unpackbits(bitmask.view(np.uint8), count=BYTES_VOCAB_SIZE, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def disagreements(backends, tokens, params, texts):
    """What the masks along `texts` do not agree on and no reason explains, as text."""
    compiled = {name: backend.compile(params) for name, backend in backends.items()}
    for text in texts:
        matchers = {name: grammar.matcher(frozenset({EOS_TOKEN_ID})) for name, grammar in compiled.items()}
        prefix = b""
        for token_id in [*spelling(text, tokens, random.Random(text)), EOS_TOKEN_ID]:
            masks = {name: mask(backends[name], matcher) for name, matcher in matchers.items()}
            for by, other in (("xgrammar", "llguidance"), ("llguidance", "xgrammar")):
                for different in masks[by] - masks[other]:
                    token = tokens[different]
                    before, after = (part.decode(errors="ignore") for part in (prefix, prefix + token))
                    place = Place(params.source, before, after, token, by)
                    if not any(explains(place) for explains in (DIFFERENCES | FAULTS).values()):
                        yield f"only {by} has {token} after {before}"
            accepted = {name: matcher.accept(token_id) for name, matcher in matchers.items()}
            if not all(accepted.values()):
                if any(fault(Place(params.source, "", "", b" ", "xgrammar")) for fault in FAULTS.values()):
                    return
                yield f"{tokens[token_id]} after {prefix.decode(errors='ignore')}: {accepted}"
                return
            prefix += tokens[token_id]


@pytest.mark.parametrize(("constraint", "texts"), CONSTRAINTS, ids=lambda value: str(value)[:40])
def test_masks_agree(backends, tokens, constraint, texts):
    assert list(disagreements(backends, tokens, StructuredOutputsParams(**constraint), texts)) == []


def test_masks_of_schemas_agree(backends, tokens):
    found = {}
    for line in SCHEMAS.read_text(encoding="utf-8").splitlines()[::EVERY]:
        entry = json.loads(line)
        text = json.dumps(entry["instances"][0], separators=(",", ":"), ensure_ascii=False)
        wrong = list(disagreements(backends, tokens, StructuredOutputsParams(json=entry["schema"]), [text]))
        if wrong:
            found[entry["name"]] = wrong[0]
    assert found == {}
