"""What befalls a server: killed processes, signals, hostile bodies, idle and slow clients, full queues."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from serving_process import (
    LONG,
    ServerProcess,
    has_ended,
    open_files,
    raw_post,
    read_events,
    stream_post,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the server needs signals and file limits of Unix")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One that outlives whatever the tests do to it."""
    made = ServerProcess("--timeout-client", "3", "--max-stop-strings", "16")
    yield made
    until(made.is_idle, 10)
    assert made.stop() == 0, made.read_log()
    assert "Traceback" not in made.read_log()
    made.close()


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    made: list[ServerProcess] = []

    def begin(*options: str) -> ServerProcess:
        made.append(ServerProcess(*options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def begin_stream(server: ServerProcess, **changes: Any) -> tuple[socket.socket, Generator[dict[str, Any] | str]]:
    """A stream that has begun. Its connection is closed once the events are closed, too."""
    connection = server.connect()
    connection.sendall(stream_post({**LONG, **changes}))
    events = read_events(connection)
    next(events)
    return connection, events


def cpu_seconds(server: ServerProcess) -> float:
    """What the API process has used: while it does other work, its answers wait."""
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


def test_the_engine_killed_in_mid_stream(start) -> None:
    server = start("--last-words", "10")
    streams = [begin_stream(server, n=8) for _ in range(4)]
    waiting = ThreadPoolExecutor(1)
    whole = waiting.submit(server.post, "/v1/completions", {**LONG, "n": 8})
    until(lambda: len(server.status()["sequences"]) == 5 * 8, 5)
    server.engine.kill()
    until(lambda: server.client.get("/health").status_code == 503, 1)
    for connection, events in streams:
        *_, last = events
        assert last["error"]["type"], "no error came"
        connection.close()
    assert whole.result(5).status_code == 503
    assert server.post("/v1/completions", LONG).status_code == 503
    assert server.process.wait(20) == 1
    waiting.shutdown()


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_the_server_killed_leaves_no_orphan(start, is_busy: bool) -> None:
    server = start()
    engine = server.engine
    family = [engine, *engine.children(recursive=True)]
    connection = begin_stream(server)[0] if is_busy else server.connect()
    server.process.kill()
    until(lambda: all(map(has_ended, family)), 2)
    connection.close()


def test_a_signal_lets_running_requests_end(start) -> None:
    server = start("--drain-timeout", "120")
    text = "drained to the end " * 60
    wanted = {"prompt": f"<say>{text}</say>", "max_tokens": 1200}
    streams = [begin_stream(server, ignore_eos=False, **wanted) for _ in range(4)]
    engine = server.engine
    with server.connect(receive_buffer=4096) as unread:  # so that it cannot end before it has been looked at
        unread.sendall(stream_post({**LONG, "n": 8, "logprobs": 5}))
        until(lambda: len(server.status()["sequences"]) >= 8, 5)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.client.get("/health").status_code == 503, 5)
        refused = server.post("/v1/completions", LONG)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
    for connection, events in streams:
        rest = "".join(event["choices"][0]["text"] for event in events if event != "[DONE]")
        assert text.endswith(rest)
        assert len(rest) > 500
        connection.close()
    assert server.process.wait(10) == 0
    assert has_ended(engine)


def test_what_does_not_end_in_time_is_told_so(start) -> None:
    server = start("--drain-timeout", "0.3")
    connection, events = begin_stream(server, n=8)
    server.process.send_signal(signal.SIGTERM)
    *_, last = events
    assert last["error"]["code"] == "draining"
    assert server.process.wait(10) == 0
    connection.close()


def test_the_second_signal_ends_it_at_once(start) -> None:
    server = start("--drain-timeout", "60")
    connection, _ = begin_stream(server, n=8)
    engine = server.engine
    server.process.send_signal(signal.SIGINT)
    until(lambda: server.client.get("/health").status_code == 503, 5)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(5) == 128 + signal.SIGINT
    until(lambda: has_ended(engine), 2)
    connection.close()


def test_a_full_queue(start) -> None:
    server = start("--max-num-seqs", "1", "--max-queued-requests", "2")
    running, events = begin_stream(server, n=8)
    waiting = [server.connect() for _ in range(3)]
    for connection in waiting:
        connection.sendall(stream_post(LONG))
    until(lambda: len(server.status()["sequences"]) == 8 + 3, 5)
    response = server.post("/v1/completions", LONG)
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(response.headers["retry-after"]) > 0
    assert server.client.get("/health").status_code == 200
    events.close()
    for connection in (running, *waiting):
        connection.close()
    until(server.is_idle, 5)
    assert server.say("room again") == "room again"


def test_a_client_that_leaves(server: ServerProcess) -> None:
    for body in (LONG, {**LONG, "n": 4}, {**LONG, "prompt": [LONG["prompt"]] * 3}, {**LONG, "stream": True}):
        connection = server.connect()
        connection.sendall(raw_post("/v1/completions", json.dumps(body).encode()))
        until(lambda: not server.is_idle(), 5)
        connection.close()
        until(server.is_idle, 1.5)


def test_a_slow_reader_hurts_nobody_and_is_left_in_the_end(server: ServerProcess) -> None:
    slow = server.connect(receive_buffer=4096)
    slow.sendall(stream_post({**LONG, "logprobs": 5, "n": 8}))
    until(lambda: not server.is_idle(), 5)
    assert server.say("others are served") == "others are served"
    until(server.is_idle, 60)
    slow.close()


def test_many_idle_connections(server: ServerProcess) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(10_000, hard - 500)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    memory = psutil.Process(server.process.pid).memory_info().rss
    idle = [server.connect() for _ in range(wanted)]
    try:
        used = cpu_seconds(server)
        assert server.say("still quick") == "still quick"
        assert cpu_seconds(server) - used < 5
        assert psutil.Process(server.process.pid).memory_info().rss - memory < 400 * 2**20
        until(lambda: open_files(server.process.pid) < 200, 30)  # they had their time to send something
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert server.say("and after") == "and after"


def answer_to(server: ServerProcess, data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of the answer to raw bytes."""
    with server.connect() as connection:
        connection.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            more = connection.recv(65536)
            if not more:
                break
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_body_of_100_megabytes(server: ServerProcess) -> None:
    before = psutil.Process(server.process.pid).memory_info().rss
    status, error = answer_to(server, raw_post("/v1/completions", b"x" * 1000, length=100 * 2**20))
    assert (status, error["code"]) == (413, "body_too_large")
    head = raw_post("/v1/completions", b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    with server.connect() as connection:
        connection.sendall(head)

        def send() -> None:
            piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
            with contextlib.suppress(OSError):  # the server may hang up, or read on and drop it
                for _ in range(100):
                    connection.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        assert b"413" in connection.recv(65536).split(b"\r\n")[0]
        sender.join(20)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 100 * 2**20
    assert server.say("fine") == "fine"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"{", None),
        (b"", None),
        (b"nothing", None),
        (b'{"prompt": "\xff\xfe"}', None),
        (b'{"prompt": "\\ud800"}', "prompt"),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (b'{"prompt": ' + b"9" * 10_000 + b"}", "prompt"),
        (json.dumps({"prompt": "x", "stop": ["s"] * 1_000_000}).encode(), "stop"),
        (json.dumps({"prompt": ["x"] * 100_000}).encode(), "prompt"),
        (json.dumps({"prompt": "x", "logit_bias": {str(i): 1 for i in range(300_000)}}).encode(), "logit_bias"),
        (json.dumps({"prompt": "x", "n": 10**9}).encode(), "n"),
        (json.dumps({"prompt": "x", "logprobs": 10**6}).encode(), "logprobs"),
        (json.dumps({"prompt": "x", "min_tokens": 10**9, "max_tokens": None}).encode(), None),
        (json.dumps({"prompt": "word " * 1_000_000}).encode(), "prompt"),
        (json.dumps({"prompt": "x", "max_tokens": 1e12}).encode(), "max_tokens"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"prompt": "x", "temperature": 1e999}', "temperature"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else str(value),
)
def test_hostile_bodies_get_an_error_and_the_server_stays_quick(server: ServerProcess, data: bytes, field) -> None:
    health: list[float] = []
    looks, done = threading.Event(), threading.Event()

    def look() -> None:
        while not done.is_set():
            used = cpu_seconds(server)
            assert server.client.get("/health").status_code == 200
            health.append(cpu_seconds(server) - used)
            looks.set()
            time.sleep(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        assert looks.wait(20)
        status, error = answer_to(server, raw_post("/v1/completions", data))
    finally:
        done.set()
        watcher.join()
    assert status in (400, 413), error
    if field is not None:
        assert error["param"] == field, error
    assert max(health) < 2.0
    assert server.say("as before") == "as before"


def test_broken_http(server: ServerProcess) -> None:
    for data in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000, b"GET /" + b"x" * 100_000):
        with server.connect() as connection:
            connection.sendall(data)
            assert connection.recv(65536).split()[1:2] in ([b"400"], [b"431"], [b"414"], [])
    assert server.say("and on") == "and on"


def test_half_a_request_is_not_waited_for(server: ServerProcess) -> None:
    for data in (b"POST /v1/comp", raw_post("/v1/completions", b'{"prompt": ', length=500)):
        with server.connect() as connection:
            connection.sendall(data)
            assert connection.recv(65536) == b""  # closed after the client's time was up


def test_an_idle_server_sleeps(start) -> None:
    server = start()
    assert server.say("warm") == "warm"
    server.client.close()
    time.sleep(0.5)
    processes = [psutil.Process(server.process.pid), server.engine]

    def used() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in processes)

    before, started = used(), time.monotonic()
    time.sleep(3)
    share = (used() - before) / (time.monotonic() - started)
    assert share < 0.05, f"it uses {share:.1%} of a core"
