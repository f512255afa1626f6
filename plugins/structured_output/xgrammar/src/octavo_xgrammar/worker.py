"""A process that compiles grammars to see whether they can be compiled: `python -m octavo_xgrammar.worker`.

C++ that never ends, fills the memory or crashes cannot be stopped in a thread; this process can be killed.
Owns: its loop, its limits. Must never know: Octavo, torch, who asks.

Frames on stdin and stdout are four bytes of length and MessagePack. The first frame is a `Setup`; then each `Job` is
answered by a `Reply`. It ends when stdin does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
import tempfile
import threading
import types
from typing import IO, Any

import msgspec

from octavo_xgrammar.regexes import Refused
from octavo_xgrammar.sources import Notation, message_of, warning_in

_STACK_BYTES = 4 << 20
"""Half of what threads usually have, so that what does not overflow here does not in the engine."""


_NICENESS = 10
"""A tenth of a CPU that others want too: little to them, and enough for a grammar of the usual size."""


class Setup(msgspec.Struct):
    vocabulary: list[bytes]
    vocab_size: int
    max_whitespace: int
    closed_objects: bool
    cache_bytes: int


class Job(msgspec.Struct):
    kind: str
    source: str
    any_whitespace: bool
    max_bytes: int
    max_cpu_seconds: int


class Reply(msgspec.Struct):
    method: str = ""
    text: str = ""
    refused: str | None = None
    out_of_memory: bool = False


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    frame = msgspec.msgpack.encode(message)
    stream.write(len(frame).to_bytes(4, "little") + frame)
    stream.flush()


def receive(stream: IO[bytes], kind: type[Any]) -> Any:
    """The next message; None at the end of the stream."""
    head = stream.read(4)
    length = int.from_bytes(head, "little")
    frame = stream.read(length) if len(head) == 4 else b""
    return msgspec.msgpack.decode(frame, type=kind) if frame and len(frame) == length else None


_NOT_NEEDED = {
    "transformers": ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"),
    "xgrammar.structural_tag": ("StructuralTag", "StructuralTagItem"),
}
"""Classes that xgrammar's compiler asks for, only to know them when it is given one."""


def import_xgrammar() -> tuple[Any, Any, Any]:
    """`GrammarCompiler`, `Grammar`, `TokenizerInfo`, without torch and transformers, which compiling does not need.

    They would take seconds and hundreds of megabytes. If the short way fails, the whole package is imported.
    """
    before = set(sys.modules)
    try:
        _stand_in()
        from xgrammar.compiler import GrammarCompiler
        from xgrammar.grammar import Grammar
        from xgrammar.tokenizer_info import TokenizerInfo
    except (ImportError, AttributeError):
        for name in sys.modules.keys() - before:
            del sys.modules[name]
        from xgrammar import Grammar, GrammarCompiler, TokenizerInfo
    return GrammarCompiler, Grammar, TokenizerInfo


def _stand_in() -> None:
    """Put empty modules in the place of what takes long, and of the package, whose `__init__` imports all of it."""
    spec = importlib.util.find_spec("xgrammar")
    package = types.ModuleType("xgrammar")
    package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    sys.modules["xgrammar"] = package
    sys.modules["torch"] = None  # type: ignore[assignment]
    for module, names in _NOT_NEEDED.items():
        sys.modules[module] = types.ModuleType(module)
        for name in names:
            setattr(sys.modules[module], name, type(name, (), {}))
    importlib.import_module("xgrammar.load_binding")


def compile_with(compiler: Any, method: str, text: str) -> Any:
    return compiler.compile_structural_tag(text) if method == "structural_tag" else compiler.compile_grammar(text)


class _Worker:
    def __init__(self, setup: Setup, log: IO[str]) -> None:
        compiler, grammar, tokenizer_info = import_xgrammar()
        info = tokenizer_info(setup.vocabulary, vocab_size=setup.vocab_size, stop_token_ids=[])
        self._compiler = compiler(info, max_threads=1, cache_limit_bytes=setup.cache_bytes)
        self._log = log
        self._notation = Notation(
            setup.vocab_size,
            setup.max_whitespace,
            setup.closed_objects,
            lambda schema, **options: str(grammar.from_json_schema(schema, **options)),
        )

    def answer(self, job: Job) -> Reply:
        self._log.seek(0)
        self._log.truncate()
        try:
            method, text = self._notation.prepare(job.kind, job.source, job.any_whitespace)
            compile_with(self._compiler, method, text)
        except Refused as error:
            return Reply(refused=str(error))
        except MemoryError:
            return Reply(out_of_memory=True)
        except Exception as error:  # whatever it is, it is about this source
            if "bad_alloc" in str(error):
                return Reply(out_of_memory=True)
            return Reply(refused=message_of(error))
        self._log.seek(0)
        warning = warning_in(self._log.read())
        return Reply(method, text) if warning is None else Reply(refused=f"xgrammar would not enforce it: {warning}")


def _limit(job: Job) -> None:
    """Let the kernel end this process. CPU time is what counts: it may have to wait for others that are busy."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {resource.RLIMIT_CPU: math.ceil(used.ru_utime + used.ru_stime) + job.max_cpu_seconds}
    with contextlib.suppress(OSError), open("/proc/self/statm") as statm:
        limits[resource.RLIMIT_AS] = int(statm.read().split()[0]) * resource.getpagesize() + job.max_bytes
    for kind, limit in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        os.dup2(log.fileno(), 2)
        setup = receive(requests, Setup)
        worker = _Worker(setup, log)
        send(replies, Reply())
        while (job := receive(requests, Job)) is not None:
            _limit(job)
            send(replies, worker.answer(job))


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    sys.setrecursionlimit(20_000)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the frames
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, replies))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
