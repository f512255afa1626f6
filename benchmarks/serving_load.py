"""Many clients at once, some of which leave: is every answer whole and its own, and is nothing left over?

    python benchmarks/serving_load.py --clients 200 --seconds 120

Each prompt carries a marker that the echo model says back, in answers of mixed length, plain or within a grammar, from
completions or chat. Twenty per cent of the clients leave in the middle. Exit status 1 if an answer is lost, mixed up or
fails, if a block or a sequence is left over, if memory grows, or if the server's event loop is late.

Owns: the clients and what must hold. Must never know: how the server works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from measuring import write_json

_ADDRESS = re.compile(r"at (http://\S+)")
_SERVER = Path(__file__).with_name("echo_server.py")
_SCHEMA = {
    "type": "object",
    "properties": {"marker": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["marker", "n"],
    "additionalProperties": False,
}
_GROWTH = 1.10
"""How much more memory the second half may need than the first."""
_SHORTEST_JUDGED = 30.0
"""Seconds of a run whose growth says something: before, much is loaded on first use."""
_SETTLE = 5.0
"""Seconds that a client's going may take to reach the last corner."""


@dataclass(slots=True)
class Tally:
    """What came of all requests."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_chunks: int = 0

    def fault(self, what: str) -> None:
        self.counts["wrong"] += 1
        if len(self.faults) < 20:
            self.faults.append(what)


@dataclass(frozen=True, slots=True)
class Job:
    path: str
    body: dict[str, Any]
    says: str
    leaves_after: int | None
    """Chunks that the client reads before it leaves; None: all."""


def make_job(draw: random.Random, serial: int) -> Job:
    marker = f"m{serial}-{draw.getrandbits(48):012x}"
    is_guided = draw.random() < 0.3
    repeated = " ".join([marker] * draw.choice((1, 2, 4, 8, 16)))
    says = json.dumps({"marker": marker, "n": serial}, separators=(",", ":")) if is_guided else repeated
    padding = "padding " * draw.choice((0, 1, 10, 60))
    prompt = f"{padding}<say>{says}</say>"
    body: dict[str, Any] = {"stream": True, "max_tokens": 1000, "temperature": draw.choice((0, 1)), "seed": serial}
    if is_guided:
        body["structured_outputs"] = {"json": _SCHEMA}
    if draw.random() < 0.5:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "/v1/completions", prompt
    return Job(path, body, says, draw.randint(1, 20) if draw.random() < 0.2 else None)


async def run_job(session: aiohttp.ClientSession, url: str, job: Job, tally: Tally) -> None:
    said, ended, num_chunks = "", None, 0
    async with session.post(url + job.path, json=job.body) as response:
        if response.status != 200:
            tally.fault(f"status {response.status}: {(await response.text())[:200]}")
            return
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                tally.fault(f"error in a stream: {event['error']}")
                return
            num_chunks += 1
            for choice in event["choices"]:
                said += choice.get("text") or choice.get("delta", {}).get("content") or ""
                ended = choice["finish_reason"] or ended
            if job.leaves_after is not None and num_chunks >= job.leaves_after:
                break  # and the connection is closed, for it has not been read to its end
    tally.num_chunks += num_chunks
    if ended is None and job.leaves_after is not None:
        tally.counts["left"] += 1
        if not job.says.startswith(said):
            tally.fault(f"{said!r} is not how {job.says!r} begins")
    elif said != job.says or ended != "stop":
        tally.fault(f"wanted {job.says!r}, got {said!r}, which ended with {ended}")
    else:
        tally.counts["whole"] += 1


async def run_client(
    session: aiohttp.ClientSession, url: str, number: int, deadline: float, seed: int, tally: Tally
) -> None:
    draw, turn = random.Random(f"{seed}/{number}"), 0
    while time.monotonic() < deadline:
        job = make_job(draw, number * 1_000_000 + turn)
        turn += 1
        try:
            await run_job(session, url, job, tally)
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.fault(f"lost: {error!r}")


async def watch_memory(processes: list[psutil.Process], deadline: float) -> list[int]:
    """Bytes of all processes together, once a second."""
    found = []
    while time.monotonic() < deadline:
        found.append(sum(process.memory_info().rss for process in processes))
        await asyncio.sleep(1)
    return found


async def left_over(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What the engine still holds a while after the last client has gone; empty if all is well."""
    deadline = time.monotonic() + _SETTLE
    while True:
        async with session.get(f"{url}/status") as response:
            status = await response.json()
        held = {
            "sequences": [s["request"] for s in status["sequences"]],
            "blocks": sum(group["counts"]["used"] + group["counts"]["shared"] for group in status["blocks"]),
        }
        if not any(held.values()):
            return {}
        if time.monotonic() > deadline:
            return held
        await asyncio.sleep(0.1)


async def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The figures, and what is wrong with them."""
    command = [sys.executable, str(_SERVER), "--port", "0", "--no-log-requests", *arguments.server_options]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        return await load(server, arguments)
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


async def load(server: Process, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Let clients come and go, then end the server."""
    assert server.stdout is not None
    found = _ADDRESS.search((await server.stdout.readline()).decode())
    assert found is not None, "the server did not start"
    url, tally = found[1], Tally()
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        main = psutil.Process(server.pid)
        processes = [main, *main.children(recursive=True)]
        deadline = time.monotonic() + arguments.seconds
        clients = [run_client(session, url, n, deadline, arguments.seed, tally) for n in range(arguments.clients)]
        memory, *_ = await asyncio.gather(watch_memory(processes, deadline), *clients)
        held = await left_over(session, url)
    server.send_signal(signal.SIGTERM)
    last = (await server.stdout.read()).decode().strip().splitlines()[-1]
    code = await server.wait()
    delays = json.loads(last)["event_loop_delays"]
    growth = None
    if arguments.seconds >= _SHORTEST_JUDGED:
        warm = memory[len(memory) // 4 :]
        half = len(warm) // 2
        growth = max(warm[half:]) / max(warm[:half])
    result = {
        "requests": dict(tally.counts),
        "chunks": tally.num_chunks,
        "left_over": held,
        "memory_mib": [round(size / 2**20) for size in memory],
        "memory_growth": growth,
        "event_loop_delays": delays,
        "exit_code": code,
    }
    return result, [*tally.faults, *_judge(result, arguments.max_delay)]


def _judge(result: dict[str, Any], max_delay: float) -> list[str]:
    wrong = []
    if not result["requests"].get("whole") or not result["requests"].get("left"):
        wrong.append("there were no whole answers, or nobody left")
    if result["left_over"]:
        wrong.append(f"left over: {result['left_over']}")
    if result["memory_growth"] is not None and result["memory_growth"] > _GROWTH:
        wrong.append(f"memory grew by a factor of {result['memory_growth']:.2f}")
    if result["event_loop_delays"]["p99"] > max_delay:
        wrong.append(f"the event loop was {result['event_loop_delays']['p99'] * 1e3:.0f} ms late (p99)")
    if result["exit_code"] != 0:
        wrong.append(f"the server ended with {result['exit_code']}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-delay", type=float, default=0.05, help="seconds that the event loop may be late in 99 of 100 looks"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result")
    arguments, arguments.server_options = parser.parse_known_args()
    result, wrong = asyncio.run(run(arguments))
    print(json.dumps(result))
    for line in wrong:
        print(f"WRONG: {line}")
    write_json(arguments.json, {**result, "wrong": wrong})
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
