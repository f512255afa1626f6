"""What keeps a server up: keys, sizes, queues, deadlines, clients that leave or never send."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from octavo.spec import Observer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "<say>" + "a long story " * 50 + "</say>", "max_tokens": 3500, "ignore_eos": True}


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def raw_request(path: str, body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def until_closed(client: socket.socket) -> None:
    client.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        while client.recv(4096):
            pass


def test_keys(start) -> None:
    server = start(api_key=("sesame", "schlüssel"))
    open_paths = ("/health", "/version")
    assert [server.client.get(path).status_code for path in open_paths] == [200, 200]
    closed = [("GET", "/v1/models"), ("GET", "/v1/models/x"), ("GET", "/openapi.json")]
    closed += [("POST", path) for path in (CHAT, TEXT, "/tokenize", "/detokenize")]
    wrong = [{}, {"authorization": "Bearer nope"}, {"authorization": "Basic sesame"}, {"x-api-key": "sesam"}]
    for method, path in closed:
        for headers in wrong:
            response = server.client.request(method, path, headers=headers, json={"prompt": "x"})
            assert code_of(response) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
    for headers in (
        {"authorization": "Bearer sesame"},
        {"authorization": "bearer  sesame"},
        {"x-api-key": "schlüssel".encode()},
        {"authorization": "Bearer schlüssel".encode()},
    ):
        assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_a_body_that_is_too_long(start) -> None:
    server = start(max_body_bytes=1000)
    small, big = {"prompt": "<say>ok</say>"}, {"prompt": "x" * 1000}
    assert server.post(TEXT, **small).status_code == 200
    assert code_of(server.post(TEXT, **big)) == (413, "body_too_large")
    chunked = server.client.post(
        TEXT, content=iter([json.dumps(big).encode()]), headers={"content-type": "application/json"}
    )
    assert code_of(chunked) == (413, "body_too_large")
    with connect(server) as client:  # told by its length alone, before it comes
        client.sendall(f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode())
        client.sendall(b"content-length: 50000000\r\n\r\n")
        assert b" 413 " in client.recv(4096)
    assert server.post(TEXT, **small).status_code == 200


def test_a_head_that_is_too_long_and_what_is_no_http(server) -> None:
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        answer = b""
        for _ in range(200):
            try:
                client.sendall(b"x-more: " + b"a" * 1000 + b"\r\n")
            except OSError:
                break
        client.settimeout(5)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 431 ")
    with connect(server) as client:
        client.sendall(b"hello there\r\n\r\n")
        head, _, body = client.recv(4096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [{}, {"n": 4}, {"prompt": [LONG["prompt"]] * 3}])
def test_a_client_that_leaves_ends_its_requests(server, stream: bool, more: dict[str, Any]) -> None:
    llm = server.service.llm
    with connect(server) as client:
        client.sendall(raw_request(TEXT, {**LONG, "stream": stream, **more}))
        server.until(lambda: llm.num_unfinished > 0 and llm.num_waiting == 0)
    server.until_idle(seconds=3)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("more", [b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", raw_request(TEXT, LONG) * 20, b"\0" * 99])
def test_a_client_that_sends_more_and_leaves_ends_its_request(server, caplog, together: bool, more: bytes) -> None:
    llm, first = server.service.llm, raw_request(TEXT, {**LONG, "n": 8})
    with connect(server) as client:
        client.sendall(first + more if together else first)
        server.until(lambda: llm.num_unfinished > 0 and llm.num_waiting == 0)
        if not together:
            client.sendall(more)
            time.sleep(0.05)
        assert llm.num_unfinished == 1
    server.until_idle(seconds=3)
    assert not caplog.records


def test_who_does_not_wait_for_an_answer_gets_the_first_whole(server) -> None:
    one, two = (raw_request(TEXT, {"prompt": f"<say>{word}</say>", "max_tokens": 400}) for word in ("one" * 99, "two"))
    with connect(server) as client:
        client.sendall(one + two)
        with client.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["choices"][0]["text"] == "one" * 99


def test_a_client_of_http_1_0_reads_a_stream_to_the_end_of_the_connection(server) -> None:
    request = raw_request(TEXT, {"prompt": "<say>old and slow</say>", "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    for asked in (request, b"GET /health HTTP/1.0\r\n\r\n", b"GET /nowhere HTTP/1.0\r\n\r\n"):
        with connect(server) as client:
            client.sendall(asked)
            with client.makefile("rb") as answer:
                head, _, body = answer.read().partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"\r\nconnection: close" in head
        if asked is request:
            *events, done, end = body.split(b"\n\n")
            assert (done, end) == (b"data: [DONE]", b"")
            text = "".join(json.loads(e.removeprefix(b"data: "))["choices"][0]["text"] for e in events)
            assert text == "old and slow"
        else:
            assert f"\r\ncontent-length: {len(body)}".encode() in head


def test_a_chat_that_nobody_reads(server) -> None:
    messages = [{"role": "user", "content": LONG["prompt"]}]
    with connect(server) as client:
        client.sendall(raw_request(CHAT, {"messages": messages, "ignore_eos": True, "stream": True}))
        assert b" 200 OK" in client.recv(65536)
    server.until_idle(seconds=3)


def test_a_slow_reader_gets_everything(server) -> None:
    body = {**LONG, "max_tokens": 800, "stream": True, "temperature": 0}
    whole = server.post(TEXT, **{**body, "stream": False}).json()["choices"][0]["text"]
    with server.client.stream("POST", TEXT, json=body) as response:
        text, events = "", 0
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                events += 1
                time.sleep(0.002 if events < 50 else 0)
    assert text == whole


def test_a_client_that_never_sends_or_never_reads_is_let_go(start) -> None:
    server = start(timeout_client=3, timeout_keep_alive=2)
    began = time.monotonic()
    with contextlib.ExitStack() as clients:
        for said in (
            b"",
            b"GET /hea",
            raw_request(TEXT, {"prompt": "x"})[:-3],
            b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        ):
            client = clients.enter_context(connect(server))
            client.sendall(said)
            clients.callback(until_closed, client)
            if said.endswith(b"\r\n\r\n"):
                assert b" 200 " in client.recv(4096)
    assert 2 <= time.monotonic() - began < 30
    with connect(server) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(raw_request(TEXT, {**LONG, "n": 32, "stream": True, "logprobs": 5, "return_token_ids": True}))
        server.until(lambda: server.service.llm.num_unfinished > 0)
        server.until_idle(seconds=60)  # a busy machine takes long to fill the buffers in between
        server.until(lambda: server.service.metrics.totals().finished.abort > 0)
    assert server.post(TEXT, prompt="<say>ok</say>").json()["choices"][0]["text"] == "ok"


def test_a_request_that_takes_too_long(start) -> None:
    server = start(request_timeout=0.3)
    assert code_of(server.post(TEXT, **LONG, n=8)) == (504, "timeout")
    server.until_idle(seconds=3)
    lines = server.post(TEXT, **LONG, n=8, stream=True).text.strip().split("\n\n")
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "timeout"
    assert not any("[DONE]" in line for line in lines)
    server.until_idle(seconds=3)
    server.until(lambda: server.post(TEXT, prompt="x").status_code == 200)


def test_too_many_waiting_requests(start) -> None:
    server = start(engine={"max_num_seqs": 1}, max_queued_requests=2)
    with connect(server) as a, connect(server) as b, connect(server) as c, connect(server) as d:
        a.sendall(raw_request(TEXT, {**LONG, "n": 8}))
        server.until(lambda: server.service.llm.num_unfinished == 1 and server.service.llm.num_waiting == 0)
        for client in (b, c, d):
            client.sendall(raw_request(TEXT, LONG))
        server.until(lambda: server.service.llm.num_waiting == 3)
        for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
            response = server.post(path, **body)
            assert code_of(response) == (429, "rate_limit_exceeded")
            assert response.json()["error"]["type"] == "rate_limit_error"
            assert int(response.headers["retry-after"]) >= 1
        assert server.post("/tokenize", prompt="x").status_code == 200
    server.until_idle(seconds=2)
    assert server.post(TEXT, prompt="x").status_code == 200


def test_limits_of_numbers(start) -> None:
    server = start(max_n=2, max_prompts=2, max_logprobs=1, max_stop_strings=1, max_tools=0)
    message = [{"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "f"}}
    for path, body, param in (
        (TEXT, {"prompt": "x", "n": 3}, "n"),
        (TEXT, {"prompt": ["x"] * 3}, "prompt"),
        (TEXT, {"prompt": ["x"] * 2, "n": 2}, "n"),
        (TEXT, {"prompt": "x", "logprobs": 2}, "logprobs"),
        (TEXT, {"prompt": "x", "stop": ["a", "b"]}, "stop"),
        (CHAT, {"messages": message, "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": message, "tools": [tool]}, "tools"),
    ):
        response = server.post(path, **body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert server.post(TEXT, prompt=["x"] * 2, logprobs=1, stop=["a"]).status_code == 200


def test_log_probabilities_are_bounded_over_all_tokens(start) -> None:
    server = start(max_logprob_entries=120)  # a character of a prompt is a token
    user = [{"role": "user", "content": "x" * 60}]
    flat = {"input": "x", "include": ["message.output_text.logprobs"]}
    for path, body, param in (
        (TEXT, {"prompt": "x" * 20, "prompt_logprobs": 5, "max_tokens": 1}, None),
        (TEXT, {"prompt": "x" * 21, "prompt_logprobs": 5, "max_tokens": 1}, "prompt_logprobs"),
        (TEXT, {"prompt": ["x" * 9] * 3, "prompt_logprobs": 5, "max_tokens": 1}, "prompt_logprobs"),
        (TEXT, {"prompt": "x" * 9, "prompt_logprobs": 5, "max_tokens": 1, "n": 3}, "prompt_logprobs"),
        (TEXT, {"prompt": "x" * 20, "echo": True, "logprobs": 5, "max_tokens": 0}, "logprobs"),
        (TEXT, {"prompt": "x" * 200, "echo": True, "max_tokens": 1}, None),
        (TEXT, {"prompt": "x", "logprobs": 5, "max_tokens": 10, "n": 2}, None),
        (TEXT, {"prompt": "x", "logprobs": 5, "max_tokens": 10, "n": 3, "stream": True}, "logprobs"),
        (CHAT, {"messages": user, "logprobs": True, "top_logprobs": 5, "max_tokens": 20}, None),
        (CHAT, {"messages": user, "logprobs": True, "top_logprobs": 5, "max_tokens": 21}, "top_logprobs"),
        (CHAT, {"messages": user, "logprobs": True}, "top_logprobs"),
        (CHAT, {"messages": user, "prompt_logprobs": 2, "max_tokens": 1}, "prompt_logprobs"),
        ("/v1/responses", {**flat, "top_logprobs": 5, "max_output_tokens": 20}, None),
        ("/v1/responses", {**flat, "top_logprobs": 5, "max_output_tokens": 21}, "top_logprobs"),
    ):
        response = server.post(path, **body)
        assert response.status_code == (400 if param else 200), (body, response.text)
        assert param is None or response.json()["error"]["param"] == param


def test_a_long_prompt_does_not_hold_others_up(server, monkeypatch) -> None:
    answers: list[int] = []
    has_begun, others_are_served = threading.Event(), threading.Event()
    tokenizer = server.service.llm.tokenizer
    encode = tokenizer.encode

    def wait_for_others(*arguments: Any) -> list[int]:
        has_begun.set()
        assert others_are_served.wait(20)
        return encode(*arguments)

    monkeypatch.setattr(tokenizer, "encode", wait_for_others)

    def ask() -> None:
        answers.append(server.post("/tokenize", prompt="many words " * 200_000).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    assert has_begun.wait(20)
    for _ in range(10):
        assert server.client.get("/health").status_code == 200
    others_are_served.set()
    thread.join()
    assert answers == [200]


def test_clients_that_offer_another_protocol_get_their_answer(server) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    response = server.post(TEXT, prompt="<say>ok</say>", _headers=offer)
    assert (response.status_code, response.http_version) == (200, "HTTP/1.1")
    assert response.json()["choices"][0]["text"] == "ok"
    with connect(server) as client:  # again on the same connection, in little pieces
        for word in ("one", "two"):
            request = raw_request(TEXT, {"prompt": f"<say>{word}</say>"}, **offer)
            for i in range(0, len(request), 9):
                client.sendall(request[i : i + 9])
                time.sleep(0.001)
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert f'"text":"{word}"'.encode() in answer
        client.sendall(b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_request_ids(server) -> None:
    for given in ("abc-1", "x" * 128, "with space"):
        response = server.post(TEXT, prompt="x", _headers={"x-request-id": given})
        assert response.headers["x-request-id"] == given
    for given in ("x" * 129, "caf\u00e9".encode(), "a\tb"):
        response = server.post(TEXT, prompt="x", _headers={"x-request-id": given})
        assert len(response.headers["x-request-id"]) == 32
    assert server.post(TEXT, prompt="x", request_id="mine").json()["id"] == "cmpl-mine"
    assert server.client.get("/nowhere", headers={"x-request-id": "lost"}).headers["x-request-id"] == "lost"


class Traces(Observer):
    """Remembers the traces that requests belong to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_request(self, request: Any) -> None:
        self.seen.append(request.trace_headers)


