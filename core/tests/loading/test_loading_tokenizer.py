"""Text to ids and back: special tokens, gaps, and files that carry somebody's training settings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, ModelLoadError
from octavo.loading.tokenizer import HFTokenizer


@pytest.fixture
def plain(toy):
    return HFTokenizer(toy.byte_level())


def test_what_it_says_of_itself(plain):
    assert plain.vocab_size == 259
    assert plain.bos_token_id == 256
    assert plain.eos_token_ids == (257,)
    assert plain.special_token_ids == {256, 257, 258}
    assert plain.special_token_id("<|im_end|>") == 258
    assert plain.special_token_id("a") is None
    assert plain.special_token_id("<absent>") is None
    assert plain.token(258) == "<|im_end|>"
    assert plain.chat_template is None


def test_special_tokens_are_skipped_or_kept(plain):
    ids = plain.encode("a<|im_end|>b")
    assert ids.count(258) == 1
    assert plain.decode(ids) == "ab"
    assert plain.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_ids_beyond_the_vocabulary_decode_to_nothing(plain):
    ids = plain.encode("ab")
    assert plain.decode([*ids, 259, 10**6]) == "ab"
    assert plain.token(10**6) == ""


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_survives(text):
    tokenizer = ROUND_TRIP[0]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


ROUND_TRIP: list[HFTokenizer] = []


@pytest.fixture(autouse=True, scope="module")
def _round_trip_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from octavo.spec import TokenizerData

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    data = TokenizerData(
        tokenizer_json=tokenizer.to_str(), bos_token=None, eos_tokens=(), special_tokens={}, chat_template=None
    )
    ROUND_TRIP.append(HFTokenizer(data))
    yield
    ROUND_TRIP.clear()


class TestBos:
    """B71: never twice, never lost."""

    def test_encode_adds_what_the_tokenizer_adds(self, toy):
        assert HFTokenizer(toy.byte_level(bos=True)).encode("a")[0] == 256
        assert HFTokenizer(toy.byte_level(bos=True)).encode("a", add_special_tokens=False)[0] != 256
        assert HFTokenizer(toy.byte_level(bos=False)).encode("a")[0] != 256

    @pytest.mark.parametrize("bos", [True, False])
    @pytest.mark.parametrize("add_special_tokens", [True, False])
    def test_text_that_starts_with_it_gets_no_second_one(self, bos, add_special_tokens, toy):
        ids = HFTokenizer(toy.byte_level(bos=bos)).encode("<s>a", add_special_tokens=add_special_tokens)
        assert ids[0] == 256
        assert ids.count(256) == 1

    def test_a_user_who_writes_two_gets_two(self, toy):
        assert HFTokenizer(toy.byte_level(bos=True)).encode("<s><s>a").count(256) == 2

    @pytest.mark.parametrize("bos", [True, False])
    @pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
    def test_chat_has_exactly_what_the_template_gives(self, bos, template, toy):
        tokenizer = HFTokenizer(toy.with_template(template, bos=bos))
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
        assert tokenizer.encode(text, add_special_tokens=False).count(256) == template.count("bos_token")


def test_truncation_and_padding_in_the_file_do_not_touch_prompts(toy):
    data = toy.byte_level()
    content = json.loads(data.tokenizer_json)
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = HFTokenizer(replace(data, tokenizer_json=json.dumps(content)))
    assert tokenizer.encode("ten chars!") == HFTokenizer(data).encode("ten chars!")


def test_ids_with_gaps_count_up_to_the_highest(toy):
    content = json.loads(toy.byte_level().tokenizer_json)
    vocab = content["model"]["vocab"]
    vocab[next(iter(vocab))] = 1000
    tokenizer = HFTokenizer(replace(toy.byte_level(), tokenizer_json=json.dumps(content)))
    assert tokenizer.vocab_size == 1001


def test_lone_surrogates_are_refused(plain):
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        plain.encode("a\ud800b")


@pytest.mark.parametrize("text", ["", "{", "{}", "null"])
def test_a_broken_file_is_an_error(text, toy):
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read"):
        HFTokenizer(replace(toy.byte_level(), tokenizer_json=text))


def test_special_tokens_that_the_vocabulary_lacks_are_left_out_with_a_warning(toy, caplog):
    tokenizer = HFTokenizer(replace(toy.byte_level(), bos_token="<absent>", eos_tokens=("</s>", "<gone>")))
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == (257,)
    assert tokenizer.vocab_size == 259
    assert [r.getMessage() for r in caplog.records] == [
        "the tokenizer's bos_token '<absent>' is not in its vocabulary and is left out",
        "the tokenizer's eos_token '<gone>' is not in its vocabulary and is left out",
    ]


def test_named_special_tokens_are_special_even_if_the_file_does_not_say_so(toy):
    data = toy.byte_level()
    content = json.loads(data.tokenizer_json)
    for token in content["added_tokens"]:
        token["special"] = token["content"] == "<|im_end|>"
    tokenizer = HFTokenizer(replace(data, tokenizer_json=json.dumps(content)))
    assert tokenizer.special_token_ids == {256, 257, 258}
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == "ab"


def test_several_eos_tokens_become_ids_once(toy):
    tokenizer = HFTokenizer(replace(toy.byte_level(), eos_tokens=("</s>", "<|im_end|>", "</s>")))
    assert tokenizer.eos_token_ids == (257, 258)
