from __future__ import annotations

import hashlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.hashing import extend_hashes, extra_keys, hash_block, root_hash
from octavo.request import MediaSpan, Request
from octavo.sampling_params import SamplingParams

ROOT = root_hash(0)
REQUEST = Request(
    request_id="r",
    prompt_token_ids=(1,),
    sampling_params=SamplingParams(),
    seed=0,
    eos_token_ids=frozenset(),
    max_tokens=1,
    arrival_time=0.0,
)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=12)
KEYS = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3)


def hashes_of(token_ids: list[int], block_size: int = 4, request: Request = REQUEST) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, ROOT, request, token_ids, block_size)
    return hashes


@given(TOKENS, TOKENS, KEYS, KEYS)
def test_hashes_are_equal_exactly_when_everything_hashed_is(
    a: list[int], b: list[int], keys_a: list[tuple[str, str]], keys_b: list[tuple[str, str]]
) -> None:
    equal = (a, keys_a) == (b, keys_b)
    assert (hash_block(ROOT, a, keys_a) == hash_block(ROOT, b, keys_b)) is equal
    assert hash_block(root_hash(1), a, keys_a) != hash_block(ROOT, a, keys_a)


def test_moving_a_boundary_between_parts_changes_the_hash() -> None:
    variants = [
        hash_block(ROOT, [1, 2], [("ab", "c")]),
        hash_block(ROOT, [1, 2], [("a", "bc")]),
        hash_block(ROOT, [1, 2], [("abc", "")]),
        hash_block(ROOT, [1, 2], [("a", "b"), ("c", "")]),
        hash_block(ROOT, [1], [("ab", "c")]),
        hash_block(ROOT, [1, 2]),
    ]
    assert len(set(variants)) == len(variants)


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_hash_i_is_shared_exactly_by_equal_prefixes(a: list[int], b: list[int]) -> None:
    for i, (x, y) in enumerate(zip(hashes_of(a), hashes_of(b), strict=False)):
        assert (x == y) is (a[: 4 * (i + 1)] == b[: 4 * (i + 1)])


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.data())
def test_growing_step_by_step_gives_the_hashes_of_the_whole(token_ids: list[int], data: st.DataObject) -> None:
    hashes: list[bytes] = []
    length = 0
    while length < len(token_ids):
        length += data.draw(st.integers(1, 7))
        extend_hashes(hashes, ROOT, REQUEST, token_ids[:length], 4)
    assert hashes == hashes_of(token_ids)
    assert len(hashes) == len(token_ids) // 4


def test_adapters_and_salts_never_share_a_block() -> None:
    token_ids = list(range(16))
    requests = [
        REQUEST,
        replace(REQUEST, adapter="x"),
        replace(REQUEST, adapter="y"),
        replace(REQUEST, cache_salt="x"),
        replace(REQUEST, cache_salt="y"),
        replace(REQUEST, cache_salt=""),
        replace(REQUEST, adapter="x", cache_salt="y"),
        replace(REQUEST, adapter="y", cache_salt="x"),
    ]
    everything = [h for request in requests for h in hashes_of(token_ids, request=request)]
    assert len(set(everything)) == len(requests) * 4
    again = replace(REQUEST, request_id="other", seed=9, cache_salt="x", arrival_time=5.0)
    assert hashes_of(token_ids, request=again) == hashes_of(token_ids, request=requests[3])


def test_salt_enters_once_and_the_adapter_everywhere() -> None:
    request = replace(REQUEST, adapter="a", cache_salt="s")
    assert extra_keys(request, 0, 4) == (("adapter", "a"), ("salt", "s"))
    assert extra_keys(request, 1, 4) == (("adapter", "a"),)


def test_the_encoding_is_fixed() -> None:
    """Other processes compare these hashes, so neither the machine nor the run may change them."""
    parent = hashlib.sha256((0).to_bytes(8, "little")).digest()
    tokens = b"\x03\0\0\0" + b"\x01\0\0\0" + b"\x02\0\0\0" + b"\x70\x11\x01\0"
    key = b"\x07\0\0\0adapter" + b"\x02\0\0\0\xc3\xa9"
    assert hash_block(ROOT, [1, 2, 70_000], [("adapter", "é")]) == hashlib.sha256(parent + tokens + key).digest()


def test_media_enter_the_blocks_that_they_reach() -> None:
    picture = MediaSpan(start=3, num_tokens=6, content_hash="cat")
    keys = [extra_keys(replace(REQUEST, media=(picture,)), index, 4) for index in range(4)]
    assert keys == [(("media", "3+6:cat"),)] * 3 + [()]
    hashes = set()
    for media in ((), (picture,), (replace(picture, content_hash="dog"),), (replace(picture, start=2),)):
        found: list[bytes] = []
        extend_hashes(found, root_hash(0), replace(REQUEST, media=media), list(range(8)), 4)
        hashes.add(found[1])
    assert len(hashes) == 4
