"""Grammars are compiled in a child process first, which may be killed: llguidance has limits, but not for everything.

Some schemas make it compile for minutes (multiples of a large number), and deep references overflow the stack, which
ends the process. What a child has compiled in time, this process can compile as well.

Owns: the children. Must never know: requests, schemas.
"""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from octavo_llguidance.engine import GrammarError

_MAX_CHILDREN = 4
"""Grammars that are rehearsed at the same time, so that one that takes all its time does not hold up the others."""
_START_SECONDS = 30.0
"""What a child may take to start, on a busy machine."""
_UNLIMITED_STACK_BYTES = 2 << 20
"""What a thread gets where the stack of the main thread is unlimited."""


class Rehearsal:
    """Starts children as they are needed, and keeps them for the next grammar."""

    def __init__(self, tokens: Sequence[bytes], max_seconds: float, max_bytes: int) -> None:
        self._setup = (list(tokens), max_seconds, max_bytes, _thread_stack_bytes() // 2)
        self._reasons = {
            -signal.SIGALRM: f"compiling it takes longer than {max_seconds:g} s of structured_outputs.compile_timeout",
            -signal.SIGABRT: f"compiling it takes more than {max_bytes} bytes of structured_outputs.max_compile_bytes",
            -signal.SIGSEGV: "it is nested too deeply, or has too many parts",
        }
        self._slots = threading.BoundedSemaphore(_MAX_CHILDREN)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        weakref.finalize(self, _end_all, self._all)

    def check(self, grammar: str) -> None:
        """Return if the grammar compiles within the limits. Raises `GrammarError`."""
        with self._slots:
            child = self._take()
            timer = threading.Timer(2 * self._setup[1] + _START_SECONDS, child.kill)  # for one that does not even count
            timer.start()
            try:
                error = _ask(child, grammar)
            except (EOFError, OSError, pickle.UnpicklingError):
                self._all.discard(child)
                code = _end(child)
                raise GrammarError(self._reasons.get(code, f"compiling it ended its process with {code}")) from None
            finally:
                timer.cancel()
            self._idle.append(child)
        if error is not None:
            raise GrammarError(error)

    def close(self) -> None:
        """End all children; what they were at fails."""
        _end_all(self._all)

    def _take(self) -> subprocess.Popen[bytes]:
        """An idle child that is alive, or a new one."""
        while self._idle:
            child = self._idle.pop()
            if child.poll() is None:
                return child
            self._all.discard(child)
            _end(child)
        return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-m", "octavo_llguidance.rehearsal_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._all.add(child)
        _send(child, self._setup)
        return child


def _thread_stack_bytes() -> int:
    """Of threads of this process. llguidance recurses over grammars: what fits into half of it surely fits."""
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return threading.stack_size() or (_UNLIMITED_STACK_BYTES if soft == resource.RLIM_INFINITY else soft)


def _send(child: subprocess.Popen[bytes], message: Any) -> None:
    assert child.stdin is not None
    pickle.dump(message, child.stdin)
    child.stdin.flush()


def _ask(child: subprocess.Popen[bytes], grammar: str) -> str | None:
    """What is wrong with the grammar, if anything. Raises one of several errors if the child is no more."""
    assert child.stdout is not None
    _send(child, grammar)
    return pickle.load(child.stdout)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Its return code; it is killed if it still runs and does not end by itself at once."""
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except OSError:  # what could not be written any more
            continue
    try:
        return child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _end_all(children: set[subprocess.Popen[bytes]]) -> None:
    for child in list(children):
        child.kill()
        _end(child)
    children.clear()
