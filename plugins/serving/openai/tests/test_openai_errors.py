"""Requests that are refused: the status, the field that is named, and that the server goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from octavo_openai.http import exchange
from octavo_openai.http.answers import EventStream

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BAD_GRAMMAR = {"grammar": "this cannot be compiled"}
FUNCTION = {"type": "function", "function": {"name": "f"}}
USER = {"role": "user", "content": "x"}

SAMPLING: list[tuple[str, Any]] = [
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.0001),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("n", 0),
    ("n", -1),
    ("n", 10**9),
    ("n", 1.5),
    ("n", True),
    ("seed", "1"),
    ("seed", 2**64),
    ("max_tokens", -1),
    ("max_tokens", 10**12),
    ("min_tokens", -1),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["a"] * 1000),
    ("stop[0]", [1]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [10**6]),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"100000": 1}),
    ("allowed_token_ids", []),
    ("bad_words", [""]),
    ("prompt_logprobs", 10**6),
    ("priority", 2**40),
    ("response_format", "json"),
    ("response_format.type", {"type": "yaml"}),
    ("response_format", {"type": "json_schema"}),
    ("structured_outputs", {}),
    ("structured_outputs", {"regex": ""}),
    ("structured_outputs", {"json": "{", "regex": "x"}),
    ("structured_outputs", BAD_GRAMMAR),
    ("extra_args", {"nobody": 1}),
    ("extra_args", []),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("model", 3),
]
COMPLETIONS: list[tuple[str, Any]] = [
    ("prompt", ""),
    ("prompt", [""]),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", ["hi", ""]),
    ("prompt", 7),
    ("prompt", [1, "a"]),
    ("prompt[0]", [1.5]),
    ("prompt", [10**6]),
    ("prompt", [-1]),
    ("prompt", ["x"] * 2000),
    ("prompt", "x" * 5000),
    ("prompt", [5] * 100_000),
    ("max_tokens", 0),
    ("logprobs", True),
    ("logprobs", -1),
    ("logprobs", 21),
    ("best_of", 3),
    ("suffix", "end"),
    ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", -2),
]
CHATS: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", "hi"),
    ("messages[0].role", [{"role": "robot", "content": "x"}]),
    ("messages[0].role", [{"content": "x"}]),
    ("messages[1].content", [USER, {"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].tool_calls[0].function", [{"role": "assistant", "tool_calls": [{"id": "a"}]}]),
    ("messages", [{"role": "user", "content": "x" * 5000}]),
    ("max_tokens", 0),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", "many"),
    ("top_logprobs", 5),
    ("tools", [FUNCTION, FUNCTION]),
    ("tools", [FUNCTION] * 200),
    ("tools", [{"type": "function", "function": {"name": ""}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"type": ["object", "null"]}}}]),
    ("tools[0].type", [{"type": "custom", "custom": {"name": "x"}}]),
    ("tools[0].function.name", [{"type": "function", "function": {}}]),
    ("tool_choice", "required"),
    ("tool_choice", "sometimes"),
    ("tool_choice", {"type": "function"}),
    ("chat_template", "{{ 1 }}"),
    ("chat_template_kwargs", {"messages": []}),
    ("chat_template_kwargs", {"add_generation_prompt": False}),
    ("chat_template_kwargs", {"self": 1}),
    ("continue_final_message", True),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("modalities", ["audio"]),
]


def name_of(path: str) -> str:
    """The field of the request that a path like `messages[0].role` begins with."""
    return re.split(r"[.\[]", path)[0]


def refused(response: Any, status: int, param: str | None, code: str | None = None) -> str:
    """The message of an error that has this status and parameter."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert code in (None, error["code"])
    assert error["message"]
    assert (error["type"] == "server_error") == (status >= 500)
    return error["message"]


@pytest.mark.parametrize(("field", "value"), SAMPLING, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_bad_sampling_options(server, path: str, field: str, value: Any) -> None:
    body: dict[str, Any] = {"prompt": "x"} if path == TEXT else {"messages": [USER]}
    name = name_of(field)
    for stream in {False, not name.startswith("stream")}:
        more = {"stream": True} if stream else {}
        assert field in refused(server.post(path, **{**body, **more, name: value}), 400, field)


@pytest.mark.parametrize(("field", "value"), COMPLETIONS, ids=lambda v: str(v)[:40])
def test_bad_completions(server, field: str, value: Any) -> None:
    assert field in refused(server.post(TEXT, **{"prompt": "x", name_of(field): value}), 400, field)


@pytest.mark.parametrize(("field", "value"), CHATS, ids=lambda v: str(v)[:40])
def test_bad_chats(server, field: str, value: Any) -> None:
    assert field in refused(server.post(CHAT, **{"messages": [USER], name_of(field): value}), 400, field)


def test_things_that_exclude_each_other(server) -> None:
    wanted = {"structured_outputs": {"regex": "x"}, "response_format": {"type": "json_object"}}
    refused(server.post(TEXT, prompt="x", **wanted), 400, "response_format")
    required = {"tools": [FUNCTION], "tool_choice": "required", "messages": [USER]}
    refused(server.post(CHAT, **required, response_format={"type": "json_object"}), 400, "tool_choice")
    not_object = {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}
    refused(server.post(CHAT, messages=[USER], tools=[FUNCTION], response_format=not_object), 400, "response_format")
    named = {"type": "function", "function": {"name": "g"}}
    refused(server.post(CHAT, messages=[USER], tools=[FUNCTION], tool_choice=named), 400, "tool_choice")
    last = [{"role": "assistant", "content": "x"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    refused(server.post(CHAT, messages=last, **both), 400, "continue_final_message")
    assert (
        server.post("/tokenize").status_code == server.post("/tokenize", prompt="a", messages=[USER]).status_code == 400
    )


def test_a_grammar_that_cannot_be_compiled_is_no_broken_stream(server) -> None:
    bad = {"type": "json_schema", "json_schema": {"schema": {"title": BAD_GRAMMAR["grammar"]}}}
    for stream in (False, True):
        for path, body in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "x"})):
            message = refused(server.post(path, **body, response_format=bad, stream=stream), 400, "response_format")
            assert message == "response_format: no such grammar"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"title": BAD_GRAMMAR["grammar"]}}}
    for text in ({}, {"response_format": {"type": "text"}}, {"stream": True}):
        refused(server.post(CHAT, messages=[USER], tools=[tool], tool_choice="required", **text), 400, "tools")
    text = {"response_format": {"type": "text"}, "structured_outputs": BAD_GRAMMAR}
    refused(server.post(TEXT, prompt="x", **text), 400, "structured_outputs")
    refused(server.post(TEXT, prompt=["x", "y"], n=2, structured_outputs=BAD_GRAMMAR), 400, "structured_outputs")


def test_a_grammar_that_fails_on_the_way_is_the_clients(server) -> None:
    ends = {"title": "this cannot be followed"}
    tool = {"type": "function", "function": {"name": "f", "parameters": ends}}
    for body, param in (
        ({"structured_outputs": {"json": ends}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": ends}}}, "response_format"),
        ({"tools": [tool], "tool_choice": "required"}, "tools"),
    ):
        for stream in (False, True):
            message = refused(server.post(CHAT, messages=[USER], stream=stream, **body), 400, param, "invalid_value")
            assert message == f"{param}: no further"


NULLS = {
    TEXT: ("best_of echo logprobs suffix add_special_tokens truncate_prompt_tokens", {"prompt": "<say>ok</say>"}),
    CHAT: (
        "tools tool_choice parallel_tool_calls max_completion_tokens logprobs top_logprobs add_generation_prompt "
        "continue_final_message chat_template_kwargs reasoning_effort modalities chat_template functions function_call",
        {"messages": [{"role": "user", "content": "<say>ok</say>", "name": None, "tool_calls": None, "refusal": None}]},
    ),
}
SHARED_NULLS = (
    "model n temperature top_p top_k min_p seed max_tokens min_tokens stop stop_token_ids ignore_eos "
    "include_stop_str_in_output presence_penalty frequency_penalty repetition_penalty logit_bias allowed_token_ids "
    "bad_words prompt_logprobs skip_special_tokens priority cache_salt response_format structured_outputs extra_args "
    "stream stream_options request_id return_token_ids return_tokens_as_token_ids user store metadata service_tier "
    "nobody_knows_this"
)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_null_is_the_same_as_left_out(server, path: str) -> None:
    names, body = NULLS[path]
    absent = server.post(path, **body)
    null = server.post(path, **body, **dict.fromkeys(f"{names} {SHARED_NULLS}".split()))
    assert null.status_code == 200, null.text
    assert null.json()["choices"] == absent.json()["choices"]
    assert "x-octavo-unknown-fields" not in null.headers
    empty = {"stop": [], "logit_bias": {}} | ({"tools": [], "tool_choice": None} if path == CHAT else {})
    assert server.post(path, **body, **empty).json()["choices"] == absent.json()["choices"]


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"nonsense", b"{}x", b"NaN", b"1" * 5000, b'{"prompt": NaN, ', b'{"\\ud800": 1}'),
        *(b'{"prompt": "\xff"}', b"[" * 100_000, b'{"prompt": ' + b'{"a":' * 5000),
        b'{"prompt": "' + b"x" * 100_000 + b'\\ud800"}',
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_bodies_that_are_no_json(server, raw: bytes) -> None:
    response = server.client.post(TEXT, content=raw, headers={"content-type": "application/json"})
    refused(response, 400, None)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"temperature": 1e999}', "temperature"),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"temperature": -Infinity}', "temperature"),
        (b'{"n": ' + b"9" * 5000 + b"}", "n"),
        (b'{"prompt": "x\\udfff"}', "prompt"),
        (b'{"prompt": "\\ud83d\\ude00", "stop": ["a", "\\ude00\\ud83d"]}', "stop[1]"),
        (b'{"logit_bias": {"5": 1e400}}', "logit_bias.5"),
    ],
)
def test_values_that_nothing_can_hold(server, raw: bytes, param: str) -> None:
    response = server.client.post(TEXT, content=raw, headers={"content-type": "application/json"})
    refused(response, 400, param, "invalid_value")


@pytest.mark.parametrize("raw", [b"[]", b"3", b'"prompt"', b"null"])
def test_bodies_that_are_no_objects(server, raw: bytes) -> None:
    response = server.client.post(TEXT, content=raw, headers={"content-type": "application/json"})
    assert "object" in refused(response, 400, None)


def test_a_field_that_is_missing(server) -> None:
    assert refused(server.post(TEXT), 400, "prompt", "missing_field") == "prompt: is required"
    refused(server.post(CHAT), 400, "messages", "missing_field")


def test_only_json_is_taken(server) -> None:
    body = json.dumps({"prompt": "x"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(server.client.post(TEXT, content=body, headers={"content-type": kind}), 415, None)
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    refused(server.client.post(TEXT, content=body, headers=packed), 415, None)
    wide = {"content-type": "Application/JSON; charset=utf-8"}
    assert server.client.post(TEXT, content=body, headers=wide).status_code == 200


def test_unknown_models_paths_and_methods(server) -> None:
    for path, body in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        refused(server.post(path, **body, model="gpt-0"), 404, "model", "model_not_found")
    refused(server.client.get("/v1/models/a/b"), 404, "model", "model_not_found")
    refused(server.client.get("/v1/nothing"), 404, None, "not_found")
    response = server.client.get(TEXT)
    refused(response, 405, None, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_models(server) -> None:
    data = server.client.get("/v1/models").json()["data"]
    assert [model["id"] for model in data] == list(server.service.model_names)
    assert data[0] == server.client.get(f"/v1/models/{data[0]['id']}").json()
    for model in data:
        assert server.post(TEXT, prompt="x", model=model["id"]).json()["model"] == model["id"]


def test_unknown_fields(server, start) -> None:
    body = {"prompt": "<say>ok</say>", "tempature": 1, "stream_options": {"usage": 1}, "stream": True}
    response = server.post(TEXT, **body)
    assert response.status_code == 200
    assert response.headers["x-octavo-unknown-fields"] == "tempature, stream_options.usage"
    strict = start(unknown_fields="refuse")
    refused(strict.post(TEXT, **body), 400, "tempature", "unknown_field")
    refused(strict.post(CHAT, messages=[USER, {**USER, "mood": "ü\n"}]), 400, "messages[1].mood", "unknown_field")
    lenient = start(unknown_fields="ignore")
    assert "x-octavo-unknown-fields" not in lenient.post(TEXT, **body).headers


def test_names_of_unknown_fields_cannot_break_headers(server) -> None:
    response = server.post(TEXT, **{"prompt": "x", "a\r\nset-cookie: b": 1, "ü" * 1000: 2})
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert len(response.headers["x-octavo-unknown-fields"]) <= 400


def test_a_fault_of_ours_is_a_500_with_the_request_id(server, monkeypatch, caplog) -> None:
    monkeypatch.setattr(type(server.service), "find_model", lambda self, name: 1 / 0)
    response = server.post(TEXT, prompt="x", _headers={"x-request-id": "mine-1"})
    assert "mine-1" in refused(response, 500, None, "internal")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert server.post(TEXT, prompt="x").status_code == 200


def test_headers_go_out_when_nothing_comes_for_long(server, monkeypatch) -> None:
    monkeypatch.setattr(exchange, "HEADERS_AFTER", 0.02)
    slow = {"grammar": f"{BAD_GRAMMAR['grammar']} slowly"}
    response = server.post(CHAT, messages=[USER], structured_outputs=slow, stream=True)
    assert response.status_code == 200
    (event,) = response.text.strip().split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["param"] == "structured_outputs"
    assert server.events(TEXT, prompt="<say>ok</say>")[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_error_that_comes_as_the_client_leaves_is_not_logged(caplog) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        sending.cancel()
        raise ValueError("what the client wrote")
        yield b""

    async def leave() -> None:
        nonlocal sending
        made = exchange.Exchange({"type": "http", "headers": []}, asyncio.Event().wait, asyncio.Event().wait)
        sending = asyncio.create_task(made.send_stream(EventStream(frames())))
        await asyncio.wait((sending,))
        assert sending.cancelled()
        del sending
        gc.collect()  # asyncio logs an error that nobody asked for when it is forgotten

    sending: asyncio.Task[None]
    asyncio.run(leave())
    assert not caplog.records


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_error_after_the_stream_began_is_its_last_event(server, broken_streams, caplog, path: str) -> None:
    said = "abc" * 100
    prompt = f"<say>{said}</say>"
    body: dict[str, Any] = {"prompt": prompt} if path == TEXT else {"messages": [{"role": "user", "content": prompt}]}
    lines = server.post(path, **body, max_tokens=500, stream=True).text.split("\n\n")
    *data, last, end = [line.removeprefix("data: ") for line in lines]
    assert end == ""
    assert json.loads(last)["error"]["code"] == "internal"
    choices = [json.loads(item)["choices"][0] for item in data]
    told = "".join(choice["text"] if path == TEXT else choice["delta"].get("content", "") for choice in choices)
    assert told
    assert said.startswith(told)
    assert "ArithmeticError" in caplog.text
