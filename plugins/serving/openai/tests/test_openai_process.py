"""`octavo serve` as a process: its line, its log, what it says while it loads, Unix sockets, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from octavo.testing.echo_model import echo_config

LONG = {"prompt": "a <say>long story</say>", "max_tokens": 50, "ignore_eos": True}


# The echo model is no installed plugin, so the command is given it here.
SCRIPTED = """
import asyncio, os, sys
from octavo import AsyncLLM
from octavo.cli import main
from octavo.testing import echo_model
start = AsyncLLM.start

async def start_late(config, plugins=(), **more):
    await asyncio.sleep(float(os.environ.get("SECONDS_BEFORE_LOADING", "0")))
    return await start(config, [echo_model], **more)

AsyncLLM.start = start_late
sys.exit(main())
"""


def scripted_command() -> list[str]:
    """`octavo serve` with the model that says what it is told."""
    model = str(echo_config().model.path)
    options = {"model": model, "dtype": "float32", "device": "cpu", "cache.num-blocks": "512"}
    options |= {"attention.backend": "echo", "parallel.num-threads": "1"}
    return [
        sys.executable,
        "-c",
        SCRIPTED,
        "serve",
        *(word for key, value in options.items() for word in (f"--{key}", value)),
    ]


class Process:
    """A server with its engine in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
        )

    def address(self) -> str:
        """Of the ready server, from the one line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("octavo: serving octavo-"), line + self.errors()
        return line.rpartition(" at ")[2].strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(120)

    def errors(self) -> str:
        assert self.process.stderr is not None
        self.process.wait(120)
        return self.process.stderr.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def run() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(*flags: str, is_refused: bool = False) -> Process:
        """`is_refused`: it will not come to a model, so none is given."""
        command = [sys.executable, "-m", "octavo", "serve"] if is_refused else scripted_command()
        started.append(Process([*command, "--port", "0", *flags]))
        return started[-1]

    yield make
    for process in started:
        process.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def test_the_log_as_json_holds_no_text_of_anybody(run) -> None:
    process = run("--log-format", "json")
    url = process.address()
    assert httpx.get(f"{url}/health", timeout=60).status_code == 200
    httpx.post(f"{url}/v1/completions", json=LONG, headers={"x-request-id": "mine"}, timeout=60)
    httpx.post(f"{url}/v1/completions", json={**LONG, "n": 0}, timeout=60)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    errors = process.errors()
    assert "long story" not in errors
    good, bad, *_ = (entry for entry in map(json.loads, errors.splitlines()) if entry["message"] == "request")
    assert {name: good[name] for name in ("request_id", "method", "path", "status", "finish_reasons")} == {
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "finish_reasons": ["length"],
    }
    assert (good["completion_tokens"], bad["status"], bad["error"]) == (50, 400, "invalid_value")
    assert good["prompt_tokens"] > 10
    assert good["duration"] > 0


@pytest.mark.parametrize(
    ("flags", "is_told"), [(["--no-log-requests"], True), (["--log-stats-interval", "none"], False)]
)
def test_the_log_tells_the_throughput(run, flags: list[str], is_told: bool) -> None:
    process = run("--log-format", "json", "--log-stats-interval", "1000", *flags)
    httpx.post(f"{process.address()}/v1/completions", json=LONG, timeout=60)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    lines = [line for line in map(json.loads, process.errors().splitlines()) if line["message"] == "throughput"]
    assert len(lines) == is_told  # at the end at the latest
    for line in lines:
        assert line["generation_tokens_per_second"] > 0
        assert line["prompt_tokens_per_second"] > 0
        assert (line["num_running"], line["num_waiting"], line["prefix_cache_hit_percent"]) == (0, 0, 0)
        assert "draft_acceptance_percent" not in line


def test_it_answers_while_the_model_is_loaded(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECONDS_BEFORE_LOADING", "60")
    address = tmp_path / "server.sock"
    process = run("--uds", str(address))
    until(address.exists)
    transport = httpx.HTTPTransport(uds=str(address), retries=5)  # it may not listen yet
    with httpx.Client(transport=transport, base_url="http://x", timeout=60) as client:
        first = client.get("/health")
        assert (first.status_code, first.json()["error"]["code"]) == (503, "model_loading")
        assert client.get("/version").status_code == 200
        for path, body in (("completions", LONG), ("chat/completions", {"messages": []})):
            answer = client.post(f"/v1/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_unix_socket(run, tmp_path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    process = run("--uds", str(path))
    assert process.address() == f"unix:{path}"
    second = run("--uds", str(path), is_refused=True)
    assert second.wait() == 2
    assert "another server listens at" in second.errors()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/health").status_code == 200
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not path.exists()


def test_an_end_while_the_model_is_loaded_leaves_no_socket(run, tmp_path, monkeypatch) -> None:
    path = tmp_path / "server.sock"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = run("--uds", str(path))
    until(lambda: list(tmp_path.glob("octavo-*")))  # the engine's: loading has begun
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "many"], "--port: must be int"),
        (["--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.pem"], "No such file"),
        (["--host", "256.1.1.1"], "error"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(run, flags: list[str], said: str) -> None:
    process = run(*flags, is_refused=True)
    assert process.wait() == 2
    errors = process.errors()
    assert said in errors
    assert "Traceback" not in errors


def test_a_port_that_is_taken(run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = run("--port", str(taken.getsockname()[1]), is_refused=True)
        assert process.wait() == 2
    assert "in use" in process.errors()


def test_a_chat_template_that_cannot_be_used(run, tmp_path) -> None:
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}")
    for given, said in (("nowhere.jinja", "name a file"), (str(tmp_path / "mine.jinja"), "line 1: Unexpected end")):
        process = run("--chat-template", given)
        assert process.wait() == 2
        errors = process.errors()
        assert "octavo: error: model.chat_template: " in errors
        assert said in errors
        assert "Traceback" not in errors
