"""What all APIs that know messages have in common, and the parts that they are made of."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from octavo import AsyncLLM
from octavo_openai.apis.json_object import ObjectText
from octavo_openai.pipeline.history import History
from octavo_openai.pipeline.truncation import render_latest

USER = [{"role": "user", "content": "<say>ok</say>"}]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}


@pytest.mark.parametrize("path", PATHS)
def test_requests_carry_the_trace_of_their_client(server, monkeypatch, path: str) -> None:
    traces = []
    make_request = AsyncLLM.make_request

    async def note(self: Any, *args: Any, **keywords: Any) -> Any:
        request = await make_request(self, *args, **keywords)
        traces.append(request.trace_headers)
        return request

    monkeypatch.setattr(AsyncLLM, "make_request", note)
    server.post(path, **PATHS[path], _headers={"traceparent": "00-abc-def-01", "x-other": "1"})
    assert traces == [{"traceparent": "00-abc-def-01"}]


@pytest.mark.parametrize("path", PATHS)
def test_the_log_has_the_tokens_and_why_it_ended(start, caplog, path: str) -> None:
    server = start(log_requests=True)
    with caplog.at_level("INFO", "octavo_openai"):
        for stream in (False, True):
            server.post(path, **PATHS[path], stream=stream)
            server.until_idle()
    lines = [record.fields for record in caplog.records if getattr(record, "fields", {}).get("path") == path]
    assert [line["completion_tokens"] for line in lines] == [3, 3]
    assert [line["finish_reasons"] for line in lines] == [["stop"], ["stop"]]


def test_what_is_polled_is_for_debugging_unless_it_fails(start, caplog) -> None:
    server = start(log_requests=True, api_key=("secret",))
    polled, others = ["/health", "/metrics", "/status", "/", "/page/main.js"], ["/version", "/v1/models"]
    with caplog.at_level("DEBUG", "octavo_openai"):
        for path in polled + others:
            assert server.client.get(path, headers={"x-api-key": "secret"}).status_code == 200
        for path in ("/status", "/page/none.js"):
            assert server.client.get(path).status_code in (401, 404)
        server.until(lambda: bool(caplog.records) and caplog.records[-1].fields["path"] == "/page/none.js")
    levels = [(record.fields["path"], record.levelname) for record in caplog.records]
    assert levels[-len(polled + others) - 2 :] == [  # before them the one that waited for the server may be written
        *((path, "DEBUG") for path in polled),
        *((path, "INFO") for path in (*others, "/status", "/page/none.js")),
    ]


def test_a_history_joins_what_the_assistant_did_in_a_row() -> None:
    history = History()
    history.say("system", ["Be brief."])
    history.say("user", ["a", "b"])
    history.think("hm")
    history.think("well")
    history.say("assistant", ["so"])
    history.call("c1", "clock", "{}")
    history.say("assistant", ["and"])
    history.call("c2", "clock", {"zone": 1})
    history.result("c1", ["noon"])
    history.result("c2", [])
    history.think("nothing came of it")
    history.say("user", [])
    history.say("user", ["c"])

    def call(call_id: str, arguments: Any) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "clock", "arguments": arguments}}

    def parts(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    assert history.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts("a", "b")},
        {
            "role": "assistant",
            "reasoning": "hm\nwell",
            "content": parts("so", "and"),
            "tool_calls": [call("c1", "{}"), call("c2", {"zone": 1})],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": ""},
        {"role": "user", "content": "c"},
    ]


def test_as_much_of_a_conversation_is_kept_as_fits() -> None:
    """Against trying every start, for conversations and limits of all kinds."""

    async def render(messages: Any) -> dict[str, Any]:
        return {"messages": list(messages), "prompt_token_ids": [0] * sum(m["size"] for m in messages)}

    rng = random.Random(0)
    for _ in range(300):
        head = [{"role": "system", "size": rng.randint(1, 5)} for _ in range(rng.randint(0, 2))]
        roles = rng.choices(["user", "assistant", "tool", "system"], k=rng.randint(1, 12))
        rest = [{"role": role, "size": rng.randint(1, 9)} for role in ["user", *roles]]
        limit = rng.randint(1, 60)
        choices = [rest, *(rest[i:] for i in range(1, len(rest)) if rest[i]["role"] == "user")]
        fitting = [c for c in choices if sum(m["size"] for m in [*head, *c]) <= limit]
        expected = [*head, *(fitting or choices[-1:])[0]]
        assert asyncio.run(render_latest(render, [*head, *rest], limit))["messages"] == expected


def object_of(text: str, rng: random.Random) -> str:
    """What is told of a text that comes in pieces."""
    writer, told = ObjectText(), ""
    while text:
        size = rng.randint(1, 9)
        told, text = told + writer.push(text[:size]), text[size:]
    told += writer.close()
    assert writer.push("x") == writer.close() == ""
    return told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "{}"),
        ('{"a": "x', '{"a":"x"}'),
        ('{"a": "x\\u00', '{"a":"x"}'),
        ('{"a": "\\ud83d', '{"a":""}'),
        ('{"a": 12', "{}"),
        ('{"a": 12, "b": tr', '{"a":12}'),
        ('{"a": [1, {"b', '{"a":[1,{}]}'),
        ('{"a": Oslo, "b": 1}', "{}"),
        ('{"a": "it\\\'s"}', '{"a":"it"}'),
        ('{"a": "one\ntwo"}', '{"a":"one\\u000atwo"}'),
        ('{"a": [1,]}', '{"a":[1]}'),
        ('{"a": True}', "{}"),
        ('{"a": 1} and so on', '{"a":1}'),
        ("[1]", "{}"),
        ("null", "{}"),
    ],
)
def test_what_is_told_of_a_text_that_is_no_object(text: str, told: str) -> None:
    assert object_of(text, random.Random(0)) == told


def random_value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(4 if depth > 4 else 7):
        case 0:
            return rng.choice([True, False, None])
        case 1:
            return rng.choice([0, -1, 1.5, -2e10, 123456789])
        case 2 | 3:
            return "".join(rng.choices('ab"\\/\n\té😀 {}[]:,\u0001', k=rng.randrange(8)))
        case 4:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {random_value(rng, 9) or "k": random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def test_an_object_is_told_as_it_is_and_anything_else_as_some_object() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        given = {str(i): random_value(rng) for i in range(rng.randrange(4))}
        text = json.dumps(given, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
        given = json.loads(text)
        assert json.loads(object_of(text, rng)) == given
        cut = text[: rng.randrange(len(text) + 1)]
        at = rng.randrange(len(text))
        damaged = text[:at] + rng.choice('"\\{}[]:,x1 ') + text[at + rng.randrange(2) :]
        for broken in (cut, damaged):
            told = object_of(broken, rng)
            assert told == object_of(broken, rng), "however it is cut"
            assert isinstance(json.loads(told.encode()), dict)