def test_requests_carry_the_clients_trace(server) -> None:
    traces = Traces()
    server.service.llm.observe(traces)
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    message = [{"role": "user", "content": "x"}]
    server.post(TEXT, prompt="x", _headers=trace)
    server.post(CHAT, messages=message, _headers=trace)
    server.post(CHAT, messages=message)
    assert traces.seen == [trace, trace, None]


def test_two_live_requests_may_have_one_id(server) -> None:
    with connect(server) as a, connect(server) as b:
        for client in (a, b):
            body = {**LONG, "n": 8, "request_id": "twin", "stream": True}
            client.sendall(raw_request(TEXT, body, **{"x-request-id": "twin"}))
        assert b" 200 " in a.recv(4096)
        assert b" 200 " in b.recv(4096)
        assert server.service.llm.num_unfinished == 2
    server.until_idle(seconds=3)


def test_web_pages_of_some_origins(start) -> None:
    server = start(allow_origins=("https://page.example",))
    asks = {"origin": "https://page.example", "access-control-request-method": "POST"}
    before = server.client.options(TEXT, headers={**asks, "access-control-request-headers": "authorization"})
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == "https://page.example"
    after = server.post(TEXT, prompt="x", _headers={"origin": "https://page.example"})
    assert after.headers["access-control-allow-origin"] == "https://page.example"
    stranger = server.client.options(TEXT, headers={**asks, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in stranger.headers


def test_browsers_may_not_call_unless_allowed(server) -> None:
    response = server.client.options(TEXT, headers={"origin": "https://page.example"})
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers
