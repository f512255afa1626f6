"""Tries out, in child processes that can be killed, what may never end, fill the memory or crash.

Native code cannot be stopped in a thread. So a grammar backend compiles each new grammar in a child first:

    trials = Trials("my_plugin.child", Limits(cpu_seconds=5.0, max_bytes=2**30), max_children=4)
    reply = trials.run(lambda: setup, job)  # raises TrialEnded

and its module `my_plugin.child`, which is run with `python -m`, ends with `serve(start)`. Setup, jobs and replies are
bytes; what they mean is the plugin's affair.

Owns: the children, their limits and priority, the frames. Must never know: grammars, what is tried. Imports no torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO

if sys.platform != "win32":
    import resource

_BRIEF_SECONDS = 0.1
"""A child busy with one job for longer goes to idle priority. What people wait for usually takes milliseconds, and what
runs longer halves the speed of a model that uses all CPUs: measured on two, 0.52 of its speed beside a busy process,
0.69 beside one of niceness 10, 0.66 of niceness 19, 0.955 of idle priority."""
_PATIENCE = 12.0
"""Seconds that a job may take for each second of CPU that it may use. Beside a model that uses all CPUs idle priority
gets 0.17 to 0.19 of one, measured on two: half of this is enough for all that is done in time on an idle machine. Where
other processes want the CPUs as well it gets 0.05, which makes 3 s of the 5 s that a grammar has by default."""
_START_SECONDS = 120.0
"""What a child may take to start. It does so at normal priority: its 0.2 to 0.4 s of CPU are less than would be won by
making requests wait for it, niceness only makes it hurt for longer, and from idle priority it could not come back."""
_UNLIMITED_STACK_BYTES = 2 << 20
"""What a thread gets where the stack of the main thread has no limit."""
_OUT_OF_MEMORY = 77
"""Exit code of a child whose job met a MemoryError."""
_CPU_TIME_IS_UP = -getattr(signal, "SIGPROF", 0)
_LIMITS = struct.Struct("<dQQ")
"""What the first frame begins with, before the setup: CPU seconds and bytes of each job, bytes of the stack."""


class Ending(Enum):
    """What ended a child before it replied."""

    CPU_TIME = "it used its CPU time"
    WALL_TIME = "it was not done in time, on a machine that may be busy"
    MEMORY = "it met a MemoryError"
    CRASH = "it ended by itself, or somebody ended it"


class TrialEnded(Exception):
    """A job ended its child; no reply will come."""

    def __init__(self, ending: Ending, exit_code: int) -> None:
        super().__init__(f"{ending.value} (exit code {exit_code})")
        self.ending, self.exit_code = ending, exit_code


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one job."""

    cpu_seconds: float
    max_bytes: int
    """Memory beyond what the child has mapped when the job comes. Linux only."""

    @property
    def wall_seconds(self) -> float:
        """Nobody waits longer, however busy the machine is."""
        return _PATIENCE * self.cpu_seconds


class Trials:
    """Starts children as they are needed, gives each one job at a time, and keeps those that may serve again.

    At most `max_children` work at normal priority, and twice as many altogether, so that jobs that take long do not
    hold up brief ones. Not kept is a child that a job has ended, and one that went to idle priority: no unprivileged
    process comes back from there. All end with their owner. Thread-safe.
    """

    def __init__(self, module: str, limits: Limits, max_children: int) -> None:
        self._module, self._limits = module, limits
        self._places = threading.BoundedSemaphore(2 * max_children)
        self._slots = threading.BoundedSemaphore(max_children)
        """Normal priority; a job that loses that gives its slot back."""
        self._idle: list[_Child] = []
        self._alive: set[_Child] = set()
        self._is_closed = False
        weakref.finalize(self, _end_all, self._alive)

    @property
    def pids(self) -> list[int]:
        """Of the children that are alive, busy or not."""
        return sorted(child.pid for child in list(self._alive))

    def run(self, setup: Callable[[], bytes], job: bytes) -> bytes:
        """The reply to a job. Waits while as many jobs run as may.

        A child that has to be started for it is told `setup()` first, the same for all jobs. Raises `TrialEnded`, and
        `RuntimeError` if no child starts.
        """
        with self._places:
            self._slots.acquire()
            is_spent = False
            try:
                while True:
                    child, is_new = self._take(setup)
                    relegate = functools.partial(self._relegate, child)
                    reply = child.ask(job, (_BRIEF_SECONDS, relegate), (self._limits.wall_seconds, child.expire))
                    is_spent = child.is_spent
                    if reply is not None and not is_spent:
                        self._idle.append(child)
                        return reply
                    self._alive.discard(child)
                    exit_code = child.end()
                    if reply is not None:
                        return reply
                    if is_new or is_spent or child.is_late:
                        raise TrialEnded(child.ending(exit_code), exit_code)
                    # it may have been killed while it was idle; another shows whether the job is what ends it
            finally:
                if not is_spent:
                    self._slots.release()

    def close(self) -> None:
        """End all children; what they were at fails, and nothing new begins."""
        self._is_closed = True
        _end_all(self._alive)

    def _take(self, setup: Callable[[], bytes]) -> tuple[_Child, bool]:
        """A child, and whether it is new."""
        try:
            return self._idle.pop(), False
        except IndexError:
            return self._start(setup()), True

    def _relegate(self, child: _Child) -> None:
        child.make_idle()
        self._slots.release()

    def _start(self, setup: bytes) -> _Child:
        stack_bytes = _thread_stack_bytes() // 8192 * 4096  # half: what fits there surely fits here
        child = _Child(self._module)
        self._alive.add(child)
        if self._is_closed:  # perhaps too late for `close` to see the child
            child.expire()
        limits = _LIMITS.pack(self._limits.cpu_seconds, self._limits.max_bytes, stack_bytes)
        if child.ask(limits + setup, (_START_SECONDS, child.expire)) is None:
            self._alive.discard(child)
            raise RuntimeError(
                f"a child process of {self._module} ended with {child.end()} while it started"
                + (", for its owner has been closed" if self._is_closed else "; its standard error says why")
            )
        return child


