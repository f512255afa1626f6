"""The program of a child process: compiles grammars that may take for ever, or all memory, or the process with them.

Owns: the limits that it sets itself. Must never know: Octavo.
Run by `octavo_llguidance.rehearsal`, and ended by the end of its input.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import threading
from typing import Any, BinaryIO

from octavo_llguidance.engine import GrammarError, compile_grammar, make_tokenizer


def main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    tokens, max_seconds, max_bytes, stack_bytes = pickle.load(source)
    tokenizer = make_tokenizer(tokens)
    _limit_memory(max_bytes + stack_bytes)
    threading.stack_size(stack_bytes)
    while (grammar := _read(source)) is not None:
        outcome: list[Any] = []
        signal.setitimer(signal.ITIMER_REAL, max_seconds)  # ends the process: nothing interrupts a compilation
        thread = threading.Thread(target=_compile, args=(tokenizer, grammar, outcome))
        try:
            thread.start()
        except RuntimeError:  # no memory for its stack is left
            os.abort()
        thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        pickle.dump(outcome[0], sink)
        sink.flush()


def _compile(tokenizer: Any, grammar: str, outcome: list[str | None]) -> None:
    try:
        compile_grammar(tokenizer, grammar)
        outcome.append(None)
    except GrammarError as error:
        outcome.append(str(error))


def _limit_memory(max_bytes: int) -> None:
    """`max_bytes` beyond what this process has mapped now. A crash leaves no core file: it is expected."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = mapped + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _read(source: BinaryIO) -> str | None:
    try:
        return pickle.load(source)
    except EOFError:
        return None


if __name__ == "__main__":
    main()
