"""Long answers: made in parts, with others' turns in between, and with the same JSON as short ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from octavo_openai.apis import long_lists
from octavo_openai.apis.logprobs import Spelling
from octavo_openai.apis.long_lists import do_in_parts, make_list

TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
SAY = "é <say>ab cd é</say>"
USER = [{"role": "user", "content": SAY}]
FLAT = {"input": SAY, "include": ["message.output_text.logprobs"]}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": (TEXT, {"prompt": SAY, "echo": True, "logprobs": 2}),
    "echo of ids": (TEXT, {"prompt": [7, 2, 9, 200, 3, 11], "echo": True, "logprobs": 0}),
    "scoring": (TEXT, {"prompt": [SAY, "b", "cc"], "echo": True, "logprobs": 1, "max_tokens": 0}),
    "choices": (TEXT, {"prompt": [SAY, "<say>b</say>"], "n": 2, "logprobs": 2, "prompt_logprobs": 1}),
    "as ids": (TEXT, {"prompt": SAY, "prompt_logprobs": 3, "return_tokens_as_token_ids": True, "logprobs": 0}),
    "chat": (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 2, "n": 2, "prompt_logprobs": 2}),
    "response": (RESPONSES, {**FLAT, "top_logprobs": 2}),
}


class Leaf(msgspec.Struct):
    number: int
    name: str | None


def leaf(number: int) -> Leaf:
    return Leaf(number, None if number == 3 else 'a " ]')


@pytest.mark.parametrize("num_items", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("entries_each", [1, 3, 30])
def test_json_is_the_same_in_parts(monkeypatch, num_items: int, entries_each: int) -> None:
    monkeypatch.setattr(long_lists, "AT_ONCE", 7)
    made = asyncio.run(make_list(range(num_items), num_items * entries_each, asyncio.Lock(), leaf))
    is_long = num_items * entries_each > 7
    assert all(isinstance(item, msgspec.Raw) == is_long for item in made)
    assert msgspec.json.encode(made) == msgspec.json.encode([leaf(i) for i in range(num_items)])
    assert msgspec.json.encode(made[2:]) == msgspec.json.encode([leaf(i) for i in range(2, num_items)])


@pytest.mark.parametrize("num_lists", [1, 8])
def test_one_part_in_a_turn_however_many_lists(num_lists: int) -> None:
    done: Counter[int] = Counter()
    turn = 0

    def work(part: Sequence[int]) -> None:
        done[turn] += len(part)

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def run() -> None:
        waiting, turns = asyncio.create_task(others()), asyncio.Lock()
        size = 4 * long_lists.AT_ONCE
        await asyncio.gather(*[do_in_parts(range(size), size, turns, work) for _ in range(num_lists)])
        waiting.cancel()

    asyncio.run(run())
    assert set(done.values()) == {long_lists.AT_ONCE}
    assert len(done) == 4 * num_lists


def test_one_that_fails_or_is_given_up_hinders_no_other() -> None:
    size = 4 * long_lists.AT_ONCE

    async def run() -> list[int]:
        turns = asyncio.Lock()
        with pytest.raises(ZeroDivisionError):
            await make_list(range(size), size, turns, lambda number: 1 // number)
        given_up = asyncio.create_task(make_list(range(size), size, turns, abs))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given_up.cancel()
        return await make_list(range(size), size, turns, abs)

    assert len(asyncio.run(run())) == size


def told(answer: dict[str, Any]) -> list[Any]:
    """What is the same in any two answers to a request."""
    if "choices" in answer:
        return [answer.get("prompt_logprobs"), *answer["choices"]]
    return [item["content"] for item in answer["output"]]


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_the_same_in_parts(server, monkeypatch, name: str, at_once: int) -> None:
    path, body = CASES[name]
    body = {"temperature": 0, **body}
    plain = server.post(path, **body)
    monkeypatch.setattr(long_lists, "AT_ONCE", at_once)
    response = server.post(path, **body)
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(response.content)
    assert told(response.json()) == told(plain.json())


@pytest.mark.parametrize("name", CASES)
def test_streams_are_the_same_in_parts(server, monkeypatch, name: str) -> None:
    path, body = CASES[name]
    body = {"temperature": 0, **body}
    plain = server.post(path, **body).json()
    monkeypatch.setattr(long_lists, "AT_ONCE", 1)
    if path == RESPONSES:
        events = server.named_events(path, **body)
        (text,) = told(plain)[0]
        assert told(events[-1]["response"]) == told(plain)
        deltas = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
        assert deltas == text["logprobs"][: len(deltas)] != []
        (done,) = (event for event in events if event["type"].endswith("text.done"))
        assert done["logprobs"] == text["logprobs"]
        return
    events = server.events(path, **body)
    assert [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event] == [
        found for found in [plain.get("prompt_logprobs")] if found is not None
    ]
    for choice in plain["choices"]:
        pieces = [piece for event in events for piece in event["choices"] if piece["index"] == choice["index"]]
        lists = [piece["logprobs"] for piece in pieces if piece.get("logprobs") is not None]
        for field, whole in choice["logprobs"].items():
            assert [entry for part in lists for entry in part[field]] == whole
        assert pieces[0].get("prompt_logprobs") == choice.get("prompt_logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_while_a_part_is_made(server, monkeypatch, caplog, stream: bool) -> None:
    monkeypatch.setattr(long_lists, "AT_ONCE", 2)
    monkeypatch.setattr(Spelling, "text", lambda self, token_id: 1 / 0)
    response = server.post(TEXT, prompt=SAY, echo=True, logprobs=1, stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert server.post(TEXT, prompt=SAY, echo=True, logprobs=1).status_code == 200
