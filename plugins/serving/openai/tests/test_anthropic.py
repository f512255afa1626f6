"""`/v1/messages`: blocks, their events, token counts, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from octavo_openai.apis.anthropic_request import CountTokensRequest
from octavo_openai.options import ServerOptions

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CLOCK = {"name": "clock", "description": "Tells the time.", "input_schema": {"type": "object"}}
TOOLS = {"tools": [WEATHER, CLOCK]}
LISTED = '[{"name":"get_weather","arguments":{"city":"Ås\\n"}},{"name":"clock","arguments":{}}]'
ANY = {**TOOLS, "tool_choice": {"type": "any"}}
FORMAT = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"say": "ab é😀 cd"},
    "empty": {"say": ""},
    "cut": {"max_tokens": 3},
    "stop": {"stop_sequences": ["x", "d"]},
    "special stop": {"say": "ab<unk>c", "stop_sequences": ["<unk>"]},
    "sampled": {"temperature": 5, "top_k": 1, "top_p": 0.99},
    "reasoning": {"say": "(hm, é)yes"},
    "reasoning, cut": {"say": "(hm, é and no end", "max_tokens": 5},
    "tools": {"say": 'so <<get_weather|{"city": "Å"}>> and <<clock|{}>>.', **TOOLS},
    "tools, reasoning": {"say": "(a <<b)<<clock|{}>><<clock|{}>>", **TOOLS},
    "one tool": {
        "say": "<<clock|{}>><<clock|{}>>",
        **TOOLS,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "half a tool": {"say": 'so <<get_weather|{"city"', **TOOLS},
    "tool, cut": {"say": 'so <<get_weather|{"city": "Oslo"}>>', **TOOLS, "max_tokens": 26},
    "tool, malformed": {"say": 'so <<get_weather|{"a": [1], "city": Oslo}>>', **TOOLS},
    "tool without input": {"say": "<<clock|>>", **TOOLS},
    "no tool": {"say": "so <", **TOOLS},
    "no tools wanted": {"say": "<<clock|{}>>", **TOOLS, "tool_choice": {"type": "none"}},
    "any": {"say": LISTED, **ANY},
    "any, cut": {"say": LISTED, **ANY, "max_tokens": 40},
    "named": {"say": '{"city":"\\u00e9"}', **TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}},
    "either": {"say": LISTED, **TOOLS, **FORMAT},
    "or": {"say": ' {"a": [1]}', **TOOLS, **FORMAT},
}


def user(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


def ask(server, say: str = "abcd", **body: Any) -> dict[str, Any]:
    response = server.post(PATH, **{"messages": user(f"<say>{say}</say>"), "max_tokens": 500, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def ends(message: dict[str, Any]) -> tuple[str, str | None]:
    return message["stop_reason"], message["stop_sequence"]


def test_an_answer(server) -> None:
    message = ask(server, "(hm)Hi.", system="Be brief.")
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": server.service.model_names[0],
        "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("Be brief.") + 1 + 2 + 7,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": 8,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }


def test_why_it_stopped(server) -> None:
    assert ends(ask(server, "abc")) == ("end_turn", None)
    assert ends(ask(server, "abc", stop_sequences=["x"])) == ("end_turn", None)
    assert ends(ask(server, "abc", max_tokens=2)) == ("max_tokens", None)
    assert ends(ask(server, "abc", stop_sequences=["x", "c"])) == ("stop_sequence", "c")
    assert ends(ask(server, "ab<unk>c", stop_sequences=["<unk>"])) == ("stop_sequence", "<unk>"), "a token of its own"
    assert ends(ask(server, **CASES["tools"])) == ("tool_use", None)
    assert ends(ask(server, **CASES["named"])) == ("tool_use", None)
    assert ends(ask(server, **CASES["any, cut"])) == ("max_tokens", None)


def test_cached_tokens_are_told_apart(server) -> None:
    say = "once and again, and a prompt of many tokens"
    first, second = ask(server, say)["usage"], ask(server, say)["usage"]
    assert second["cache_read_input_tokens"] > 0
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == total
    start, *_ = server.named_events(PATH, messages=user(f"<say>{say}</say>"), max_tokens=500)
    assert start["message"]["usage"]["cache_read_input_tokens"] == second["cache_read_input_tokens"]


def test_blocks_stand_in_the_order_in_which_they_were_said(server) -> None:
    content = ask(server, **CASES["tools"])["content"]
    calls = [block for block in content if block["type"] == "tool_use"]
    assert all(call.pop("id").startswith("toolu_") for call in calls)
    assert content == [
        {"type": "text", "text": "so "},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Å"}},
        {"type": "text", "text": " and "},
        {"type": "tool_use", "name": "clock", "input": {}},
        {"type": "text", "text": "."},
    ]


def test_input_is_always_an_object(server) -> None:
    assert ask(server, **CASES["tool, cut"])["content"][1]["input"] == {"city": "O"}
    assert ask(server, **CASES["tool, malformed"])["content"][1]["input"] == {"a": [1]}
    assert ask(server, **CASES["tool without input"])["content"][0]["input"] == {}
    assert ask(server, **CASES["half a tool"])["content"][1]["input"] == {}


@pytest.mark.parametrize("name", CASES)
def test_a_stream_says_what_the_whole_answer_says(server, name: str) -> None:
    body = dict(CASES[name])
    said = user(f"<say>{body.pop('say', 'abcd')}</say>")
    body = {"messages": said, "max_tokens": 500, "temperature": 0, **body}
    whole = server.post(PATH, **body).json()
    first, *events, ending, stop = server.named_events(PATH, **body)
    message = first["message"]
    assert (first["type"], ending["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    assert (message["content"], ends(message)) == ([], (None, None))
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == sum(
        ending["usage"][part] for part in ("input_tokens", "cache_read_input_tokens")
    )
    made = {**message, **ending["delta"], "usage": ending["usage"], "content": rebuilt(events)}
    for answer in (made, whole):
        answer.pop("id")
        usage = answer["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")  # the second finds the first one's prompt
        for block in answer["content"]:
            block.pop("id", None)
    assert made == whole


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that events tell of, one after the other."""
    fields = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    blocks: list[dict[str, Any]] = []
    while events:
        begin = events.pop(0)
        assert (begin["type"], begin["index"]) == ("content_block_start", len(blocks))
        block, told = begin["content_block"], ""
        while (event := events.pop(0))["type"] == "content_block_delta":
            assert event["index"] == len(blocks)
            piece = event["delta"][fields[event["delta"]["type"]]]
            assert piece
            told += piece
        assert event == {"type": "content_block_stop", "index": len(blocks)}
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(told)
        else:
            block[block["type"]] += told
        blocks.append(block)
    return blocks


