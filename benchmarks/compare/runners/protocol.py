"""The way every engine is run and timed, whatever it is: a job in, a result out, as JSON files.

    python run_<engine>.py JOB RESULT

A job has `engine` (its options), `first` (one request), `warm_up` and `workloads` (lists of requests by name), and
`spawned`: when the process was started, on the clock of `time.monotonic`. A request has `prompt_token_ids` and
`num_output_tokens`. This file runs in the environments of all engines, so it needs nothing but Python.

Owns: the order of runs and the clock. Must never know: any engine.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

Requests = Sequence[dict[str, Any]]
Record = Callable[[int, Sequence[int]], None]
"""To be called with the place of a request among those given, and the tokens that it has just got."""


class Engine(Protocol):
    """A loaded model."""

    def prepare(self, requests: Requests) -> None:
        """Get ready for these, before the clock starts: what an engine does once for its lifetime, not per request."""
        ...

    def run(self, requests: Requests, record: Record) -> None:
        """Submit all requests at once and return when each has all its tokens."""
        ...

    def settings(self) -> dict[str, Any]:
        """What was chosen, for the record."""
        ...


class Timeline:
    """When each request got its tokens. Seconds since the requests were submitted."""

    def __init__(self, num_requests: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_requests)]
        self.first = [0.0] * num_requests
        self.last = [0.0] * num_requests
        self._start = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def record(self, index: int, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self.last[index] = now = self.elapsed()
        if not self.tokens[index]:
            self.first[index] = now
        self.tokens[index].extend(token_ids)


def measure(engine: Engine, requests: Requests) -> dict[str, Any]:
    """One workload: seconds of wall and CPU time, the median request's first token and decode rate, the tokens."""
    engine.prepare(requests)
    gc.collect()
    cpu_start, timeline = time.process_time(), Timeline(len(requests))
    engine.run(requests, timeline.record)
    seconds, cpu_seconds = timeline.elapsed(), time.process_time() - cpu_start
    rates = [
        (len(tokens) - 1) / (last - first)
        for tokens, first, last in zip(timeline.tokens, timeline.first, timeline.last, strict=True)
        if last > first
    ]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "first_token_seconds": median(timeline.first),
        "decode_tokens_per_second": median(rates) if rates else None,
        "num_input_tokens": sum(len(request["prompt_token_ids"]) for request in requests),
        "num_output_tokens": sum(map(len, timeline.tokens)),
        "token_ids": timeline.tokens,
    }


def main(make_engine: Callable[[dict[str, Any]], Engine], *distributions: str) -> None:
    """Run the job named on the command line with the engine that `make_engine` makes of the job's options."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = make_engine(job["engine"])
    measure(engine, [job["first"]])
    result: dict[str, Any] = {"start_seconds": time.monotonic() - job["spawned"]}
    if job["warm_up"]:
        measure(engine, job["warm_up"])
    result["workloads"] = {name: measure(engine, requests) for name, requests in job["workloads"].items()}
    result["settings"] = engine.settings()
    result["versions"] = {name: found for name in distributions if (found := _version(name)) is not None}
    result["peak_resident_bytes"] = _peak_resident_bytes()
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _peak_resident_bytes() -> int | None:
    """This process's own high-water mark; None where the system does not keep it in /proc.

    Not `getrusage`, whose value begins with that of the process that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None