class _Child:
    """One child process."""

    def __init__(self, module: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",  # others set address space aside, which a limit of memory cannot tell from its use
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.is_spent = False
        """Whether it has gone to idle priority."""
        self.is_late = False
        """Whether it was killed for its time was up."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: bytes, *alarms: tuple[float, Callable[[], None]]) -> bytes | None:
        """The reply; None if the child is no more. While there is none, each alarm goes off, in seconds from here.

        From here, for the child itself may be in native code that lets nothing else of it run.
        """
        assert self._process.stdin
        assert self._process.stdout
        done = threading.Event()
        watch = threading.Thread(target=_watch, args=(done, alarms), daemon=True)
        watch.start()
        try:
            _send(self._process.stdin, message)
            return _receive(self._process.stdout)
        except (OSError, ValueError):  # it has ended, or `end` has closed the pipes
            return None
        finally:
            done.set()
            watch.join()

    def make_idle(self) -> None:
        """Let it run only where nothing else wants to. If it ends meanwhile, or may not, it is left as it is."""
        self.is_spent = True
        with contextlib.suppress(OSError):
            if hasattr(os, "SCHED_IDLE"):
                for thread_id in os.listdir(f"/proc/{self.pid}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setscheduler(int(thread_id), os.SCHED_IDLE, os.sched_param(0))
            elif sys.platform != "win32":
                os.setpriority(os.PRIO_PROCESS, self.pid, 19)

    def expire(self) -> None:
        self.is_late = True
        self._process.kill()

    def ending(self, exit_code: int) -> Ending:
        if self.is_late:
            return Ending.WALL_TIME
        return {_CPU_TIME_IS_UP: Ending.CPU_TIME, _OUT_OF_MEMORY: Ending.MEMORY}.get(exit_code, Ending.CRASH)

    def end(self) -> int:
        """End it if it has not ended; its exit code, negative for a signal."""
        self._process.kill()
        exit_code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):  # what was still to be written has no reader
                    pipe.close()
        return exit_code


def serve(start: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """The life of a child: `start` gets the setup and returns what makes a reply of each job; ends with its input.

    Both run in one thread with half the stack that threads have, so that what does not overflow here does not in the
    parent. A MemoryError is reported; any other exception ends the child with a traceback on its standard error.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the frames
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process when it ends
    first = _receive(sys.stdin.buffer)
    if first is None:
        return
    cpu_seconds, max_bytes, stack_bytes = _LIMITS.unpack_from(first)
    threading.stack_size(stack_bytes)
    arguments = (functools.partial(start, first[_LIMITS.size :]), Limits(cpu_seconds, max_bytes), replies)
    thread = threading.Thread(target=_answer, args=arguments)
    thread.start()
    thread.join()


def _answer(start: Callable[[], Callable[[bytes], bytes]], limits: Limits, replies: IO[bytes]) -> None:
    try:
        answer = start()
        _send(replies, b"")
        while (job := _receive(sys.stdin.buffer)) is not None:
            _limit(limits)
            _send(replies, answer(job))
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _limit(limits: Limits) -> None:
    """Let the kernel end this process: nothing interrupts native code. A crash is expected and leaves no core file."""
    if sys.platform == "win32":
        return
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)  # CPU time of all threads, anew for each job
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            limit = int(statm.read().split()[0]) * resource.getpagesize() + limits.max_bytes
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _watch(done: threading.Event, alarms: Sequence[tuple[float, Callable[[], None]]]) -> None:
    started = time.monotonic()
    for seconds, alarm in alarms:
        if done.wait(started + seconds - time.monotonic()):
            return
        alarm()


def _thread_stack_bytes() -> int:
    """Of threads of this process."""
    if sys.platform == "win32":
        return threading.stack_size() or _UNLIMITED_STACK_BYTES
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return threading.stack_size() or (_UNLIMITED_STACK_BYTES if soft == resource.RLIM_INFINITY else soft)


def _send(stream: IO[bytes], message: bytes) -> None:
    """A frame: four bytes of length, and the message."""
    stream.write(len(message).to_bytes(4, "little") + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(4)
    length = int.from_bytes(head, "little")
    message = stream.read(length) if len(head) == 4 else b""
    return message if len(head) == 4 and len(message) == length else None


def _end_all(children: set[_Child]) -> None:
    for child in list(children):
        child.end()
    children.clear()
