"""Masks, ends, forced text and rollback, against languages small enough to be listed."""

from __future__ import annotations

import itertools
import random

import pytest

SEEDS = range(2)


def product(alphabet, sizes):
    return ["".join(parts) for size in sizes for parts in itertools.product(alphabet, repeat=size)]


def objects():
    for a, b, c in itertools.product((None, "true", "false"), "012", (None, '"x"', '"y"')):
        items = ([f'"a":{a}'] if a else []) + [f'"bb":{b}'] + ([f'"c":{c}'] if c else [])
        yield "{" + ",".join(items) + "}"


TEXTS = ["a", "ab", "abc", "é", "éa", "b\nc", '"q"', "/"]
LANGUAGES = {
    "regex": ({"regex": "[01]{1,3}"}, product("01", (1, 2, 3))),
    "ends early": ({"regex": "(a|ab|abc)(c|d)?"}, [a + b for a in ("a", "ab", "abc") for b in ("", "c", "d")]),
    "empty too": ({"regex": "^(é|ü)?x{0,2}$"}, [a + b for a in ("é", "ü", "") for b in ("", "x", "xx")]),
    "choice": ({"choice": TEXTS}, TEXTS),
    "rules": ({"grammar": 'start: x "ab"\nx: "a"{0,4}'}, ["a" * i + "ab" for i in range(5)]),
    "ambiguous": (
        {"grammar": 'start: a b?\na: "x" | "xy"\nb: "y" | "z"'},
        [a + b for a in ("x", "xy") for b in ("", "y", "z")],
    ),
    "enum": (
        {"json": {"enum": ["é", 'a"b', 12, None, [1, {"a": True}], 1.5]}},
        ['"é"', '"a\\"b"', "12", "null", '[1,{"a":true}]', "1.5"],
    ),
    "range": ({"json": {"type": "integer", "minimum": -3, "maximum": 12}}, [*map(str, range(-3, 13)), "-0"]),
    "object": (
        {
            "json": {
                "type": "object",
                "properties": {
                    "a": {"type": "boolean"},
                    "bb": {"type": "integer", "minimum": 0, "maximum": 2},
                    "c": {"enum": ["x", "y"]},
                },
                "required": ["bb"],
                "additionalProperties": False,
            }
        },
        list(objects()),
    ),
    "array": (
        {"json": {"type": "array", "items": {"enum": [1, "z"]}, "minItems": 1, "maxItems": 3}},
        ["[" + ",".join(items) + "]" for n in (1, 2, 3) for items in itertools.product(["1", '"z"'], repeat=n)],
    ),
}


class Language:
    """What may follow, by looking at every text of the language."""

    def __init__(self, texts, tokens, stops):
        self.texts, self.tokens, self.stops = {text.encode() for text in texts}, tokens, set(stops)

    def continuations(self, prefix):
        return [text[len(prefix) :] for text in self.texts if text.startswith(prefix)]

    def allowed(self, prefix):
        rest = self.continuations(prefix)
        ids = {
            i
            for i, token in enumerate(self.tokens)
            if token and i not in self.stops and any(text.startswith(token) for text in rest)
        }
        return ids | self.stops if prefix in self.texts else ids

    def finished(self, prefix):
        return self.continuations(prefix) == [b""]


