"""Servers of the benchmarks, each in a process of its own.

Owns: the start, the address that a server prints when it is ready, the end. Must never know: what is served.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_ADDRESS = re.compile(r"at (http://[\d.]+:\d+)")


@contextmanager
def server_process(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Python with these arguments, until the block ends: process id and address."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = next((m for line in process.stdout if (m := _ADDRESS.search(line))), None)
            if found is None:
                raise SystemExit(f"the server did not start: {' '.join(arguments)}")
            yield process.pid, found[1]
        finally:
            process.terminate()
            process.communicate()  # what it says at its end needs a reader