def test_arguments_are_streamed_as_they_come(server) -> None:
    listed = LISTED.replace("Ås", "Ås" * 200)
    events = server.named_events(PATH, messages=user(f"<say>{listed}</say>"), max_tokens=800, **ANY)
    assert sum(event.get("delta", {}).get("type") == "input_json_delta" for event in events) > 3


def test_our_own_messages_are_taken_back(server) -> None:
    question = user("<say>(hm)Look: <<clock|{}>></say>")
    own = ask(server, messages=question, **TOOLS)
    result = {"type": "tool_result", "tool_use_id": own["content"][2]["id"], "content": "noon"}
    history = [*question, {"role": "assistant", "content": own["content"]}]
    last = {"type": "text", "text": "<say>It is noon.</say>"}
    response = server.post(PATH, messages=[*history, *user([result, last])], max_tokens=99, **TOOLS)
    assert response.status_code == 200, response.text
    assert "x-octavo-unknown-fields" not in response.headers
    assert response.json()["content"] == [{"type": "text", "text": "It is noon."}]


def test_turns_become_messages() -> None:
    body = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *user("a", [{"type": "text", "text": "b"}]),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "c"},
                    {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": 1}},
                ],
            },
            *user(
                [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                    {"type": "text", "text": "d"},
                ],
                [],
            ),
            {"role": "assistant", "content": "so "},
        ],
        "tools": [CLOCK],
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"},
    }
    conversation = msgspec.convert(body, CountTokensRequest).conversation(ServerOptions())
    call = {"id": "t1", "type": "function", "function": {"name": "clock", "arguments": {"zone": 1}}}
    assert conversation.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "reasoning": "hm", "content": "c", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "noon"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "so "},
    ]
    function = {"name": "clock", "description": "Tells the time.", "parameters": {"type": "object"}}
    assert conversation.tools == [{"type": "function", "function": function}]
    assert conversation.rendering.continue_final_message
    assert conversation.rendering.variables == {"enable_thinking": False, "reasoning_effort": "low"}


def test_the_assistants_last_turn_is_continued(server) -> None:
    turns = [*user("<say>once upon a time</say>"), {"role": "assistant", "content": "once upon "}]
    prompt = server.client.post("/tokenize", json={"messages": turns, "continue_final_message": True}).json()
    answer = ask(server, messages=turns)
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] == prompt["count"]


def test_tokens_are_counted_as_they_would_be_computed(server) -> None:
    body = {"messages": user("<say>how many?</say>"), "system": "x", **TOOLS}
    count = server.post(COUNT, **body)
    assert count.status_code == 200, count.text
    usage = ask(server, **body)["usage"]
    assert count.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


