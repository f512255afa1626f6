"""Masks against brute force, the laws of matchers, drafts."""

from __future__ import annotations

import itertools
import random
import re

import pytest


def language(pattern: str, alphabet: str, max_len: int) -> set[bytes]:
    """All texts of an expression that has only short ones."""
    texts = ("".join(t) for n in range(max_len + 1) for t in itertools.product(alphabet, repeat=n))
    return {text.encode() for text in texts if re.fullmatch(pattern, text)}


def objects(*optional: tuple[str, list[str]]) -> set[bytes]:
    """JSON objects of optional properties in their order."""
    ways = itertools.product(*([None, *(f'"{name}":{value}' for value in values)] for name, values in optional))
    return {("{" + ",".join(part for part in way if part) + "}").encode() for way in ways}


CASES = {
    "choice": ({"choice": ["yes", "no", "none", "日本", "é", "😀"]}, {"yes", "no", "none", "日本", "é", "😀"}),
    "regex": ({"regex": "(ab|a)?12+?b{0,2}|true"}, language("(ab|a)?12{1,4}b{0,2}", "ab12", 8) | {b"true"}),
    "enum": ({"json": {"enum": ["ab", "aba", 12, True, None]}}, {'"ab"', '"aba"', "12", "true", "null"}),
    "object": (
        {"json": {"properties": {"ab": {"enum": [1, 12]}, "b": {"type": "boolean"}}}},
        objects(("ab", ["1", "12"]), ("b", ["true", "false"])),
    ),
    "grammar": ({"grammar": 'root ::= "a" x{0,2}\nx ::= "ab" | "12"'}, language("a(ab|12){0,2}", "ab12", 5)),
    "length": (
        {"json": {"maxLength": 2, "pattern": "^[ab]*$"}},
        {f'"{t}"' for t in ("", "a", "b", "aa", "ab", "ba", "bb")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_mask_is_what_can_still_become_valid(grammars, name):
    constraint, texts = CASES[name]
    texts = {text.encode() if isinstance(text, str) else text for text in texts}
    if name == "regex":  # 2+ has no longest text; masks are compared where the listed ones do not end
        texts = {text for text in texts if text.count(b"2") < 4} | {text for text in texts if text.count(b"2") == 4}
    matcher = grammars.matcher(grammars.eos, **constraint)
    rng = random.Random(name)
    for _ in range(30):
        text, num_accepted = b"", 0
        while name != "regex" or text.count(b"2") < 2:
            wanted = {
                i for i, token in enumerate(grammars.tokens) if token and any(t.startswith(text + token) for t in texts)
            }
            wanted |= {grammars.eos} if text in texts else set()
            allowed = grammars.allowed(matcher)
            assert allowed == wanted, text
            assert matcher.is_finished() == (wanted == {grammars.eos}), text
            for forbidden in rng.sample(range(grammars.vocab_size), 5):
                if forbidden not in wanted:
                    assert not matcher.accept(forbidden)
            token = rng.choice(sorted(wanted))
            assert matcher.accept(token)
            num_accepted += 1
            if token == grammars.eos:
                assert matcher.is_finished()
                assert not any(matcher.accept(i) for i in (grammars.eos, grammars.byte("a")))
                break
            text += grammars.tokens[token]
        matcher.rollback(num_accepted)


JSON = {"json": {"properties": {"a": {"type": "string"}, "n": {"type": "array", "items": {"$ref": "#"}}}}}


@pytest.mark.parametrize("seed", range(8))
def test_rollback_is_exact(grammars, seed):
    rng = random.Random(seed)
    grammar = grammars.compile(**rng.choice([JSON, {"regex": "[a-z]{1,3}( [0-9]+)*"}, {"json_object": True}]))
    stops = frozenset([grammars.eos, grammars.end][: rng.randint(0, 2)])
    matcher, history = grammar.matcher(stops), []
    for _ in range(60):
        if history and rng.random() < 0.3:
            num = rng.randint(1, len(history))
            matcher.rollback(num)
            del history[-num:]
        else:
            token = rng.choice(sorted(grammars.allowed(matcher)) or [None])
            if token is None or not matcher.accept(token):
                matcher.rollback(len(history))
                history.clear()
                continue
            history.append(token)
        fresh = grammar.matcher(stops)
        assert all(fresh.accept(token) for token in history)
        if not stops & set(history):
            assert grammars.allowed(matcher) == grammars.allowed(fresh)
        assert matcher.is_finished() == fresh.is_finished()
        assert matcher.forced_text() == fresh.forced_text()


def test_rollback_across_a_stop_token(grammars):
    matcher = grammars.matcher(grammars.eos, json={"const": 1})
    assert matcher.accept(grammars.byte("1"))
    before = grammars.allowed(matcher)
    assert matcher.accept(grammars.eos)
    assert matcher.is_finished()
    assert matcher.forced_text() == ""
    matcher.rollback(1)
    assert grammars.allowed(matcher) == before == {grammars.eos}
    matcher.rollback(1)
    assert grammars.allowed(matcher) == {grammars.byte("1")}


@pytest.mark.parametrize("stops", [(), (0,), (0, 1), (0, 300)])
def test_stop_tokens(grammars, stops):
    digits = set(grammars.spell("0123456789")) | {i for i, t in enumerate(grammars.tokens) if t == b"12"}
    padded = {i if i < 3 else grammars.vocab_size - 1 for i in stops}
    matcher = grammars.matcher(*padded, regex="[0-9]+")
    assert grammars.allowed(matcher) == digits
    assert matcher.accept(grammars.byte("7"))
    assert grammars.allowed(matcher) == digits | padded
    assert not matcher.is_finished()  # there is always one more
    for special in {0, 1, 2} - padded:
        assert not matcher.accept(special)
    closed = grammars.matcher(*padded, json={"const": {}})
    assert all(map(closed.accept, grammars.spell("{}")))
    assert closed.is_finished()
    assert grammars.allowed(closed) == padded


def test_forced_text(grammars):
    matcher = grammars.matcher(
        grammars.eos, json={"properties": {"name": {"enum": ["ab", "aé"]}}, "required": ["name"]}
    )
    assert matcher.forced_text() == '{"name":"a'
    assert matcher.forced_text() == '{"name":"a'
    assert all(map(matcher.accept, grammars.spell('{"name":"ab')))
    assert matcher.forced_text() == '"}'
    assert grammars.matcher(regex="[ab]").forced_text() == ""


@pytest.mark.parametrize("seed", range(30))
def test_rows_of_drafts(grammars, seed):
    """Each row is the mask after the drafts before it; behind a forbidden draft or an end nothing is said."""
    rng = random.Random(seed)
    grammar = grammars.compile(json={"properties": {"a": {"type": "string", "maxLength": 4}}, "maxProperties": 1})
    stops = frozenset([grammars.eos] * rng.randint(0, 1))
    follower, drafts = grammar.matcher(stops), []
    for _ in range(rng.randint(0, 8)):
        allowed = sorted(grammars.allowed(follower))
        if not allowed or grammars.eos in drafts:
            break
        drafts.append(rng.choice(allowed))
        follower.accept(drafts[-1])
    drafts.insert(rng.randint(0, len(drafts)), rng.choice([grammars.end, grammars.byte("~"), -1, 10**6, grammars.eos]))
    matcher = grammar.matcher(stops)
    masks, state = grammars.masks(matcher, drafts), grammar.matcher(stops)
    for mask, draft in itertools.zip_longest(masks, drafts):
        assert mask == grammars.allowed(state)
        if draft is None or not state.accept(draft) or draft in stops:
            break
    assert grammars.allowed(matcher) == masks[0]


def test_rows_of_several_sequences_do_not_touch_each_other(grammars):
    import numpy as np

    from octavo.spec import MaskRows

    grammar = grammars.compile(**JSON)
    matchers = [grammar.matcher(frozenset([grammars.eos])) for _ in range(3)]
    drafts = [grammars.spell('{"a"'), [], grammars.spell("x{")]
    bitmask = np.full((9, -(-grammars.vocab_size // 32)), -1, dtype=np.int32)
    grammars.backend.fill_bitmask(
        [MaskRows(m, r, d) for m, r, d in zip(matchers, (0, 5, 6), drafts, strict=True)], bitmask
    )
    first = bitmask[0]
    assert (bitmask[5] == first).all()
    assert (bitmask[6] == first).all()
    assert not (bitmask[1] == first).all()


def test_special_tokens_and_padding_are_never_allowed(grammars):
    matcher = grammars.matcher(grammars.eos, regex=r"[\s\S]+")
    never = {i for i in range(grammars.vocab_size) if i >= len(grammars.tokens) or not grammars.tokens[i]}
    no_beginnings = {grammars.byte(byte) for byte in (*range(0x80, 0xC2), *range(0xF5, 0x100))}
    assert grammars.allowed(matcher) == set(range(grammars.vocab_size)) - never - no_beginnings
    assert len(never) == 9


def test_a_character_in_parts(grammars):
    matcher = grammars.matcher(grammars.eos, regex="é|è")
    parts = "é".encode()
    assert matcher.accept(grammars.byte(parts[0]))
    assert grammars.allowed(matcher) == {grammars.byte(parts[1]), grammars.byte("è".encode()[1])}
    assert matcher.accept(grammars.byte(parts[1]))
    assert matcher.is_finished()
