"""`/v1/responses`: items, their events, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

PATH = "/v1/responses"
NAMED = {"type": "function", "name": "get_weather"}
LISTED = '[{"name":"get_weather","arguments":{"city":"Ås\\n"}},{"name":"clock","arguments":{}}]'
OBJECT = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
CLOCK = {"type": "function", "name": "clock", "description": "Tells the time."}
TOOLS = {"tools": [WEATHER, CLOCK]}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"say": "ab é😀 cd"},
    "empty": {"say": ""},
    "cut": {"max_output_tokens": 3},
    "stop": {"stop": ["d"]},
    "sampled": {"temperature": 5, "seed": 7, "max_output_tokens": 30, "ignore_eos": True},
    "logprobs": {**LOGPROBS},
    "logprobs, reasoning": {"say": "(hm)yes", **LOGPROBS},
    "reasoning": {"say": "(hm, é)yes"},
    "reasoning, cut": {"say": "(hm, é and no end", "max_output_tokens": 5},
    "tools": {"say": 'so <<get_weather|{"city": "Å"}>> and <<clock|{}>>.', **TOOLS},
    "tools, reasoning": {"say": "(a <<b)<<clock|{}>><<clock|{}>>", **TOOLS},
    "one tool": {"say": "<<clock|{}>><<clock|{}>>", **TOOLS, "parallel_tool_calls": False},
    "half a tool": {"say": 'so <<get_weather|{"city"', **TOOLS},
    "tool, cut": {"say": 'so <<get_weather|{"city": "Oslo"}>>', **TOOLS, "max_output_tokens": 24},
    "no tool": {"say": "so <", **TOOLS},
    "no tools wanted": {"say": "<<clock|{}>>", **TOOLS, "tool_choice": "none", **LOGPROBS},
    "required": {"say": LISTED, **TOOLS, "tool_choice": "required"},
    "required, cut": {"say": LISTED, **TOOLS, "tool_choice": "required", "max_output_tokens": 40},
    "named": {"say": '{"city":"\\u00e9"}', **TOOLS, "tool_choice": NAMED},
    "some": {"say": LISTED, **TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}},
    "either": {"say": LISTED, **TOOLS, "text": OBJECT},
    "or": {"say": ' {"a": [1]}', **TOOLS, "text": OBJECT},
}


def respond(server, say: str = "abcd", **body: Any) -> dict[str, Any]:
    response = server.post(PATH, **{"input": f"<say>{say}</say>", "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two answers."""
    made = json.loads(json.dumps(response))
    for holder, name in [(made, "id"), (made, "created_at"), (made, "completed_at")]:
        holder.pop(name)
    for item in made["output"]:
        item.pop("id")
        item.pop("call_id", None)
    made["usage"].pop("input_tokens_details")  # the second one finds the first one's prompt in the cache
    return made


def test_an_answer(server) -> None:
    answer = respond(server, "(hm)Hi.", instructions="Be brief.", metadata={"a": "b"}, user="me", store=True)
    reasoning, message = answer["output"]
    assert answer["id"].startswith("resp_")
    assert answer["object"] == "response"
    assert (answer["status"], answer["error"], answer["incomplete_details"]) == ("completed", None, None)
    assert reasoning.pop("id").startswith("rs_")
    assert reasoning == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    assert message.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert answer["usage"] == {
        "input_tokens": len("Be brief.") + 1 + 2 + 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 27,
    }
    told = {name: answer[name] for name in ("instructions", "metadata", "user", "store", "temperature", "top_p")}
    expected = {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "me", "store": False}
    assert told == {**expected, "temperature": 0, "top_p": 1}


def test_a_cut_answer_is_incomplete(server) -> None:
    answer = respond(server, "abcdef", max_output_tokens=3)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["completed_at"] is None
    (item,) = answer["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "abc")
    assert answer["usage"]["output_tokens"] == 3
    both = respond(server, "(a)bcd", max_output_tokens=4)["output"]
    assert [item["status"] for item in both] == ["completed", "incomplete"]


def test_items_stand_in_the_order_in_which_they_were_said(server) -> None:
    answer = respond(server, **CASES["tools"])
    assert kinds(answer) == ["message", "function_call", "message", "function_call", "message"]
    texts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
    assert texts == ["so ", " and ", "."]
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("get_weather", '{"city": "Å"}'), ("clock", "{}")]
    assert len({call["call_id"] for call in calls}) == 2
    assert (answer["tools"][1]["name"], answer["tool_choice"]) == ("clock", "auto")


