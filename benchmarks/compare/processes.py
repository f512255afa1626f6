"""Runs one job in a fresh process, and watches how much memory the process and its children hold.

Owns: the process. Must never know: what the job is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

_POLL_SECONDS = 0.1
_MEMORY_EVERY = 5
"""Polls between two looks at the memory, which take the process that is measured some time too."""


class RunError(Exception):
    """Why there is no result."""


def run_job(
    command: Sequence[str], job: dict[str, Any], folder: Path, variables: Mapping[str, str], limit_seconds: float
) -> dict[str, Any]:
    """The result of `command JOB RESULT`; what it printed is in `folder/log.txt`.

    `spawned` is added to the job; `peak_bytes`, and the load of the machine before, are added to the result. Raises
    `RunError` with the last line that was printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job_path, result_path, log_path = folder / "job.json", folder / "result.json", folder / "log.txt"
    result_path.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OCTAVO_", "VIRTUAL_ENV"))}
    load = os.getloadavg()[0]
    with log_path.open("wb") as log:
        job_path.write_text(json.dumps(job | {"spawned": time.monotonic()}), encoding="utf-8")
        process = subprocess.Popen(
            [*command, str(job_path), str(result_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment | dict(variables),
            start_new_session=True,
        )
        try:
            peak = _watch(process, limit_seconds)
        finally:
            _end(process)
    if process.returncode or not result_path.exists():
        raise RunError(_reason(process.returncode, log_path))
    result = json.loads(result_path.read_text(encoding="utf-8"))
    return result | {"peak_bytes": max(peak, result.get("peak_resident_bytes") or 0), "load_before": load}


def _watch(process: subprocess.Popen[bytes], limit_seconds: float) -> int:
    """Wait for the end; the most memory that the process and its descendants were seen to hold, in bytes."""
    watched, peak, num_polls = psutil.Process(process.pid), 0, 0
    deadline = time.monotonic() + limit_seconds
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise RunError(f"not done after {limit_seconds:g} s")
        if num_polls % _MEMORY_EVERY == 0:
            peak = max(peak, _resident_bytes(watched))
        num_polls += 1
        time.sleep(_POLL_SECONDS)
    return peak


def _resident_bytes(process: psutil.Process) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):  # one has ended meanwhile
        for member in [process, *process.children(recursive=True)]:
            total += member.memory_info().rss
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it left behind in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(status: int, log_path: Path) -> str:
    lines = [line.strip() for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = next((line for line in reversed(lines) if line), "it printed nothing")
    what = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{said[:300]} ({what})"