class Walk:
    """A matcher, and what it should know: the tokens that it took."""

    def __init__(self, kit, matcher, language, rng):
        self.kit, self.matcher, self.language, self.rng = kit, matcher, language, rng
        self.token_ids = []

    @property
    def stopped(self):
        return bool(self.token_ids) and self.token_ids[-1] in self.language.stops

    @property
    def prefix(self):
        return b"".join(self.language.tokens[i] for i in self.token_ids)

    def check_state(self):
        allowed = self.language.allowed(self.prefix)
        assert self.kit.mask(self.matcher) == allowed
        assert self.matcher.is_finished() == self.language.finished(self.prefix)
        for token_id in self.rng.choices(range(-2, self.kit.vocab_size + 40), k=4):
            if token_id not in allowed:
                assert not self.matcher.accept(token_id)

    def check_forced_text(self):
        forced = self.matcher.forced_text()
        rest = self.language.continuations(self.prefix)
        agree = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rest, strict=False))
        expected = bytes(column[0] for column in agree)
        if expected[:1] and 0x80 <= expected[0] < 0xC0:  # within a character no text can be forced
            expected = b""
        assert forced == expected.decode(errors="ignore")

    def check_drafts(self):
        """Rows behind drafts that mostly may follow; those behind a forbidden or a stop token are nobody's."""
        drafts, prefix, expected = [], self.prefix, [self.language.allowed(self.prefix)]
        for _ in range(self.rng.randint(1, 5)):
            likely = sorted(expected[-1])
            drafts.append(
                self.rng.choice(likely if likely and self.rng.random() < 0.85 else range(self.kit.vocab_size))
            )
            if drafts[-1] not in expected[-1] or drafts[-1] in self.language.stops:
                break
            prefix += self.language.tokens[drafts[-1]]
            expected.append(self.language.allowed(prefix))
        drafts += self.rng.choices(range(self.kit.vocab_size), k=self.rng.randint(0, 2))
        rows = self.kit.masks((self.matcher, drafts))[0]
        assert rows[: len(expected)] == expected

    def move(self):
        allowed = sorted(self.language.allowed(self.prefix))
        if self.token_ids and (self.stopped or not allowed or self.rng.random() < 0.25):
            count = self.rng.randint(1, len(self.token_ids))
            self.matcher.rollback(count)
            del self.token_ids[-count:]
        else:
            self.token_ids.append(self.rng.choice(allowed))
            assert self.matcher.accept(self.token_ids[-1])


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("stops", [(), (2,), (1, 2), (2, 3 + ord("a"))], ids=["none", "one", "two", "text"])
def test_a_matcher_knows_its_language(kit, name, stops):
    constraint, texts = LANGUAGES[name]
    for seed in SEEDS:
        rng = random.Random(f"{name} {stops} {seed}")
        language = Language(texts, kit.tokenizer.tokens, stops)
        walk = Walk(kit, kit.matcher(stops, **constraint), language, rng)
        for _ in range(20):
            if walk.stopped:
                assert walk.matcher.is_finished()
                assert not any(map(walk.matcher.accept, range(kit.vocab_size)))
            else:
                if rng.random() < 0.3:
                    walk.check_forced_text()
                walk.check_state()
                if rng.random() < 0.5:
                    walk.check_drafts()
            walk.move()


def test_an_output_without_end_is_never_finished(kit):
    matcher = kit.matcher(regex="[0-9]+")
    assert 2 not in kit.mask(matcher)
    for digit in kit.tokenizer.ids("0123456789"):
        assert matcher.accept(digit)
        assert 2 in kit.mask(matcher)
        assert not matcher.is_finished()
    assert matcher.accept(2)
    assert matcher.is_finished()
    matcher.rollback(1)
    assert not matcher.is_finished()


def test_closed_json_is_finished_without_a_stop_token(kit):
    matcher = kit.matcher((), json={"type": "array", "items": {"type": "integer"}})
    for token_id in kit.tokenizer.ids("[1,23]"):
        assert not matcher.is_finished()
        assert matcher.accept(token_id)
    assert matcher.is_finished()
    assert kit.mask(matcher) == set()


def test_a_stop_token_and_a_forbidden_one_inside_drafts(kit):
    matcher = kit.matcher((1, 2), regex="a+b?")
    a, b, x = kit.tokenizer.ids("abx")
    rows = kit.masks((matcher, [a, 2, a]), (matcher, [a, x, b]), (matcher, [a, b, a]))
    after_a = kit.mask(matcher) | {1, 2, b}
    assert rows[0][1] == rows[1][1] == rows[2][1] == after_a
    assert rows[2][2] == {1, 2}
    assert not matcher.is_finished()
    assert kit.mask(matcher) == rows[0][0]


@pytest.mark.parametrize("num_tokens", [100, 256, 259])
@pytest.mark.parametrize("padding", [0, 1, 28, 29, 32])
def test_padding_and_special_tokens_are_forbidden_whatever_the_width(make_kit, num_tokens, padding):
    kit = make_kit(num_tokens, padding)
    assert kit.mask(kit.matcher((2,), regex="(?s).*")) == {
        2,
        *kit.tokenizer.ids(bytes(range(min(num_tokens - 3, 128)))),
    } | {3 + byte for byte in range(0xC2, 0xF5) if 3 + byte < num_tokens}


def test_matchers_of_one_grammar_are_apart(kit):
    matcher, other = kit.matcher(regex="abc"), kit.matcher(regex="abc")
    fresh = kit.mask(other)
    assert matcher.accept(kit.tokenizer.ids("a")[0])
    assert kit.mask(other) == fresh
    assert kit.mask(matcher) != fresh


def test_forced_text_may_be_spelt_in_any_tokens(kit):
    matcher = kit.matcher(json={"const": {"a": True}})
    assert matcher.forced_text() == '{"a":true}'
    spellings = {token_id for token_id, token in enumerate(kit.tokenizer.tokens) if token in (b"{", b'{"')}
    assert kit.mask(matcher) == spellings
