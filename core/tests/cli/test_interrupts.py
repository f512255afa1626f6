"""Ctrl-C while a command starts, in processes of their own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from octavo.cli.interrupts import exit_on_interrupt

SWALLOWS = """
import os, signal
from octavo.cli.interrupts import exit_on_interrupt

def interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except KeyboardInterrupt:
        print("swallowed", flush=True)
"""


@pytest.mark.parametrize(
    ("code", "returncode", "out"),
    [
        ("with exit_on_interrupt():\n    interrupt()\nprint('after')", 130, ""),
        ("with exit_on_interrupt():\n    pass\ninterrupt()\nprint('after')", 0, "swallowed\nafter\n"),
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwith exit_on_interrupt():\n    interrupt()\nprint('after')",
            0,
            "after\n",
        ),
    ],
    ids=["within", "afterwards", "ignored"],
)
def test_an_interrupt_ends_the_process_at_once_within_only(code, returncode, out) -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWS + code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (returncode, out, "")


def test_the_handler_comes_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    inside = []
    with contextlib.suppress(ValueError), exit_on_interrupt():
        inside.append(signal.getsignal(signal.SIGINT))
        raise ValueError
    assert inside[0] is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_may_use_it() -> None:
    done = []

    def use() -> None:
        with exit_on_interrupt():
            done.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert done == [True]
