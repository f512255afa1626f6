"""The engine's process: `python -m octavo.engine.process ADDRESS LIFELINE LEVEL`, started by `start_process`.

Owns: what a process needs around `run_core`: its end with its parent, signals, logging. Must never know: what the
engine does.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import shutil
import signal
import sys
import threading

import zmq

from octavo.engine import wire
from octavo.engine.core_loop import run_core

_LOOK = 0.5
"""Seconds between two looks at who the parent is: a fork of it may hold the lifeline open after its death."""


def main(address: str, lifeline: int, level: int) -> None:
    """Serve the front end at `address` until it says so, or is gone: `lifeline` is a pipe that its end closes.

    `level` is that of the parent's log.
    """
    # Signals of a terminal or a service manager reach the whole group; when to end is the parent's decision.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    logging.basicConfig(format="octavo engine: %(levelname)s: %(message)s")
    logging.getLogger("octavo").setLevel(level)
    folder = os.path.dirname(address.removeprefix("ipc://"))
    context = zmq.Context()
    socket = wire.open_socket(context)
    socket.bind(address)
    threading.Thread(target=_end_with_parent, args=(lifeline, os.getppid(), folder), daemon=True).start()
    socket.poll()
    shutil.rmtree(folder, ignore_errors=True)  # the parent is there, and nobody else is to come
    gc.freeze()  # what is imported lives as long as the process
    run_core(wire.Channel(socket, wire.TO_CORE))
    context.destroy(linger=1000)


def _end_with_parent(lifeline: int, parent: int, folder: str) -> None:
    while os.getppid() == parent:
        if select.select([lifeline], [], [], _LOOK)[0]:
            break
    shutil.rmtree(folder, ignore_errors=True)  # nobody will come for what is in it
    os._exit(1)  # at once, whatever the engine is at: nobody is left to want it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