BAD: list[tuple[str, Any]] = [
    ("messages", None),
    ("messages", []),
    ("messages", "hi"),
    ("messages[0].role", [{"role": "tool", "content": "x"}]),
    ("messages[1].content", [*user("x"), {"role": "user"}]),
    ("messages[0].content[0].text", user([{"type": "text"}])),
    ("messages[0].content[1].type", user([{"type": "text", "text": "a"}, {"type": "image", "source": {}}])),
    ("messages[0].content[0].type", user([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])),
    ("messages[0].content[0].tool_use_id", user([{"type": "tool_result", "content": "x"}])),
    (
        "messages[0].content[0].input",
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}],
    ),
    (
        "messages[0].content[0].content[0].type",
        user([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]),
    ),
    (
        "messages",
        [*user("x"), {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}],
    ),
    ("system", 3),
    ("system[0].type", [{"type": "image"}]),
    ("tools[0].input_schema", [{"name": "f"}]),
    ("tools[0].type", [{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]),
    ("tools", [CLOCK, CLOCK]),
    ("tools", [CLOCK] * 200),
    ("tool_choice", {"type": "any"}),
    ("tool_choice.type", {"type": "required"}),
    ("tool_choice.name", {"type": "tool"}),
    ("output_config.format.type", {"format": {"type": "yaml", "schema": {}}}),
    ("output_config.format.schema", {"format": {"type": "json_schema"}}),
    ("thinking.type", {"type": "much"}),
]
BAD_SAMPLING: list[tuple[str, Any]] = [
    ("messages", user("x" * 5000)),
    ("max_tokens", None),
    ("max_tokens", 0),
    ("max_tokens", "many"),
    ("temperature", -1),
    ("top_p", 2),
    ("top_k", -7),
    ("stop_sequences", [""]),
    ("stop_sequences", "x"),
    ("stop_sequences", ["a"] * 1000),
    ("output_config.format", {"format": {"type": "json_schema", "schema": {"title": "this cannot be compiled"}}}),
    ("stream", "yes"),
]


def refused(response: Any, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    return body["error"]["message"]


@pytest.mark.parametrize(("field", "value"), [*BAD, *BAD_SAMPLING], ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_values_are_named(server, field: str, value: Any, stream: bool) -> None:
    name = field.partition("[")[0].partition(".")[0]
    body = {"messages": user("x"), "max_tokens": 9, "stream": stream, name: value}
    assert refused(server.post(PATH, **body), 400, "invalid_request_error").startswith(f"{field}: ")


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda v: str(v)[:40])
def test_bad_values_are_not_counted(server, field: str, value: Any) -> None:
    name = field.partition("[")[0].partition(".")[0]
    message = refused(server.post(COUNT, **{"messages": user("x"), name: value}), 400, "invalid_request_error")
    assert message.startswith(f"{field}: ")


def test_other_errors(server, start) -> None:
    body = {"messages": user("<say>ok</say>"), "max_tokens": 9}
    refused(server.post(PATH, **body, model="claude"), 404, "not_found_error")
    refused(server.post(COUNT, messages=user("x"), model="claude"), 404, "not_found_error")
    refused(server.client.get(PATH), 405, "invalid_request_error")
    refused(
        server.client.post(PATH, content="{", headers={"content-type": "application/json"}),
        400,
        "invalid_request_error",
    )
    locked = start(api_key=("secret",), max_body_bytes=500)
    refused(locked.post(PATH, **body), 401, "authentication_error")
    refused(locked.post(PATH, **body, _headers={"x-api-key": "wrong"}), 401, "authentication_error")
    for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert locked.post(PATH, **body, _headers=headers).status_code == 200
        refused(locked.post(PATH, **body, system="x" * 500, _headers=headers), 413, "request_too_large")


def test_null_is_the_same_as_left_out(server) -> None:
    names = (
        "model system tools tool_choice thinking output_config cache_control speed stop_sequences temperature top_p "
        "top_k stream metadata service_tier inference_geo nobody_knows_this"
    )
    body = {"messages": user("<say>ok</say>"), "max_tokens": 9}
    absent, null = server.post(PATH, **body), server.post(PATH, **body, **dict.fromkeys(names.split()))
    assert null.status_code == 200, null.text
    assert "x-octavo-unknown-fields" not in null.headers
    assert null.json()["content"] == absent.json()["content"]


def test_a_stream_that_cannot_go_on_ends_with_an_error(server, broken_streams, caplog) -> None:
    first, *_, last = server.named_events(PATH, messages=user(f"<say>{'abc' * 100}</say>"), max_tokens=500)
    assert first["type"] == "message_start"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "ArithmeticError" in caplog.text
