"""Long answers: told in parts, in between others' turns, with the same JSON as short ones."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from octavo_openai.apis.logprobs import Spelling
from octavo_openai.errors import APIError
from octavo_openai.http import exchange, long_lists
from octavo_openai.http.answers import EventStream, frame, frames
from octavo_openai.http.long_lists import GAP, Unfilled, encode, joined, listed

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
    name: str
    numbers: list[int]


class Tree(msgspec.Struct, tag="tree"):
    first: list[Leaf]
    between: str
    second: list[list[int] | None]
    third: list[int]


class Item:
    """Something that can be watched."""


def make_tree(num_leaves: int, size: int) -> Tree:
    def leaves(names: Sequence[int]) -> list[Leaf]:
        return [Leaf(f"leaf {i}\0", listed(range(size * i), size * i, list)) for i in names]

    def lists(numbers: Sequence[int]) -> list[list[int] | None]:
        return [None if i == 1 else [i] for i in numbers]

    first = listed(range(num_leaves), num_leaves * size, leaves)
    third = joined(iter([[], [1, 2], [], [3], []]), size)
    return Tree(first, 'a\0b ], "', listed(range(num_leaves), num_leaves, lists), third)


async def filled(records: list[Tree], turns: asyncio.Lock) -> bytes:
    found = frames(records)
    return await found.fill(turns) if isinstance(found, Unfilled) else found


@pytest.mark.parametrize(("num_leaves", "size"), [(0, 0), (1, 9), (5, 3), (20, 2), (2, 40)])
@pytest.mark.parametrize("at_once", [1, 7])
def test_json_is_the_same_in_parts(monkeypatch, at_once: int, num_leaves: int, size: int) -> None:
    plain = b"".join([frame(make_tree(num_leaves, size)), frame(make_tree(3, 1))])
    assert GAP not in plain
    monkeypatch.setattr(long_lists, "AT_ONCE", at_once)
    records = [make_tree(num_leaves, size), make_tree(3, 1)]
    assert (GAP in encode(records)) == (max(num_leaves * size, size, 3) > at_once)
    assert asyncio.run(filled(records, asyncio.Lock())) == plain


def test_a_long_list_may_be_told_twice(monkeypatch) -> None:
    monkeypatch.setattr(long_lists, "AT_ONCE", 2)
    leaf = Leaf("twice", listed(range(9), 9, list))
    data = asyncio.run(Unfilled(encode([leaf, leaf]), [leaf, leaf]).fill(asyncio.Lock()))
    assert msgspec.json.decode(data) == [{"name": "twice", "numbers": list(range(9))}] * 2


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="a Item cannot be encoded"):
        encode([Item()])


@pytest.mark.parametrize("num_answers", [1, 8])
def test_one_part_in_a_turn_however_many_answers(num_answers: int) -> None:
    made: Counter[int] = Counter()
    turn = 0

    def make(numbers: Sequence[int]) -> list[int]:
        made[turn] += len(numbers)
        return list(numbers)

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def tell(turns: asyncio.Lock) -> None:
        size = 4 * long_lists.AT_ONCE
        leaf = Leaf("", listed(range(size), size, make))
        await Unfilled(encode(leaf), [leaf]).fill(turns)

    async def run() -> None:
        waiting, turns = asyncio.create_task(others()), asyncio.Lock()
        await asyncio.gather(*[tell(turns) for _ in range(num_answers)])
        waiting.cancel()

    asyncio.run(run())
    assert set(made.values()) == {long_lists.AT_ONCE}
    assert len(made) == 4 * num_answers


def test_items_are_let_go_of_with_their_part() -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()
    counts = []

    def make(items: Sequence[Item]) -> list[int]:
        counts.append(len(alive))
        return [0] * len(items)

    def leaf_of(num_items: int) -> Leaf:
        items = [Item() for _ in range(num_items)]
        alive.update(items)
        return Leaf("", listed(items, num_items, make))

    leaf = leaf_of(3 * long_lists.AT_ONCE)
    asyncio.run(Unfilled(encode(leaf), [leaf]).fill(asyncio.Lock()))
    assert counts == [3 * long_lists.AT_ONCE, 2 * long_lists.AT_ONCE, long_lists.AT_ONCE]


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
    monkeypatch.setattr(exchange, "LONG_BODY", 100)
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
    monkeypatch.setattr(exchange, "LONG_BODY", 100)
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


def test_an_error_stands_behind_a_long_event(monkeypatch) -> None:
    """Though it comes while the client has read but a part of the event."""
    monkeypatch.setattr(exchange, "LONG_BODY", 10)
    event = frame(Leaf("long", list(range(100))))
    sent: list[bytes] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield event
        yield b"never"

    async def run() -> None:
        reads_on = asyncio.Event()

        async def send(message: Any) -> None:
            if len(sent) == 3:
                await reads_on.wait()
            if body := message.get("body"):
                sent.append(body)

        made = exchange.Exchange({"type": "http", "headers": []}, asyncio.Event().wait, send)
        running = asyncio.create_task(made.run(made.send_stream(EventStream(events())), None))
        while len(sent) < 3:
            await asyncio.sleep(0)
        made.stop(APIError(504, "too late", code="timeout"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not running.done(), "the event is finished first"
        reads_on.set()
        with pytest.raises(APIError) as caught:
            await running
        await made.send_error(caught.value)

    asyncio.run(run())
    assert b"".join(sent).startswith(event + b'data: {"error":')
    assert all(len(part) <= 10 for part in sent)
