"""Requests that are large in one way or another: they are refused before they hold others up, and in few words."""

from __future__ import annotations

from typing import Any

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "x"}
CALL = {"function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL] * 60}}
MANY: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": [USER] * 60}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 60}]}, "messages"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 30}] * 2}, "messages"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {f"k{i}": i for i in range(60)}}, "chat_template_kwargs"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"a": [1, *["x"] * 60]}}, "chat_template_kwargs"),
    (CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": ALLOWED}, "tool_choice"),
    (TEXT, {"prompt": "x", "structured_outputs": {"json": {"enum": ["x"] * 60}}}, "structured_outputs"),
    (RESPONSES, {"input": [USER] * 60}, "input"),
    (RESPONSES, {"input": "x", "metadata": {f"k{i}": "v" for i in range(60)}}, "metadata"),
    (TEXT, {"prompt": "x", "nobody": {f"k{i}": 1 for i in range(60)}}, "nobody"),
    ("/tokenize", {"messages": [USER] * 60}, "messages"),
    (MESSAGES, {"messages": [USER], "system": [{"type": "text", "text": "x"}] * 60, "max_tokens": 1}, "system"),
    (MESSAGES + "/count_tokens", {"messages": [USER] * 60}, "messages"),
]


def test_many_items(start) -> None:
    server = start(max_items=50)
    for path, body, field in MANY:
        for stream in (False, True):
            response = server.post(path, **body, stream=stream)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error.get("param", field) == field
            assert error["message"].startswith(f"{field}: is too large")
    response = server.post(TEXT, prompt="x", **{f"k{i}": 1 for i in range(60)})
    assert response.json()["error"]["message"].startswith("the body: is too large")


def test_numbers_and_prompts_are_no_items(start) -> None:
    server = start(max_items=50)
    ids = list(range(3, 103))
    for body in (
        {"prompt": ["x"] * 60},
        {"prompt": ids},
        {"prompt": [ids] * 60},
        {"prompt": "x", "allowed_token_ids": ids, "logit_bias": dict.fromkeys(map(str, ids), 1)},
        {"prompt": "x", "structured_outputs": {"json": {"enum": ids}}},
    ):
        response = server.post(TEXT, **body, max_tokens=1)
        assert response.status_code == 200, response.text
    assert server.post("/detokenize", tokens=ids).status_code == 200


def test_more_tokens_than_the_model_takes_are_counted_but_not_spelt(start) -> None:
    server = start(engine={"max_model_len": 64})
    assert server.post("/tokenize", prompt="x" * 64, return_token_strs=True).json()["token_strs"] == ["x"] * 64
    assert server.post("/tokenize", prompt="x" * 65).json()["count"] == 65
    response = server.post("/tokenize", prompt="x" * 65, return_token_strs=True)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "return_token_strs")


def test_errors_quote_little_of_what_was_sent(start) -> None:
    server = start(unknown_fields="refuse")
    long = "y" * 100_000
    for path, body in (
        (TEXT, {"prompt": "x", "model": long}),
        (TEXT, {"prompt": "x", long: 1}),
        (TEXT, {"prompt": "x", "extra_args": {long: 1}}),
        (CHAT, {"messages": [{"role": long, "content": "x"}]}),
        (CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function", "name": long}}),
        (MESSAGES, {"messages": [USER], "max_tokens": 1, "model": long}),
    ):
        response = server.post(path, **body)
        assert 400 <= response.status_code < 500
        assert len(response.text) < 1000
    message = server.post(TEXT, prompt="x", model=long).json()["error"]["message"]
    assert message.startswith("the model 'yyy")
    assert message.endswith(f"there is: {', '.join(server.service.model_names)}")
