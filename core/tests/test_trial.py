"""Children that try things out: what ends one, what it costs others, and that the next job is served."""

from __future__ import annotations

import gc
import os
import signal
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from octavo import trial
from octavo.trial import Ending, Limits, TrialEnded, Trials

CHILD = """
import os, resource, threading, time
from octavo import trial
from octavo.trial import serve

def start(setup):
    if setup == b"fail":
        raise ValueError("it does not start")

    def answer(job):
        what, _, argument = job.decode().partition(" ")
        if what == "pid":
            return str(os.getpid()).encode()
        if what == "setup":
            return setup
        if what == "sleep":
            time.sleep(float(argument))
            return str(os.getpid()).encode()
        if what == "spin":
            while True:
                pass
        if what == "thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        if what == "relegated":
            while os.sched_getscheduler(threading.get_native_id()) != os.SCHED_IDLE:
                time.sleep(0.01)
            return str(os.getpid()).encode()
        if what == "allocate":
            return str(len(bytearray(int(argument)))).encode()
        if what == "print":
            print("not a frame", flush=True)
            os.write(1, b"neither")
            return b"printed"
        if what == "exit":
            os._exit(int(argument))
        if what == "raise":
            raise ValueError(argument)
        if what == "core":
            return str(resource.getrlimit(resource.RLIMIT_CORE)[0]).encode()
        return job

    return answer

serve(start)
"""
BRIEF_SECONDS, PATIENCE = trial._BRIEF_SECONDS, trial._PATIENCE
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies and limits of memory are Linux'")


@pytest.fixture
def make_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trials over `CHILD`, which end with the test."""
    (tmp_path / "trial_child.py").write_text(textwrap.dedent(CHILD))
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(cpu_seconds: float = 10.0, max_bytes: int = 2**30, max_children: int = 2) -> Trials:
        made.append(Trials("trial_child", Limits(cpu_seconds, max_bytes), max_children))
        return made[-1]

    yield make
    for trials in made:
        trials.close()


def ask(trials: Trials, job: str, setup: bytes = b"setup") -> str:
    return trials.run(lambda: setup, job.encode()).decode()


def ending(trials: Trials, job: str) -> tuple[Ending, int]:
    with pytest.raises(TrialEnded) as caught:
        ask(trials, job)
    return caught.value.ending, caught.value.exit_code


def policies(pid: int) -> list[int]:
    """Field 41 of the stat of each thread: 0 is normal, 5 is idle."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [int(stat.rpartition(")")[2].split()[41 - 3]) for stat in stats]


def eventually(condition) -> bool:
    """Whether it holds within a time that is a bound on a hang."""
    deadline = time.monotonic() + 60
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def ended(*pids: int) -> bool:
    return eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_replies_and_setup(make_trials) -> None:
    trials = make_trials()
    assert ask(trials, "setup", b"x" * 300_000) == "x" * 300_000
    assert ask(trials, "") == ""
    assert ask(trials, "echo " + "é" * 200_000) == "echo " + "é" * 200_000
    assert ask(trials, "print") == "printed", "what a job prints is no part of its reply"


def test_a_child_serves_many_jobs(make_trials) -> None:
    trials = make_trials()
    assert trials.pids == []
    assert {ask(trials, "pid") for _ in range(5)} == {str(trials.pids[0])}


def test_so_many_children_at_a_time(make_trials) -> None:
    trials = make_trials(max_children=2)
    with ThreadPoolExecutor(6) as pool:
        pids = set(pool.map(lambda _: ask(trials, "sleep 0.05"), range(12)))
    assert len(pids) == len(trials.pids) == 2


def test_long_jobs_do_not_hold_up_brief_ones(make_trials, monkeypatch) -> None:
    trials = make_trials(max_children=1)
    monkeypatch.setattr(trial, "_BRIEF_SECONDS", 0.1)
    hanging = threading.Thread(target=ending, args=(trials, "sleep 600"))
    hanging.start()
    assert eventually(lambda: any(child.is_spent for child in list(trials._alive)))
    monkeypatch.setattr(trial, "_BRIEF_SECONDS", 60.0)
    assert {ask(trials, "pid") for _ in range(3)} <= set(map(str, trials.pids))
    assert len(trials.pids) == 2
    trials.close()
    hanging.join()


