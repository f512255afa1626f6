"""The worker processes: started when needed, one job at a time each, killed when a job exceeds its limits.

Owns: processes, time limits. Must never know: xgrammar, grammars.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref

from octavo.errors import InvalidRequestError
from octavo_xgrammar.worker import Job, Reply, Setup, receive, send

_START_SECONDS = 120.0
_CPU_TIME_IS_UP = -getattr(signal, "SIGXCPU", 0)


class _Process:
    """One worker process."""

    def __init__(self, setup: Setup) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",  # others set address space aside, which a limit of memory cannot tell from its use
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo_xgrammar.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        if self.ask(setup, _START_SECONDS)[0] is None:
            raise RuntimeError(f"the worker process of xgrammar ended with {self._process.wait()} while it started")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: Setup | Job, max_seconds: float) -> tuple[Reply | None, bool]:
        """The reply, and whether the time was up. Without a reply the process has ended."""
        assert self._process.stdin
        assert self._process.stdout
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(max_seconds, kill)
        timer.start()
        try:
            send(self._process.stdin, message)
            reply = receive(self._process.stdout, Reply)
        except OSError:  # it had ended before
            reply = None
        finally:
            timer.cancel()
        if reply is None:
            self.close()
        return reply, late.is_set()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                try:
                    pipe.close()
                except OSError:  # what was still to be written has no reader
                    continue


class Workers:
    """Asks workers whether something can be compiled, in as many processes as there are CPUs."""

    def __init__(self, num_workers: int) -> None:
        self._slots = threading.BoundedSemaphore(num_workers or os.cpu_count() or 1)
        self._idle: list[_Process] = []
        self._alive: set[_Process] = set()
        weakref.finalize(self, _close_all, self._alive)

    @property
    def pids(self) -> list[int]:
        return sorted(process.pid for process in list(self._alive))

    def close(self) -> None:
        """End all workers; what they were at fails."""
        _close_all(self._alive)

    def ask(self, setup: Setup, job: Job, max_seconds: float) -> Reply:
        """Have a job done. Raises `InvalidRequestError` (field `structured_outputs`) if it exceeds a limit."""
        with self._slots:
            reply, late, process = self._ask(setup, job, max_seconds)
            if reply is not None and not reply.out_of_memory:
                self._idle.append(process)
                return reply
        if late:
            raise _exceeded(f"takes more than the {max_seconds:g} s of structured_outputs.compile_timeout to compile")
        if reply is None and process.exit_code == _CPU_TIME_IS_UP:
            raise _exceeded(
                f"takes more than {job.max_cpu_seconds} s of CPU to compile, half of structured_outputs.compile_timeout"
            )
        if reply is not None:
            raise _exceeded(
                f"takes more than the {job.max_bytes} bytes of structured_outputs.max_compile_bytes to compile"
            )
        raise _exceeded(f"crashes the compiler (exit code {process.exit_code})")

    def _ask(self, setup: Setup, job: Job, max_seconds: float) -> tuple[Reply | None, bool, _Process]:
        while True:
            try:
                process, is_new = self._idle.pop(), False
            except IndexError:
                process, is_new = _Process(setup), True
                self._alive.add(process)
            reply, late = process.ask(job, max_seconds)
            if reply is None or reply.out_of_memory:
                self._drop(process)
            if reply is not None or late or is_new:
                return reply, late, process
            # it may have been killed while it was idle; a new one shows whether the job is what ends it

    def _drop(self, process: _Process) -> None:
        process.close()
        self._alive.discard(process)


def _exceeded(what: str) -> InvalidRequestError:
    return InvalidRequestError("structured_outputs", f"the grammar {what}; simplify it, repeat and nest less")


def _close_all(processes: set[_Process]) -> None:
    for process in list(processes):
        process.close()
