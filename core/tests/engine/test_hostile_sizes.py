"""Requests of a size that would make others wait: refused early, or done once."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError, suggestion
from octavo.sampling.processors import BadWords
from octavo.testing import echo_model
from octavo.testing.echo_model import echo_config


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.from_config(echo_config(max_model_len=256), [echo_model])


class CountingTokenizer:
    """Counts characters that are tokenised."""

    def __init__(self, tokenizer) -> None:
        self._tokenizer, self.num_chars = tokenizer, 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.num_chars += len(text)
        return self._tokenizer.encode(text, add_special_tokens)

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)


def test_of_a_text_that_is_far_too_long_only_the_beginning_is_looked_at(llm: LLM, monkeypatch) -> None:
    counting = CountingTokenizer(llm.engine.inputs.tokenizer)
    monkeypatch.setattr(llm.engine.inputs, "tokenizer", counting)
    for text in ("word " * 100_000, "1" * 500_000, "ü" * 100_000):
        counting.num_chars = 0
        with pytest.raises(InvalidRequestError, match="has more than 512 tokens; at most 255 fit"):
            llm.generate(text)
        assert counting.num_chars == 16 * 256
    with pytest.raises(InvalidRequestError, match="has 300 tokens"):
        llm.generate("x" * 300)


def test_bad_words_are_spelt_once_for_all_sequences_of_a_request(llm: LLM, monkeypatch) -> None:
    spelt = []
    original = BadWords._spell
    monkeypatch.setattr(BadWords, "_spell", lambda self, *args: spelt.append(1) or original(self, *args))
    params = SamplingParams(n=8, bad_words=["hidden", "x", " no"], max_tokens=20)
    (output,) = llm.generate("<say>a hidden no x</say>", params)
    assert len(spelt) == 1
    assert not any("hidden" in c.text or "x" in c.text for c in output.outputs)


@pytest.mark.parametrize("words", [["w"] * 1025, ["long " * 20_000]])
def test_bad_words_have_a_limit(words) -> None:
    with pytest.raises(InvalidRequestError, match=r"^bad_words: at most"):
        SamplingParams(bad_words=words)


def test_token_ids_count_once() -> None:
    assert SamplingParams(allowed_token_ids=[3, 1, 3, 1, 2]).allowed_token_ids == (3, 1, 2)


def test_a_request_that_leaves_itself_no_token_is_itself_at_fault(llm: LLM) -> None:
    (output,) = llm.generate("<say>aa</say>", SamplingParams(allowed_token_ids=[1], min_tokens=3))
    assert "no token is allowed" in (output.outputs[0].error or "")
    assert output.outputs[0].error_field == "allowed_token_ids"


def test_nothing_is_suggested_for_a_text_that_nobody_meant_as_a_name() -> None:
    assert suggestion("x" * 100_000, ["xx"]) == ""
    assert suggestion("modle", ["model"]) == "; did you mean 'model'?"
