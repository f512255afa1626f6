"""What never ends, is too large, or crashes ends its own compilation in bounded time, and the next one works."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from octavo.errors import InvalidRequestError
from octavo.trial import Limits
from octavo_xgrammar import worker
from octavo_xgrammar.workers import Workers

SLOW = "\n".join(["root ::= r0", *(f'r{i} ::= r{i + 1} "a" | "b"' for i in range(8000)), 'r8000 ::= "c"'])
"""A chain of rules that takes minutes to compile."""


def test_time_limit(make_grammars):
    grammars = make_grammars(compile_timeout=2.0)
    assert grammars.accepts(grammars.compile(choice=["a", "b"]), "b")
    before = grammars.backend._workers.pids
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.compile_timeout"):
        grammars.compile(grammar=SLOW)
    assert grammars.backend._workers.pids == []
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert grammars.accepts(grammars.compile(choice=["a", "c"]), "c")


def test_memory_limit(make_grammars):
    grammars = make_grammars(max_compile_bytes=2**22, compile_timeout=60.0)
    with pytest.raises(InvalidRequestError, match=r"4194304 bytes of structured_outputs\.max_compile_bytes"):
        grammars.compile(grammar=f'root ::= "{"x" * 200_000}"')
    assert grammars.accepts(grammars.compile(choice=["a", "c"]), "c")


def test_a_killed_worker_is_replaced(grammars):
    grammars.compile(choice=["a", "b"])
    for pid in grammars.backend._workers.pids:
        os.kill(pid, signal.SIGKILL)
        psutil.Process(pid).wait(10)
    assert grammars.accepts(grammars.compile(choice=["a", "d"]), "d")


def test_a_crash_ends_only_its_own_job(monkeypatch, tmp_path):
    """A worker whose compiler reads where there is no memory, at a certain source."""
    module = tmp_path / "crashing_worker.py"
    module.write_text(
        textwrap.dedent("""
            import ctypes
            import octavo_xgrammar.worker as worker

            answer = worker._Worker.answer
            def crash(self, job):
                if "crash" in job.source:
                    ctypes.string_at(0)
                return answer(self, job)

            worker._Worker.answer = crash
            worker.main()
        """)
    )
    setup = worker.Setup([b"", b"a", b"b"], 3, 8, True, 2**20)
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen([*command[:2], str(module)], **options))
    workers = Workers(1, Limits(10.0, 2**30))
    good, bad = (worker.Job("grammar", f'root ::= "{text}"', False) for text in ("a", "crash"))
    assert workers.ask(setup, good).refused is None
    with pytest.raises(InvalidRequestError, match="crashes the compiler"):
        workers.ask(setup, bad)
    assert workers.ask(setup, good).refused is None


def test_deep_and_long_sources(grammars):
    for constraint in (
        {"regex": "(" * 5000 + "a" + ")" * 5000},
        {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
        {"regex": "((a{1,100}b){1,100}c){1,100}" * 3},
    ):
        with pytest.raises(InvalidRequestError):
            grammars.compile(**constraint)
    assert grammars.accepts(grammars.compile(regex="a" * 5000), "a" * 5000)


def test_schemas_that_multiply_are_refused(grammars):
    """Sixteen anyOf of sixteen branches each, all of which have to be combined."""
    both = {"allOf": [{"anyOf": [{"minimum": i * j} for i in range(16)]} for j in range(16)]}
    with pytest.raises(InvalidRequestError, match="20000 parts"):
        grammars.compile(json=both)


def test_many_threads_compile_at_once(make_grammars):
    grammars = make_grammars()
    with ThreadPoolExecutor(8) as pool:
        texts = [f"t{i}" for i in range(24)]
        compiled = list(pool.map(lambda text: grammars.compile(choice=[text, "other"]), texts))
    for text, grammar in zip(texts, compiled, strict=True):
        assert grammars.accepts(grammar, text)
        assert not grammars.accepts(grammar, "t")
    assert 1 <= len(grammars.backend._workers.pids) <= (os.cpu_count() or 1)


def test_workers_end_with_their_owner(make_grammars):
    grammars = make_grammars()
    grammars.compile(choice=["a"])
    (process,) = map(psutil.Process, grammars.backend._workers.pids)
    del grammars
    gc.collect()
    assert not process.is_running()


def test_workers_end_with_a_killed_parent():
    code = """
        import sys, time
        from octavo.trial import Limits
        from octavo_xgrammar import worker
        from octavo_xgrammar.workers import Workers
        workers = Workers(2, Limits(10.0, 2**30))
        setup = worker.Setup([b"", b"a"], 2, 8, True, 2**20)
        assert workers.ask(setup, worker.Job("regex", "a", False)).refused is None
        print(*workers.pids, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        (process,) = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    _, alive = psutil.wait_procs([process], timeout=20)
    assert alive == []


def test_following_an_ambiguous_grammar_ends(grammars, monkeypatch):
    """The engine's step follows the grammar, so one that grows with the output must not be followed for ever."""
    monkeypatch.setattr("octavo_xgrammar.backend._SLOW_SECONDS", 0.0005)
    monkeypatch.setattr("octavo_xgrammar.backend._MAX_SLOW_SECONDS", 0.05)
    matcher = grammars.matcher(grammars.eos, grammar='root ::= root root | "a" | ""')
    for _ in range(400):
        grammars.allowed(matcher)
        assert matcher.accept(grammars.byte("a"))
        if matcher.failure is not None:
            break
    assert "ambiguous" in str(matcher.failure)


def test_without_a_tokenizer(make_grammars):
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        make_grammars(tokenizer=None).compile(choice=["a"])


def test_nothing_is_written_to_stderr(grammars, capfd):
    for constraint in ({"grammar": "root ::= x"}, {"json": {"not": {"type": "null"}}}, {"regex": "(?=a)"}):
        with pytest.raises(InvalidRequestError):
            grammars.compile(**constraint)
    matcher = grammars.matcher(grammars.eos, choice=["a"])
    grammars.masks(matcher, [grammars.end, -5, 10**7])
    assert not any(map(matcher.accept, (grammars.end, -5, 10**7)))
    assert capfd.readouterr().err == ""
