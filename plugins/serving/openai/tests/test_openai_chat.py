"""`/v1/chat/completions`: messages, reasoning, tools in every mode, histories."""

from __future__ import annotations

import json
from typing import Any

import pytest

PATH = "/v1/chat/completions"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(server, say: str = "", **body: Any) -> dict[str, Any]:
    """The answer to a message that has the model say `say`."""
    body = {"messages": [user(f"<say>{say}</say>")], "temperature": 0, **body}
    response = server.post(PATH, **body)
    assert response.status_code == 200, response.text
    return response.json()


def message(answer: dict[str, Any]) -> dict[str, Any]:
    (choice,) = answer["choices"]
    return choice["message"]


def calls_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message(answer).get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def prompt_of(server, **body: Any) -> str:
    tokens = server.post("/tokenize", **body)
    assert tokens.status_code == 200, tokens.text
    return server.post("/detokenize", tokens=tokens.json()["tokens"]).json()["prompt"]


def test_an_answer(server) -> None:
    answer = chat(server, "Hello.")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["completion_tokens"] == 7
    assert "completion_tokens_details" not in answer["usage"]


def test_it_goes_on_until_the_model_is_full_unless_told(server) -> None:
    text = "x" * 300
    assert message(chat(server, text))["content"] == text
    cut = chat(server, text, max_tokens=5)
    assert (message(cut)["content"], cut["choices"][0]["finish_reason"]) == ("xxxxx", "length")
    assert message(chat(server, text, max_tokens=9, max_completion_tokens=3))["content"] == "xxx"


def test_choices(server) -> None:
    answer = chat(server, "so", n=3)
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [(0, "so"), (1, "so"), (2, "so")]
    assert answer["usage"]["completion_tokens"] == 9


def test_content_parts_are_text(server) -> None:
    parts = [{"type": "text", "text": "<say>"}, {"type": "text", "text": "two</say>"}]
    assert message(chat(server, messages=[{"role": "user", "content": parts}]))["content"] == "\ntwo"


def test_logprobs(server) -> None:
    (choice,) = chat(server, "hé", logprobs=True)["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[104], [0xC3], [0xA9], list(b"<eos>")]
    assert [entry["top_logprobs"] for entry in entries] == [[], [], [], []]
    (more,) = chat(server, "hé", logprobs=True, top_logprobs=3)["choices"]
    for entry in more["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}


def test_reasoning_is_set_apart_and_counted(server) -> None:
    answer = chat(server, "(let me see)It is so.")
    assert message(answer)["content"] == "It is so."
    assert message(answer)["reasoning"] == message(answer)["reasoning_content"] == "let me see"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}


def test_a_constraint_leaves_no_room_for_reasoning(server) -> None:
    answer = chat(server, '("so")', structured_outputs={"regex": ".*"})
    assert message(answer)["content"] == '("so")'


def test_tools_by_the_models_own_format(server, weather) -> None:
    answer = chat(server, 'Look: <<get_weather|{"city": "Oslo"}>><<clock|{}>>', tools=weather)
    assert calls_of(answer) == [("get_weather", {"city": "Oslo"}), ("clock", {})]
    assert message(answer)["content"] == "Look: "
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    (alone,) = calls_of(chat(server, "<<clock|{}>><<clock|{}>>", tools=weather, parallel_tool_calls=False))
    assert alone == ("clock", {})
    nothing = chat(server, "No need.", tools=weather, tool_choice="auto")
    assert (message(nothing)["content"], nothing["choices"][0]["finish_reason"]) == ("No need.", "stop")


def test_reasoning_and_tools(server, weather) -> None:
    answer = chat(server, "(which <<clock|{}>>?)<<clock|{}>>", tools=weather)
    assert message(answer)["reasoning"] == "which <<clock|{}>>?"
    assert message(answer)["content"] is None
    assert calls_of(answer) == [("clock", {})]


def test_tools_are_told_in_plain_messages_where_the_template_has_no_word_for_them(server, weather) -> None:
    def prompt(**body: Any) -> str:
        ids = chat(server, "x", return_token_ids=True, **body)["prompt_token_ids"]
        return server.post("/detokenize", tokens=ids).json()["prompt"]

    assert prompt(tools=weather) == "Tools: get_weather, clock\n<say>x</say>"
    assert prompt(tools=weather, tool_choice="none") == "<say>x</say>"
    assert prompt_of(server, messages=[user("hi")], tools=weather) == "Tools: get_weather, clock\nhi"
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "clock", "arguments": "{}"}}]}
    history = [user("when?"), called, {"role": "tool", "content": "noon"}]
    assert prompt_of(server, messages=history) == "when?\n<<clock|{}>>\nnoon", "no tools any more, but a past"
    text = '<<clock|{"a": 1}>>'
    assert message(chat(server, text, tools=weather, tool_choice="none"))["content"] == text


def test_a_call_that_must_come(server, weather) -> None:
    listed = '[{"name":"get_weather","arguments":{"city":"a } \\" ]"}}, {"name":"clock","arguments":{}}]'
    answer = chat(server, listed, tools=weather, tool_choice="required")
    assert calls_of(answer) == [("get_weather", {"city": 'a } " ]'}), ("clock", {})]
    assert (message(answer)["content"], answer["choices"][0]["finish_reason"]) == (None, "tool_calls")
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":"a } \\" ]"}'
    cut = chat(server, listed, tools=weather, tool_choice="required", max_tokens=30)
    assert cut["choices"][0]["finish_reason"] == "length"


