"""A server in a process of its own, with its engine in another, as operators run them. The echo model answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import psutil

_SERVER = Path(__file__).parents[1] / "benchmarks" / "echo_server.py"
_ADDRESS = re.compile(r"at (http://([\d.]+):(\d+))")
LONG = {"prompt": "<say>" + "a long story " * 40 + "</say>", "max_tokens": 3500, "ignore_eos": True}
"""A request that takes seconds."""


class ServerProcess:
    """`octavo serve` with the echo model. `options` are its flags."""

    def __init__(self, *options: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the server
        command = [sys.executable, str(_SERVER), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        found = next((m for line in self.process.stdout if (m := _ADDRESS.search(line))), None)
        assert found is not None, self.read_log()
        self.url, self.address = found[1], (found[2], int(found[3]))
        self.client = httpx.Client(base_url=self.url, timeout=30)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def read_log(self) -> str:
        self.log.seek(0)
        return self.log.read()

    @property
    def engine(self) -> psutil.Process:
        (child,) = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "octavo.engine.process" in " ".join(child.cmdline())
        ]
        return child

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        made = socket.socket()
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(20)
        made.connect(self.address)
        return made

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json=body)

    def say(self, text: str) -> str:
        response = self.post("/v1/completions", {"prompt": f"<say>{text}</say>", "max_tokens": 500})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def status(self) -> dict[str, Any]:
        return self.client.get("/status").json()

    def is_idle(self) -> bool:
        status = self.status()
        used = sum(group["counts"]["used"] + group["counts"]["shared"] for group in status["blocks"])
        return not status["sequences"] and used == 0

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            self.process.stdout.close()
        self.log.close()


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Look so often that it takes `seconds`, and longer on a busy machine, as all else does there."""
    for _ in range(round(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come true in time")


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def raw_post(path: str, data: bytes, length: int | None = None) -> bytes:
    """An HTTP request as it goes over the wire; `length` is what it claims to be long."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data) if length is None else length}\r\n\r\n"
    )
    return head.encode() + data


def stream_post(body: dict[str, Any]) -> bytes:
    return raw_post("/v1/completions", json.dumps({**body, "stream": True}).encode())


def read_events(connection: socket.socket) -> Generator[dict[str, Any] | str]:
    """Data of the events of a stream up to `[DONE]` or an error."""
    with connection.makefile("rb") as lines:
        for line in lines:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                yield "[DONE]"
                return
            if line.startswith(b"data: "):
                event = json.loads(data)
                yield event
                if "error" in event:
                    return


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