@linux_only
def test_a_job_that_hangs_loses_priority_and_is_killed_at_its_limit(make_trials, monkeypatch) -> None:
    trials = make_trials(cpu_seconds=0.5)
    pid = int(ask(trials, "pid"))
    ask(trials, "thread")
    assert set(policies(pid)) == {0}
    monkeypatch.setattr(trial, "_BRIEF_SECONDS", BRIEF_SECONDS)
    monkeypatch.setattr(trial, "_PATIENCE", PATIENCE)
    seen = []

    def watch() -> None:
        seen.append(eventually(lambda: len(policies(pid)) >= 3 and set(policies(pid)) == {os.SCHED_IDLE}))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert ending(trials, "sleep 600") == (Ending.WALL_TIME, -signal.SIGKILL)
    watcher.join()
    assert seen == [True], "all threads of the child"
    assert trials.pids == []
    monkeypatch.setattr(trial, "_BRIEF_SECONDS", 60.0)
    assert ask(trials, "pid") != str(pid)


def test_a_job_that_uses_its_cpu_time_is_killed(make_trials) -> None:
    trials = make_trials(cpu_seconds=0.3)
    for _ in range(3):
        assert int(ask(trials, "sleep 0.01"))
    assert ending(trials, "spin") == (Ending.CPU_TIME, -signal.SIGPROF)


@linux_only
def test_a_child_that_lost_priority_is_not_used_again(make_trials, monkeypatch) -> None:
    trials = make_trials()
    with monkeypatch.context() as patched:
        patched.setattr(trial, "_BRIEF_SECONDS", 0.1)
        slow = int(ask(trials, "relegated"))
    assert trials.pids == []
    assert ended(slow)
    quick = int(ask(trials, "pid"))
    assert quick != slow
    assert set(policies(quick)) == {0}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_idle_child_that_somebody_ended_is_replaced(make_trials, number: int) -> None:
    trials = make_trials()
    for _ in range(5):
        pid = int(ask(trials, "pid"))
        os.kill(pid, number)  # and it may still be alive when the next job comes
        assert ask(trials, "pid") != str(pid)
        assert pid not in trials.pids


@linux_only
def test_memory(make_trials) -> None:
    trials = make_trials(max_bytes=2**24)
    assert ask(trials, f"allocate {2**22}") == str(2**22)
    assert ending(trials, f"allocate {2**25}")[0] is Ending.MEMORY
    assert ask(trials, f"allocate {2**22}") == str(2**22)


@linux_only
def test_a_crash_leaves_no_core_file(make_trials) -> None:
    assert ask(make_trials(), "core") == "0"


def test_a_job_that_ends_its_child(make_trials, capfd: pytest.CaptureFixture[str]) -> None:
    trials = make_trials()
    assert ending(trials, "exit 3") == (Ending.CRASH, 3)
    assert ending(trials, "raise because") == (Ending.CRASH, 1)
    assert "ValueError: because" in capfd.readouterr().err
    assert ask(trials, "next") == "next"


def test_a_child_that_does_not_start(make_trials, capfd: pytest.CaptureFixture[str]) -> None:
    trials = make_trials()
    with pytest.raises(RuntimeError, match="trial_child ended with 1 while it started"):
        ask(trials, "pid", b"fail")
    assert "it does not start" in capfd.readouterr().err
    assert trials.pids == []
    assert ask(trials, "next") == "next"


def test_close_ends_all(make_trials) -> None:
    trials = make_trials(max_children=3)
    outcomes = []

    def hang() -> None:
        try:
            outcomes.append(ending(trials, "sleep 600"))
        except RuntimeError as error:  # its child was still about to start
            outcomes.append(str(error))

    threads = [threading.Thread(target=hang) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(trials.pids) == 2)
    ask(trials, "pid")
    pids = trials.pids
    assert len(pids) == 3
    trials.close()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    assert all(o == (Ending.CRASH, -signal.SIGKILL) or "owner has been closed" in o for o in outcomes)
    assert ended(*pids)
    with pytest.raises(RuntimeError, match="its owner has been closed"):
        ask(trials, "pid")
    assert trials.pids == []


def test_children_end_with_their_owner(make_trials) -> None:
    make_trials()  # for the module
    trials = Trials("trial_child", Limits(10.0, 2**30), 1)
    pid = int(ask(trials, "pid"))
    del trials
    gc.collect()
    assert ended(pid)
