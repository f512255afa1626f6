"""A process that compiles grammars to see whether they can be compiled: `python -m octavo_xgrammar.worker`.

C++ that never ends, fills the memory or crashes cannot be stopped in a thread; this process can be killed.
Owns: what it is told and answers, in MessagePack. Must never know: its limits, torch, who asks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable
from typing import IO, Any

import msgspec

from octavo.trial import serve
from octavo_xgrammar.regexes import Refused
from octavo_xgrammar.sources import Notation, message_of, warning_in


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


class Reply(msgspec.Struct):
    method: str = ""
    text: str = ""
    refused: str | None = None


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
        """Raises `MemoryError`."""
        self._log.seek(0)
        self._log.truncate()
        try:
            method, text = self._notation.prepare(job.kind, job.source, job.any_whitespace)
            compile_with(self._compiler, method, text)
        except Refused as error:
            return Reply(refused=str(error))
        except MemoryError:
            raise
        except Exception as error:  # whatever it is, it is about this source
            if "bad_alloc" in str(error):
                raise MemoryError from error
            return Reply(refused=message_of(error))
        self._log.seek(0)
        warning = warning_in(self._log.read())
        return Reply(method, text) if warning is None else Reply(refused=f"xgrammar would not enforce it: {warning}")


def _start(setup: bytes) -> Callable[[bytes], bytes]:
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (open as long as the process)
    worker = _Worker(msgspec.msgpack.decode(setup, type=Setup), log)
    os.dup2(log.fileno(), 2)  # where xgrammar writes its warnings
    return lambda job: msgspec.msgpack.encode(worker.answer(msgspec.msgpack.decode(job, type=Job)))


def main() -> None:
    sys.setrecursionlimit(20_000)
    serve(_start)


if __name__ == "__main__":
    main()
