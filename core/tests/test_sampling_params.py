"""Sampling options: every field refuses what it cannot mean, quickly and by its own name."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.sampling_params import MAX_N, MAX_STOP_STRINGS, MAX_TOKEN_ID_ENTRIES

WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "priority")
REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize")
ID_LISTS = ("stop_token_ids", "allowed_token_ids")
MAY_BE_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
ENDLESS = pytest.param(10**5000, id="endless")
"""A number that Python does not even print, and that is no float."""


def refused(name: str, value: object, **others: object) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value}, **others)  # type: ignore[arg-type]
    assert caught.value.field == name
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert len(message) < 400
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "value", ["1", 1.5, 1.0, True, math.nan, [1], {}, b"1", np.float32(2), np.bool_(True), np.array([1, 2]), object()]
)
def test_a_whole_number_is_nothing_else(name: str, value: object) -> None:
    assert "whole number" in refused(name, value)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    "value", ["1", True, math.nan, math.inf, -math.inf, None, [1.0], 1j, ENDLESS, np.float32("nan"), np.bool_(True)]
)
def test_a_real_number_is_finite_and_nothing_else(name: str, value: object) -> None:
    assert "finite number" in refused(name, value)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None, [], np.bool_(True)])
def test_a_flag_is_true_or_false(name: str, value: object) -> None:
    assert "true or false" in refused(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", -1), ("n", MAX_N + 1), ("n", 10**9), pytest.param("n", 10**5000, id="n-endless"),
        ("repetition_penalty", 1e-9), ("temperature", -1e-9), ("temperature", -1), ("temperature", 1e7),
        ("top_p", 0), ("top_p", -0.1), ("top_p", 1.0001),
        ("top_k", -2), ("top_k", 2**40),
        ("min_p", -0.1), ("min_p", 1.1),
        ("seed", 2**64), ("seed", -(2**63) - 1),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 10**12),
        ("min_tokens", -1),
        ("presence_penalty", 2.1), ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1), ("frequency_penalty", -2.1),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 1e6),
        ("logprobs", -1), ("logprobs", 129), ("prompt_logprobs", -1), ("prompt_logprobs", 10**6),
        ("priority", 2**31), ("priority", -(2**40)),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    refused(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1), ("n", MAX_N),
        ("temperature", 0), ("temperature", 5e-324), ("temperature", 1e-10), ("temperature", 2),
        ("top_p", 1), ("top_p", 1e-10),
        ("top_k", -1), ("top_k", 0), ("top_k", 1), ("top_k", 2**31 - 1),
        ("min_p", 0), ("min_p", 1),
        ("seed", None), ("seed", -1), ("seed", 2**63), ("seed", 2**64 - 1), ("seed", -(2**63)),
        ("max_tokens", None), ("max_tokens", 1),
        ("logprobs", None), ("logprobs", 0), ("logprobs", 128), ("prompt_logprobs", 0),
        ("presence_penalty", -2), ("frequency_penalty", 2),
        ("repetition_penalty", 1e-3), ("repetition_penalty", 65536),
        ("priority", -5),
    ],
)  # fmt: skip
def test_edge_values_are_taken_as_they_are(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16])
def test_numpys_whole_numbers_become_plain_ones(name: str, kind: type) -> None:
    value = getattr(SamplingParams(**{name: kind(3)}), name)
    assert value == 3
    assert type(value) is int


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.float16(0.5), Fraction(1, 2)])
def test_other_real_numbers_become_plain_floats(name: str, value: object) -> None:
    taken = getattr(SamplingParams(**{name: value}), name)
    assert taken == 0.5
    assert type(taken) is float


@pytest.mark.parametrize("name", [n for n in WHOLE if n not in MAY_BE_NONE])
def test_none_is_refused_where_it_means_nothing(name: str) -> None:
    refused(name, None)


def test_lists_may_be_left_empty_or_none() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None, bad_words=None, extra_args=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids, params.logit_bias, params.bad_words) == ((), (), {}, ())
    assert SamplingParams(stop=[]).stop == ()
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(bad_words="no").bad_words == ("no",)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
@pytest.mark.parametrize(
    "value", ["", [""], ["a", ""], ["a", 1], [None], 5, {"a": 1}, b"a", np.array([1, 2]), object()]
)
def test_strings_are_non_empty_strings(name: str, value: object) -> None:
    refused(name, value)


@pytest.mark.parametrize("name", ID_LISTS)
@pytest.mark.parametrize(
    "value",
    [
        5,
        "12",
        [1.5],
        [-1],
        ["1"],
        [True],
        [[1]],
        {1: 2},
        [None],
        [math.nan],
        np.array([1.5]),
        pytest.param([-(10**5000)], id="endless"),
    ],
)
def test_token_ids_are_whole_numbers_from_zero(name: str, value: object) -> None:
    refused(name, value)


def test_numpy_ids_are_token_ids() -> None:
    params = SamplingParams(
        stop_token_ids=np.array([3, 4]), allowed_token_ids=np.arange(5), logit_bias={np.int64(7): np.float32(0.5)}
    )
    assert params.stop_token_ids == (3, 4)
    assert params.allowed_token_ids == (0, 1, 2, 3, 4)
    assert params.logit_bias == {7: 0.5}
    assert all(type(i) is int for i in (*params.stop_token_ids, *params.allowed_token_ids, *params.logit_bias))


def test_allowing_nothing_is_refused() -> None:
    refused("allowed_token_ids", [])


@pytest.mark.parametrize(
    "value",
    [[1, 2], "x", 5, {"1": 1.0}, {-1: 1.0}, {1: 100.5}, {1: -101}, {1: math.nan}, {1: "x"}, {1: True}, {1: None}],
)
def test_a_bias_is_a_number_for_a_token_id(value: object) -> None:
    refused("logit_bias", value)


@pytest.mark.parametrize("value", [5, "x", [1], {1: 2}])
def test_extra_arguments_are_a_mapping_by_name(value: object) -> None:
    refused("extra_args", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", dict.fromkeys(range(100_000), 1.0)),
        ("logit_bias", dict.fromkeys(range(1_000_000), 1.0)),
        ("stop", ["a"] * 100_000),
        ("stop", ["a"] * (MAX_STOP_STRINGS + 1)),
        ("bad_words", ["a"] * 100_000),
        ("stop_token_ids", range(10**9)),
        ("allowed_token_ids", list(range(1_000_000))),
        ("temperature", "9" * 10_000_000),
        ("n", 10**9),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "huge",
)
def test_huge_values_are_refused_at_once(name: str, value: object) -> None:
    started = time.process_time()
    refused(name, value)
    assert time.process_time() - started < 1


def test_the_longest_lists_are_taken_at_once() -> None:
    started = time.process_time()
    ids = range(MAX_TOKEN_ID_ENTRIES)
    params = SamplingParams(logit_bias=dict.fromkeys(ids, 1), stop_token_ids=ids, stop=["a"] * MAX_STOP_STRINGS)
    assert len(params.logit_bias) == len(params.stop_token_ids) == MAX_TOKEN_ID_ENTRIES
    assert time.process_time() - started < 1


def test_fields_are_checked_against_each_other() -> None:
    refused("min_tokens", 5, max_tokens=4)
    refused("stop", ["a"], detokenize=False)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=10**9, max_tokens=None).max_tokens is None


def test_the_record_cannot_be_changed_from_outside() -> None:
    bias, stop = {1: 1.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[2], stop[0] = 5.0, "b"
    assert params.logit_bias == {1: 1.0}
    assert params.stop == ("a",)
    with pytest.raises(AttributeError):
        params.n = 2  # type: ignore[misc]


def test_a_copy_is_checked_anew() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={3: 1.0})
    assert params.replace(top_k=5) == SamplingParams(temperature=0.5, stop=["a"], logit_bias={3: 1.0}, top_k=5)
    with pytest.raises(InvalidRequestError, match=r"^top_k: "):
        params.replace(top_k=-5)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (5e-324, True), (1e-6, True), (1.1e-6, False)])
def test_which_temperatures_are_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy
