"""Log probabilities of all answers under way: how many fit, and that the room is given back however an answer ends."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from octavo_openai.apis.logprobs import Spelling
from octavo_openai.errors import APIError
from octavo_openai.options import ServerOptions
from octavo_openai.service import Service

TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
STORY = "<say>" + "a long story " * 50 + "</say>"
INCLUDED = ["message.output_text.logprobs"]
SHORT = {"prompt": "<say>ok</say>", "logprobs": 1, "max_tokens": 10}
LONG: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": STORY, "logprobs": 1, "max_tokens": 3000, "ignore_eos": True},
    CHAT: {
        "messages": [{"role": "user", "content": STORY}],
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 3000,
        "ignore_eos": True,
    },
}
"""Each may bring 6000."""


def is_free(server) -> bool:
    """Whether no answer takes any room."""
    return server.service._num_logprob_entries == 0


def send(server, path: str, body: dict[str, Any]) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


def test_what_does_not_fit_beside_others_is_refused(start) -> None:
    server = start(max_live_logprob_entries=7000)
    user = [{"role": "user", "content": "<say>ok</say>"}]
    too_many = (
        (TEXT, {**SHORT, "max_tokens": 501}),
        (TEXT, {**SHORT, "max_tokens": 251, "n": 2}),
        (TEXT, {"prompt": "x" * 501, "echo": True, "logprobs": 1, "max_tokens": 0}),
        (CHAT, {"messages": user, "logprobs": True, "max_tokens": 1001}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 50}], "prompt_logprobs": 20, "max_tokens": 1}),
        (RESPONSES, {"input": "<say>ok</say>", "include": INCLUDED, "max_output_tokens": 1001}),
    )
    fitting = (
        (TEXT, {**SHORT, "max_tokens": 500}),
        (TEXT, {"prompt": "<say>ok</say>", "max_tokens": 3000}),
        (CHAT, {"messages": user, "logprobs": True, "max_tokens": 1000}),
        (RESPONSES, {"input": "<say>ok</say>", "include": INCLUDED, "max_output_tokens": 1000}),
    )
    with server.service.room_for_logprobs(6000):
        for path, body in too_many:
            response = server.post(path, **body)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (429, "rate_limit_exceeded"), body
            assert response.headers["retry-after"] == "1"
            assert "beside others' 6000" in error["message"]
        for path, body in fitting:
            assert server.post(path, **body).status_code == 200, body
        server.until_idle()
    for path, body in too_many:
        assert server.post(path, **body).status_code == 200, body
    with server.service.room_for_logprobs(9000):
        response = server.post(TEXT, prompt="<say>ok</say>")
        assert response.status_code == 200, "it takes no room, and needs none"
        server.until_idle()
    alone = server.post(TEXT, **SHORT | {"logprobs": 20, "max_tokens": 400})
    assert alone.status_code == 200, "more than fits together, but there is nothing beside it"


def test_alone_any_number_fits() -> None:
    room = Service(ServerOptions(max_live_logprob_entries=10)).room_for_logprobs
    with room(50), pytest.raises(APIError), room(1):
        pass
    with room(4), room(6), pytest.raises(APIError), room(1):
        pass
    with room(10):
        pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LONG)
def test_a_client_that_leaves_gives_room_back(server, path: str, stream: bool) -> None:
    with send(server, path, {**LONG[path], "stream": stream}):
        server.until(lambda: not is_free(server))
    server.until(lambda: is_free(server))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LONG)
def test_an_answer_that_takes_too_long_gives_room_back(start, path: str, stream: bool) -> None:
    server = start(request_timeout=0.5)
    response = server.post(path, **LONG[path], stream=stream)
    assert "timeout" in response.text
    server.until(lambda: is_free(server))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LONG)
def test_a_server_that_stops_gives_room_back(start, path: str, stream: bool) -> None:
    server = start(drain_timeout=0.1)
    with send(server, path, {**LONG[path], "stream": stream}):
        server.until(lambda: not is_free(server))
        server.close()
    assert is_free(server)


ENDS: dict[str, tuple[dict[str, Any], int]] = {
    "done": ({}, 200),
    "too many by itself": ({"max_tokens": 3000, "logprobs": 20, "n": 12}, 400),
    "a grammar that cannot be compiled": ({"structured_outputs": {"grammar": "this cannot be compiled"}}, 400),
    "a grammar that cannot be followed": ({"structured_outputs": {"grammar": "this cannot be followed"}}, 400),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_an_answer_that_ends_gives_room_back(server, name: str, stream: bool) -> None:
    more, status = ENDS[name]
    assert server.post(TEXT, **{**SHORT, **more}, stream=stream).status_code == status
    server.until(lambda: is_free(server))


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_gives_room_back(server, monkeypatch, stream: bool) -> None:
    monkeypatch.setattr(Spelling, "text", lambda self, token_id: 1 / 0)
    assert server.post(TEXT, **SHORT, stream=stream).status_code == 500
    server.until(lambda: is_free(server))


def test_a_stream_that_breaks_off_gives_room_back(server, broken_streams) -> None:
    response = server.post(TEXT, **{**SHORT, "prompt": STORY, "max_tokens": 100}, stream=True)
    assert '"code":"internal"' in response.text
    server.until(lambda: is_free(server))
