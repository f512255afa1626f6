"""Requests: the same for the same seed, of the lengths that were asked for, random or from a file."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from octavo.errors import ConfigError
from octavo.testing.table_model import table_llm
from octavo_bench.jsonl import read_requests
from octavo_bench.workload import WORKLOADS, Lengths, random_requests

FOUR = Lengths(4, 4)
SMALL = replace(WORKLOADS["w1"], input_len=Lengths(2, 5), output_len=Lengths(1, 3))


def _sizes(requests) -> tuple[int, int]:
    return sum(len(r.prompt_token_ids) for r in requests), sum(r.num_output_tokens for r in requests)


@pytest.mark.parametrize("vocab_size", [49_152, 128_256, 300])
def test_w1_has_the_published_numbers_of_tokens_whatever_the_vocabulary(vocab_size: int) -> None:
    requests = random_requests(WORKLOADS["w1"], 64, vocab_size, 0)
    assert (len(requests), *_sizes(requests)) == (64, 18_983, 9_469)
    assert all(0 <= i < vocab_size for r in requests for i in r.prompt_token_ids)
    assert random_requests(WORKLOADS["w4"], 8, vocab_size, 0) == requests[:8]


def test_the_generator_is_the_documented_one() -> None:
    draw = random.Random(3)
    expected = []
    prefix = tuple(draw.randrange(50, 49_000) for _ in range(4))
    for _ in range(6):
        ids = tuple(draw.randrange(50, 49_000) for _ in range(draw.randint(2, 5)))
        expected.append((prefix + ids, draw.randint(1, 3)))
    made = random_requests(replace(SMALL, prefix_len=4), 6, 49_152, 3)
    assert [(r.prompt_token_ids, r.num_output_tokens) for r in made] == expected
    assert made != random_requests(replace(SMALL, prefix_len=4), 6, 49_152, 4)


def test_lengths_reach_both_ends_and_no_further() -> None:
    requests = random_requests(SMALL, 300, 1000, 1)
    assert {len(r.prompt_token_ids) for r in requests} == {2, 3, 4, 5}
    assert {r.num_output_tokens for r in requests} == {1, 2, 3}


def test_w2_and_w3_are_of_one_size() -> None:
    assert _sizes(random_requests(WORKLOADS["w2"], 1, 49_152, 9)) == (300, 200)
    requests = random_requests(WORKLOADS["w3"], 64, 49_152, 0)
    assert _sizes(requests) == (64 * (1024 + 32), 64 * 64)
    assert len({r.prompt_token_ids[:1024] for r in requests}) == 1
    assert len({r.prompt_token_ids[1024:] for r in requests}) == 64


@pytest.mark.parametrize("vocab_size", [1, 2, 99, 100, 101])
def test_small_vocabularies_are_never_left(vocab_size: int) -> None:
    ids = [i for r in random_requests(SMALL, 50, vocab_size, 0) for i in r.prompt_token_ids]
    assert min(ids) >= 0
    assert max(ids) < vocab_size


@pytest.fixture(scope="module")
def tokenizer():
    return table_llm().get_tokenizer()


def _read(tmp_path, text: str, tokenizer, num_prompts: int | None = None, output_len: Lengths = FOUR):
    file = tmp_path / "requests.jsonl"
    file.write_text(text, encoding="utf-8")
    return read_requests(str(file), tokenizer, output_len, num_prompts, 0)


def test_a_file_has_texts_chats_and_ids_with_lengths_of_their_own(tmp_path, tokenizer) -> None:
    lines = [
        '{"prompt": "012", "max_tokens": 7}',
        "",
        '{"messages": [{"role": "user", "content": "34"}, {"role": "user", "content": "5"}], "output_len": 9}',
        '{"prompt_token_ids": [5, 6], "note": "kept out", "max_tokens": null}',
    ]
    found = _read(tmp_path, "\ufeff" + "\r\n".join(lines), tokenizer)
    assert [(r.prompt_token_ids, r.num_output_tokens) for r in found] == [
        ((2, 3, 4), 7),
        ((5, 6, 7), 9),
        ((5, 6), 4),
    ]
    assert _read(tmp_path, "\n".join(lines), tokenizer, num_prompts=2) == found[:2]
    assert _read(tmp_path, '{"prompt_token_ids": [5, 6]}', None)[0].prompt_token_ids == (5, 6)


def test_lengths_that_a_file_leaves_open_are_drawn_alike_each_time(tmp_path, tokenizer) -> None:
    text = '{"prompt": "0"}\n' * 40
    first, second = (_read(tmp_path, text, tokenizer, output_len=Lengths(2, 9)) for _ in range(2))
    assert first == second
    assert {r.num_output_tokens for r in first} <= set(range(2, 10))
    assert len({r.num_output_tokens for r in first}) > 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[1]", "must be an object with one of prompt, messages, prompt_token_ids"),
        ("{}", "it has none"),
        ('{"prompt": "0", "prompt_token_ids": [3]}', "exactly one of .*it has prompt, prompt_token_ids"),
        ('{"prompt": 3}', "prompt must be text"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt_token_ids": [true]}', "list of whole numbers"),
        ('{"prompt_token_ids": []}', "prompt_token_ids is empty"),
        ('{"messages": "hello"}', "list of objects with role and content"),
        ('{"prompt": "0", "max_tokens": 0}', "at least 1, got 0"),
        ('{"prompt": "0", "output_len": "9"}', "at least 1, got '9'"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, tokenizer, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"requests.jsonl, line 2: .*{message.removeprefix('line 2: ')}"):
        _read(tmp_path, f'{{"prompt": "0"}}\n{line}\n', tokenizer)


def test_a_file_that_is_missing_empty_or_short_is_an_error(tmp_path, tokenizer) -> None:
    with pytest.raises(ConfigError, match="--dataset-path: cannot read '/nowhere"):
        read_requests("/nowhere/at/all", tokenizer, Lengths(1, 1), None, 0)
    with pytest.raises(ConfigError, match="holds 0 requests, and write one JSON object a line"):
        _read(tmp_path, "\n \n", tokenizer)
    with pytest.raises(ConfigError, match="holds 1 requests, and --num-prompts asks for 2"):
        _read(tmp_path, '{"prompt": "0"}', tokenizer, num_prompts=2)
    with pytest.raises(ConfigError, match=r"prompt needs a tokenizer.*give prompt_token_ids"):
        _read(tmp_path, '{"prompt": "0"}', None)
