"""Ctrl-C while a command starts.

Owns: `exit_on_interrupt`. Must never know: what is being started.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_INTERRUPTED = 130


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Within it, Ctrl-C ends the process at once with code 130.

    `KeyboardInterrupt` in the midst of an import can be swallowed by a library, or leave it half imported. Where
    Ctrl-C is ignored or handled by somebody else, and outside the main thread, nothing changes.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
