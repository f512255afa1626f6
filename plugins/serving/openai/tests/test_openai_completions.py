"""`/v1/completions`: prompts in every form, echo, log probabilities, batches, scoring."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/completions"


def complete(server, **body: Any) -> dict[str, Any]:
    response = server.post(PATH, **{"max_tokens": 100, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_an_answer(server) -> None:
    answer = complete(server, prompt="<say>Hello.</say>")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": "Hello.",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] in server.service.model_names
    assert answer["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 7,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_max_tokens_is_16_unless_said(server) -> None:
    answer = server.post(PATH, prompt="<say>012345678901234567890</say>").json()
    assert texts(answer) == ["0123456789012345"]
    assert answer["choices"][0]["finish_reason"] == "length"


def test_prompts_in_every_form(server) -> None:
    ids = server.post("/tokenize", prompt="<say>by ids</say>").json()["tokens"]
    other = server.post("/tokenize", prompt="<say>more</say>").json()["tokens"]
    assert texts(complete(server, prompt=ids)) == ["by ids"]
    assert texts(complete(server, prompt=[ids])) == ["by ids"]
    assert texts(complete(server, prompt=[ids, other])) == ["by ids", "more"]
    assert texts(complete(server, prompt=["<say>a</say>", "<say>b</say>"])) == ["a", "b"]
    assert texts(complete(server, prompt=["<say>a</say>"])) == ["a"]
    assert texts(complete(server, prompt=["<say>a</say>", other])) == ["a", "more"]


def test_choices_are_prompt_major(server) -> None:
    answer = complete(server, prompt=["<say>a</say>", "<say>bb</say>"], n=2, echo=True)
    assert texts(answer) == ["<say>a</say>a"] * 2 + ["<say>bb</say>bb"] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3 + 4, "each prompt counts once"
    assert answer["usage"]["completion_tokens"] == 2 * 2 + 2 * 3


def test_one_bad_prompt_refuses_the_whole_request(server) -> None:
    response = server.post(PATH, prompt=["<say>a</say>", "x" * 5000])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert server.service.llm.num_unfinished == 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_logprobs(server, stream: bool) -> None:
    body = {"prompt": "The <say>the thing</say>", "echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 50}
    if stream:
        pieces = [event["choices"][0] for event in server.events(PATH, **body)]
        text = "".join(piece["text"] for piece in pieces)
        logprobs = {name: [entry for p in pieces for entry in p["logprobs"][name]] for name in pieces[0]["logprobs"]}
    else:
        (choice,) = complete(server, **body)["choices"]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text == "The <say>the thing</say>the thing"
    tokens, offsets = logprobs["tokens"], logprobs["text_offset"]
    assert tokens[:4] == ["T", "h", "e", " "]
    assert "".join(tokens) == f"{text}<eos>"
    assert [text[a:b] for a, b in zip(offsets, [*offsets[1:], len(text)], strict=True)] == [*tokens[:-1], ""]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for token, own, top in zip(tokens[1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert top[token] == own <= 0
        assert 2 <= len(top) <= 3
    said = logprobs["token_logprobs"][-5:]
    assert all(value > -0.01 for value in said), "what is said was all but certain"


def test_echo_of_token_ids_shows_the_prompt_once(server) -> None:
    ids = server.post("/tokenize", prompt="Hi é <say>yes</say>").json()["tokens"]
    (choice,) = complete(server, prompt=ids, echo=True, logprobs=0)["choices"]
    assert choice["text"] == "Hi é yesyes", "special tokens are left out, as they are of the output"
    assert len(choice["logprobs"]["tokens"]) == len(ids) + 4
    offsets = choice["logprobs"]["text_offset"]
    assert choice["text"][offsets[-3] :] == "es"[-2:] or choice["text"][offsets[-4] :] == "yes"
    (shown,) = complete(server, prompt=ids, echo=True, skip_special_tokens=False)["choices"]
    assert shown["text"] == "Hi é <say>yes</say>yes"


def test_a_prompt_that_ends_inside_a_character_is_not_repeated(server) -> None:
    tokens = server.post("/tokenize", prompt="Hello 😀").json()["tokens"][:-1]
    for stream in (False, True):
        body = {"prompt": tokens, "max_tokens": 3, "temperature": 0}
        pieces = server.events(PATH, **body) if stream else [complete(server, **body)]
        assert "Hello" not in "".join(text for piece in pieces for text in texts(piece))


@pytest.mark.parametrize(("logprobs", "least"), [(0, 1), (1, 1), (5, 5)])
def test_number_of_logprobs(server, logprobs: int, least: int) -> None:
    (choice,) = complete(server, prompt="<say>abc</say>", logprobs=logprobs)["choices"]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "<eos>"]
    assert all(least <= len(top) <= logprobs + 1 for top in choice["logprobs"]["top_logprobs"])
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_impossible_tokens_have_finite_logprobs(server) -> None:
    ids = server.post("/tokenize", prompt="ab").json()["tokens"]
    body = {"prompt": "<say>zz</say>", "allowed_token_ids": ids, "logprobs": 20, "max_tokens": 4, "temperature": 1}
    (choice,) = complete(server, **body)["choices"]
    assert set(choice["text"]) <= {"a", "b"}
    values = [value for top in choice["logprobs"]["top_logprobs"] for value in top.values()]
    assert all(-9999 <= value <= 0 for value in values)


def test_scoring_computes_nothing_but_the_prompt(server) -> None:
    prompt = "<say>abc</say>ab"
    answer = complete(server, prompt=prompt, echo=True, logprobs=1, max_tokens=0, min_tokens=None)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    assert "".join(choice["logprobs"]["tokens"]) == prompt
    assert choice["logprobs"]["token_logprobs"][-1] > -0.01
    assert answer["usage"]["completion_tokens"] == 0
    pieces = server.events(PATH, prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    assert [piece["choices"] for piece in pieces] == [[choice]]


def test_token_ids_and_prompt_logprobs(server) -> None:
    ids = server.post("/tokenize", prompt="<say>hé</say>").json()["tokens"]
    body = {"prompt": "<say>hé</say>", "return_token_ids": True, "prompt_logprobs": 1, "logprobs": 0}
    (choice,) = complete(server, **body)["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == [*ids[1:-1], 1]
    assert choice["logprobs"]["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "<eos>"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert all(str(token_id) in entry for token_id, entry in zip(ids[1:], rest, strict=True))
    (spelt,) = complete(server, **body, return_tokens_as_token_ids=True)["choices"]
    assert spelt["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]


def test_truncation_and_special_tokens(server) -> None:
    prompt = "far away <say>ok</say>"
    ids = server.post("/tokenize", prompt=prompt).json()["tokens"]
    answer = complete(server, prompt=prompt, truncate_prompt_tokens=4, echo=True)
    assert texts(answer) == ["okok"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert complete(server, prompt=prompt, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == len(ids)
    assert texts(complete(server, prompt=prompt, add_special_tokens=False)) == ["ok"]
    long = complete(server, prompt="x" * 9000 + "<say>end</say>", truncate_prompt_tokens=-1)
    assert texts(long) == ["e"], "the model has room for one token more"


def test_stop_strings_and_stop_tokens(server) -> None:
    (choice,) = complete(server, prompt="<say>one, two, three</say>", stop=[", th", "zzz"])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one, two", "stop", ", th")
    (kept,) = complete(server, prompt="<say>one, two</say>", stop=",", include_stop_str_in_output=True)["choices"]
    assert kept["text"] == "one,"
    (comma,) = server.post("/tokenize", prompt=",").json()["tokens"]
    (by_id,) = complete(server, prompt="<say>one, two</say>", stop_token_ids=[comma])["choices"]
    assert (by_id["text"], by_id["stop_reason"]) == ("one", comma)
    (special,) = complete(server, prompt="<say>a</say>", stop=["<eos>"], ignore_eos=True)["choices"]
    assert (special["text"], special["finish_reason"]) == ("a", "stop")


def test_logit_bias_has_text_keys(server) -> None:
    (b,) = server.post("/tokenize", prompt="b").json()["tokens"]
    assert texts(complete(server, prompt="<say>aa</say>", logit_bias={str(b): 100}, max_tokens=3)) == ["bbb"]


def test_cache_salt_parts_the_cache(server) -> None:
    def cached(**more: Any) -> int:
        answer = complete(server, prompt="always the same words, over and over <say>x</say>", **more)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b")] == [0, 32, 0]


def test_best_of_and_suffix(server) -> None:
    assert texts(complete(server, prompt="<say>a</say>", n=2, best_of=2)) == ["a", "a"]
    assert texts(complete(server, prompt="<say>a</say>", best_of=1, suffix="")) == ["a"]
