"""`octavo serve` as a process: its line, its end, what it says while it loads, TLS and Unix sockets."""

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
import psutil
import pytest

LONG = {"prompt": "a <say>long story</say>", "max_tokens": 3000, "ignore_eos": True}


class Process:
    """The command, with the model that says what it is told, and engine and server in processes of their own."""

    def __init__(self, *flags: str) -> None:
        # the echo model is no installed plugin, so the command is given it here
        code = (
            "import sys; from octavo import AsyncLLM; from octavo.testing import echo_model; "
            "start = AsyncLLM.start; "
            "AsyncLLM.start = lambda config, plugins=(), **more: start(config, [echo_model], **more); "
            "from octavo.cli import main; sys.exit(main())"
        )
        from octavo.testing.echo_model import echo_config

        model = echo_config().model.path
        engine = ["--model", str(model), "--dtype", "float32", "--device", "cpu", "--cache.num-blocks", "512"]
        engine += ["--attention.backend", "echo", "--autoload-plugins", "true", "--parallel.num-threads", "1"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        command = [sys.executable, "-c", code, "serve", *engine, *flags]
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
        return self.process.wait(30)

    def errors(self) -> str:
        assert self.process.stderr is not None
        self.process.wait(30)
        return self.process.stderr.read()

    def engine_pid(self) -> int:
        children = psutil.Process(self.process.pid).children()
        (pid,) = [child.pid for child in children if "octavo.engine.process" in child.cmdline()]
        return pid

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def run() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(*flags: str) -> Process:
        started.append(Process("--port", "0", *flags))
        return started[-1]

    yield make
    for process in started:
        process.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_the_first_signal_drains_and_ends_with_0(run) -> None:
    process = run("--log-format", "json", "--drain-timeout", "20")
    url = process.address()
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "max_tokens": 2000, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while httpx.get(f"{url}/health").status_code == 200:
            assert time.monotonic() < deadline
        refused = httpx.post(f"{url}/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert [line for line in lines if line][-1] == "data: [DONE]", "the running one may end"
    assert process.wait() == 0
    logged = [json.loads(line) for line in process.errors().splitlines()]
    requests = [entry for entry in logged if entry["message"] == "request" and entry["path"] == "/v1/completions"]
    assert sorted((entry["status"], entry.get("completion_tokens")) for entry in requests) == [(200, 2000), (503, None)]
    assert not any("long story" in str(entry) for entry in logged)


def test_what_does_not_end_in_time_is_told(run) -> None:
    process = run("--drain-timeout", "0.2")
    url = process.address()
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "n": 8, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        process.signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
    assert process.wait() == 0


def test_the_second_signal_ends_it_at_once(run) -> None:
    process = run()
    url = process.address()
    engine = process.engine_pid()
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "n": 8, "stream": True}) as response:
        next(response.iter_lines())
        process.signal(signal.SIGTERM)
        time.sleep(0.3)
        process.signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    deadline = time.monotonic() + 10
    while psutil.pid_exists(engine):
        assert time.monotonic() < deadline, "the engine is left over"
        time.sleep(0.05)


def test_an_engine_that_dies_is_told_to_everybody(run) -> None:
    process = run()
    url = process.address()
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "n": 8, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(process.engine_pid(), signal.SIGKILL)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
    health = httpx.get(f"{url}/health")
    assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_dead")
    assert httpx.post(f"{url}/v1/completions", json=LONG).status_code == 503
    assert process.wait() == 1
    assert "start it again" in process.errors()


def test_it_answers_while_the_model_is_loaded(run) -> None:
    port = free_port()
    process = run("--port", str(port))
    deadline = time.monotonic() + 20
    first = None
    while first is None:
        assert time.monotonic() < deadline
        try:
            first = httpx.get(f"http://127.0.0.1:{port}/health")
        except httpx.TransportError:
            time.sleep(0.02)
    assert (first.status_code, first.json()["error"]["code"]) == (503, "model_loading")
    assert httpx.get(f"http://127.0.0.1:{port}/version").status_code == 200
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_unix_socket(run, tmp_path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    process = run("--uds", str(path))
    assert process.address() == f"unix:{path}"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/health").status_code == 200
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "many"], "plugins.openai.port"),
        (["--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.pem"], "No such file"),
        (["--host", "256.1.1.1"], "error"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(run, flags: list[str], said: str) -> None:
    process = run(*flags)
    assert process.wait() == 2
    errors = process.errors()
    assert said in errors
    assert "Traceback" not in errors


def test_a_port_that_is_taken(run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = run("--port", str(taken.getsockname()[1]))
        assert process.wait() == 2
    assert "in use" in process.errors()