def test_a_call_by_name_ends_with_stop(server, weather) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = chat(server, '{"city":"Rome"}', tools=weather, tool_choice=named)
    assert calls_of(answer) == [("get_weather", {"city": "Rome"})]
    assert answer["choices"][0]["finish_reason"] == "stop", "as OpenAI has it"


def test_a_choice_among_some_tools(server, weather) -> None:
    some = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": some}
    answer = chat(server, '[{"name":"clock","arguments":{}}]', tools=weather, tool_choice=choice)
    assert calls_of(answer) == [("clock", {})]


def test_tools_or_an_object(server, weather) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    content = chat(server, '{"ok":true}', tools=weather, response_format=wanted)
    assert (message(content)["content"], content["choices"][0]["finish_reason"]) == ('{"ok":true}', "stop")
    called = chat(server, '[{"name":"clock","arguments":{}}]', tools=weather, response_format=wanted)
    assert calls_of(called) == [("clock", {})]
    free = chat(server, '{"k":1}', tools=weather, response_format={"type": "json_object"})
    assert message(free)["content"] == '{"k":1}'


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    ],
)
def test_response_formats(server, wanted: dict[str, Any]) -> None:
    assert message(chat(server, "{}", response_format=wanted))["content"] == "{}"


def test_our_own_messages_are_taken_back(server, weather) -> None:
    question = user("<say><<clock|{}>></say>")
    own = message(chat(server, messages=[question], tools=weather))
    assert own["content"] is None
    result = {"role": "tool", "tool_call_id": own["tool_calls"][0]["id"], "content": "noon"}
    last = user("<say>It is noon.</say>")
    answer = chat(server, messages=[question, own, result, last], tools=weather)
    assert message(answer)["content"] == "It is noon."
    thought = message(chat(server, "(hm)yes"))
    for content in ("", [], None, [{"type": "text", "text": ""}]):
        history = [question, {**thought, "content": content}, last]
        assert message(chat(server, messages=history))["content"] == "It is noon."


def test_roles(server) -> None:
    messages = [{"role": role, "content": role} for role in ("system", "developer", "user")]
    assert prompt_of(server, messages=messages) == "system\ndeveloper\nuser"


def test_the_last_message_is_continued(server) -> None:
    messages = [user("<say>once upon a time</say>"), {"role": "assistant", "content": "once upon "}]
    answer = chat(server, messages=messages, continue_final_message=True)
    parts = [{"type": "text", "text": "once"}, {"type": "text", "text": " upon "}]
    in_parts = [messages[0], {"role": "assistant", "content": parts}]
    assert prompt_of(server, messages=in_parts, continue_final_message=True).endswith("once\n upon ")
    assert prompt_of(server, messages=messages, continue_final_message=True).endswith("</say>\nonce upon ")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_tokenize_tells_what_the_engine_computes(server) -> None:
    messages = [user("how many? <say>x</say>")]
    answer = chat(server, messages=messages, return_token_ids=True)
    tokens = server.post("/tokenize", messages=messages).json()
    assert tokens["tokens"] == answer["prompt_token_ids"]
    assert tokens["count"] == answer["usage"]["prompt_tokens"]
    assert tokens["max_model_len"] == server.service.llm.max_model_len
    assert tokens["token_strs"] is None
    strings = server.post("/tokenize", prompt="a b", return_token_strs=True).json()["token_strs"]
    assert strings == ["a", "Ġ", "b"]


def test_tool_parsers_are_chosen_at_start(start, weather) -> None:
    server = start(tool_parser="mute", reasoning_parser="none")
    assert message(chat(server, "(a)b"))["content"] == "(a)b"
    assert server.service.tool_parser.entry.name == "mute"
    response = server.post(PATH, messages=[user("x")], tools=weather)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_without_a_tool_parser_calls_can_only_be_forced(start, weather) -> None:
    server = start(tool_parser="none")
    response = server.post(PATH, messages=[user("x")], tools=weather)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    listed = '[{"name":"clock","arguments":{}}]'
    forced = chat(server, listed, tools=weather, tool_choice="required", return_token_ids=True)
    assert calls_of(forced) == [("clock", {})]
    told = server.post("/detokenize", tokens=forced["prompt_token_ids"]).json()["prompt"]
    first, *functions, last = told.split("\n")
    assert "JSON list" in first
    assert [json.loads(line) for line in functions] == [tool["function"] for tool in weather]
    assert last == f"<say>{listed}</say>"


def test_a_chat_template_that_is_given_renders_chats_and_chooses_the_parsers(start, weather) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{# mute #}"
    server = start(engine={"chat_template": template})
    messages = [user("hi"), {"role": "assistant", "content": "<say>(well)</say>"}]
    assert prompt_of(server, messages=messages) == "[user]hi[assistant]<say>(well)</say>"
    assert message(chat(server, messages=messages))["content"] == "(well)", "no reasoning parser suits it"
    refused = server.post(PATH, messages=messages, tools=weather).json()["error"]
    assert "tool parser 'mute'" in refused["message"]
    refused = server.post(PATH, messages=messages, chat_template="{{ 1 }}").json()["error"]
    assert refused["param"] == "chat_template"
    assert "--chat-template" in refused["message"]