def test_nothing_is_an_empty_message(server) -> None:
    (item,) = respond(server, "")["output"]
    assert item["content"][0]["text"] == ""


def test_logprobs_are_those_of_all_tokens(server) -> None:
    (item,) = respond(server, "hé", **LOGPROBS)["output"]
    entries = item["content"][0]["logprobs"]
    assert [entry["bytes"] for entry in entries] == [[104], [0xC3], [0xA9], list(b"<eos>")]
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}


@pytest.mark.parametrize("name", CASES)
def test_a_stream_says_what_the_whole_answer_says(server, name: str) -> None:
    body = dict(CASES[name])
    body = {"input": f"<say>{body.pop('say', 'abcd')}</say>", "temperature": 0, **body}
    whole = server.post(PATH, **body).json()
    first, second, *events, last = server.named_events(PATH, **body)
    numbers = [event["sequence_number"] for event in (first, second, *events, last)]
    assert numbers == list(range(len(numbers)))
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"]["status"] == second["response"]["status"] == "in_progress"
    assert first["response"]["output"] == []
    assert last["type"] == f"response.{whole['status']}"
    assert comparable(last["response"]) == comparable(whole)
    assert {first["response"]["id"], second["response"]["id"]} == {last["response"]["id"]}
    assert rebuilt(events) == last["response"]["output"]


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that events tell of, each of which must come when it may."""
    items: list[dict[str, Any]] = []
    waiting = list(events)

    def take(kind: str) -> dict[str, Any]:
        event = waiting.pop(0)
        assert event["type"] == f"response.{kind}"
        if kind.startswith("output_item."):
            assert event["output_index"] == len(items)
        return event

    def take_deltas(kind: str, item_id: str) -> tuple[str, list[Any]]:
        said, logprobs = "", []
        while waiting[0]["type"] == f"response.{kind}":
            event = take(kind)
            assert (event["item_id"], event["output_index"]) == (item_id, len(items))
            assert event["delta"]
            said, logprobs = said + event["delta"], logprobs + event.get("logprobs", [])
        return said, logprobs

    while waiting:
        item = take("output_item.added")["item"]
        assert item["status"] == "in_progress"
        if item["type"] == "function_call":
            item["arguments"], _ = take_deltas("function_call_arguments.delta", item["id"])
            done = take("function_call_arguments.done")
            assert (done["arguments"], done["name"]) == (item["arguments"], item["name"])
        else:
            kind = {"message": "output_text", "reasoning": "reasoning_text"}[item["type"]]
            part = take("content_part.added")["part"]
            assert part["type"] == kind
            part["text"], logprobs = take_deltas(f"{kind}.delta", item["id"])
            assert take(f"{kind}.done")["text"] == part["text"]
            ended = take("content_part.done")["part"]
            assert ended.get("logprobs", [])[: len(logprobs)] == logprobs
            assert {**part, "logprobs": 0} == {**ended, "logprobs": 0}
            item["content"] = [ended]
        ended_item = take("output_item.done")["item"]
        assert {**item, "status": ended_item["status"]} == ended_item
        items.append(ended_item)
    return items


def test_our_own_items_are_taken_back(server) -> None:
    question = {"role": "user", "content": "<say>(hm)Look: <<clock|{}>></say>"}
    own = respond(server, input=[question], **TOOLS)["output"]
    assert [item["type"] for item in own] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": own[2]["call_id"], "output": "noon"}
    last = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<say>It is noon.</say>"}]}
    response = server.post(PATH, input=[question, *own, result, last], **TOOLS)
    assert response.status_code == 200, response.text
    assert "x-octavo-unknown-fields" not in response.headers
    assert response.json()["output"][0]["content"][0]["text"] == "It is noon."


def test_a_conversation_that_is_too_long_loses_its_beginning(server) -> None:
    old = [{"role": "user", "content": f"{i} " + "x" * 500} for i in range(10)]
    body = {"instructions": "Be brief.", "input": [*old, {"role": "user", "content": "<say>ok</say>"}]}
    refused = server.post(PATH, **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    answer = server.post(PATH, **body, truncation="auto", max_output_tokens=900).json()
    assert answer["output"][0]["content"][0]["text"] == "ok"
    assert answer["truncation"] == "auto"
    assert 2500 < answer["usage"]["input_tokens"] <= 4096 - 900
    alone = server.post(PATH, input="x" * 5000, truncation="auto")
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "input")


BAD: list[tuple[str, Any]] = [
    ("input", None),
    ("input", []),
    ("input", 7),
    ("input[0].role", [{"role": "robot", "content": "x"}]),
    ("input[0].role", [{"content": "x"}]),
    ("input[1].content", [{"role": "user", "content": "x"}, {"role": "user"}]),
    ("input[0].content[0].text", [{"role": "user", "content": [{"type": "input_text"}]}]),
    (
        "input[0].content[1].type",
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_image"}]}],
    ),
    ("input[0].type", [{"type": "item_reference", "id": "x"}]),
    ("input[0].call_id", [{"type": "function_call", "name": "f", "arguments": "{}"}]),
    ("input[0].arguments", [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]),
    ("input[0].output", [{"type": "function_call_output", "call_id": "c"}]),
    ("input", "x" * 5000),
    ("instructions", 3),
    ("max_output_tokens", 0),
    ("max_output_tokens", "many"),
    ("temperature", -1),
    ("top_p", 2),
    ("top_k", -7),
    ("seed", 1.5),
    ("stop", [""]),
    ("stop", ["a"] * 1000),
    ("text.format.type", {"format": {"type": "yaml"}}),
    ("text.format", {"format": {"type": "json_schema", "name": "x"}}),
    ("text.format", {"format": {"type": "json_schema", "name": "x", "schema": {"title": "this cannot be compiled"}}}),
    ("structured_outputs", {"regex": ""}),
    ("tools[0].type", [{"type": "web_search"}]),
    ("tools[0].name", [{"type": "function"}]),
    ("tools", [CLOCK, CLOCK]),
    ("tools", [CLOCK] * 200),
    ("tool_choice", "required"),
    ("tool_choice", "sometimes"),
    ("tool_choice", {"type": "web_search"}),
    ("previous_response_id", "resp_1"),
    ("conversation", "conv_1"),
    ("prompt", {"id": "p"}),
    ("background", True),
    ("truncation", "most"),
    ("include[0]", ["everything"]),
    ("top_logprobs", 3),
    ("reasoning", "much"),
    ("stream", "yes"),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_values_are_named(server, field: str, value: Any, stream: bool) -> None:
    name = field.partition("[")[0].partition(".")[0]
    body = {"input": "x", "stream": stream, name: value}
    response = server.post(PATH, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert field in error["message"]


def test_things_that_exclude_each_other(server) -> None:
    for param, body in {
        "include": {**TOOLS, **LOGPROBS},
        "top_logprobs": {**LOGPROBS, "top_logprobs": 10**6},
        "tool_choice": {**TOOLS, "tool_choice": "required", "text": OBJECT},
        "text.format": {"structured_outputs": {"regex": "x"}, "text": OBJECT},
    }.items():
        response = server.post(PATH, input="x", **body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_null_is_the_same_as_left_out(server) -> None:
    names = (
        "model instructions max_output_tokens text tools tool_choice parallel_tool_calls max_tool_calls reasoning "
        "truncation include top_logprobs stream stream_options chat_template_kwargs previous_response_id conversation "
        "prompt background temperature top_p top_k min_p seed stop metadata user store service_tier nobody_knows_this"
    )
    absent = server.post(PATH, input="<say>ok</say>")
    null = server.post(PATH, input="<say>ok</say>", **dict.fromkeys(names.split()))
    assert null.status_code == 200, null.text
    assert "x-octavo-unknown-fields" not in null.headers
    assert comparable(null.json()) == comparable(absent.json())


def test_a_stream_that_cannot_go_on_fails(server, broken_streams, caplog) -> None:
    events = server.named_events(PATH, input=f"<say>{'abc' * 100}</say>")
    assert events[0]["type"] == "response.created"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"]["code"] == "server_error"
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    (item,) = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", said)
    assert said
    assert "ArithmeticError" in caplog.text
