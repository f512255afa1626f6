"""What `benchmarks/compare` works out without running an engine: workloads, faults, ratios, the table."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.plugins import resolve_settings

FOLDER = Path(__file__).parents[1] / "benchmarks" / "compare"


@pytest.fixture(scope="module")
def load() -> Iterator[Any]:
    """Modules of the benchmark by name; they are no package, and are gone again afterwards."""
    loaded: list[str] = []

    def load_module(name: str) -> ModuleType:
        qualified = f"compare_benchmark_{name}"
        if qualified in sys.modules:
            return sys.modules[qualified]
        spec = importlib.util.spec_from_file_location(qualified, next(FOLDER.rglob(f"{name}.py")))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[qualified] = importlib.util.module_from_spec(spec)
        loaded.append(qualified)
        spec.loader.exec_module(module)
        return module

    yield load_module
    for name in loaded:
        del sys.modules[name]


def result(seconds: float = 2.0, outputs: tuple[tuple[int, ...], ...] = ((7, 8), (9,))) -> dict[str, Any]:
    """Of a process that ran W1 and W2, three prompt tokens each."""
    run = {
        "seconds": seconds,
        "first_token_seconds": seconds / 10,
        "decode_tokens_per_second": 50 / seconds,
        "num_input_tokens": 3,
        "num_output_tokens": sum(map(len, outputs)),
        "token_ids": [list(tokens) for tokens in outputs],
    }
    return {"start_seconds": 2 * seconds, "peak_bytes": 3 * 2**20, "workloads": {"W1": run, "W2": run}}


def test_the_workloads_have_the_sizes_that_are_published(load: Any) -> None:
    found = load("scenarios").workloads()
    sizes = {
        name: (len(queries), sum(len(q.prompt_token_ids) for q in queries), sum(q.num_output_tokens for q in queries))
        for name, queries in found.items()
    }
    assert sizes["W1"] == (64, 18_983, 9_469)
    assert sizes["W2"] == (1, 300, 200)
    assert sizes["W3"] == (64, 64 * 1056, 64 * 64)
    assert sizes["W4"][0] == 8
    first_of_w1 = [(len(q.prompt_token_ids), q.num_output_tokens) for q in found["W1"][:8]]
    assert [(len(q.prompt_token_ids), q.num_output_tokens) for q in found["W4"]] == first_of_w1


def test_only_w3_shares_prefixes_and_only_with_itself(load: Any) -> None:
    scenarios = load("scenarios")
    found = scenarios.workloads()
    w3 = [query.prompt_token_ids for query in found["W3"]]
    assert len({ids[:1024] for ids in w3}) == 1
    assert len({ids[1024:1028] for ids in w3}) == 64
    rest = [scenarios.first_request(), *scenarios.warm_up(), *found["W1"], *found["W2"], *found["W4"]]
    beginnings = [query.prompt_token_ids[:8] for query in [*rest, found["W3"][0]]]
    assert len(set(beginnings)) == len(beginnings)


def test_ids_are_in_the_vocabulary_and_a_scale_asks_for_less(load: Any) -> None:
    found = load("scenarios").workloads(vocab_size=1000, scale=0.1)
    assert {token_id for queries in found.values() for q in queries for token_id in q.prompt_token_ids} <= set(
        range(1000)
    )
    assert [len(found[name]) for name in ("W1", "W3", "W4")] == [6, 6, 2]
    assert found["W2"][0].num_output_tokens == 20


def test_a_result_with_other_numbers_of_tokens_than_asked_is_at_fault(load: Any) -> None:
    faults = load("report").faults
    assert faults(result(), {"W1": [2, 1], "W2": [2, 1]}) == []
    assert faults(result(), {"W1": [1, 2], "W2": [2, 1]}) == ["W1 gave 3 of 3 tokens"]
    assert faults(result(), {"W1": [2, 4]}) == ["W1 gave 3 of 6 tokens"]


def test_first_tokens_tell_whether_the_same_model_ran(load: Any) -> None:
    same_first_tokens = load("report").same_first_tokens
    assert same_first_tokens(result(), result(outputs=((7, 1), (9,)))) == (4, 4)
    assert same_first_tokens(result(), result(outputs=((7, 8), (1,)))) == (2, 4)


def test_ratios_pair_rounds_and_are_above_one_where_octavo_is_better(load: Any) -> None:
    report = load("report")
    by_name = {metric.name: metric for metric in report.METRICS}
    ours, theirs = {0: 10.0, 1: 40.0, 2: 90.0, 4: 1.0}, {0: 20.0, 1: 20.0, 2: 30.0, 3: 1.0}
    assert report.ratio(by_name["W1"], ours, theirs) == report.Ratio(2.0, 0.5, 3.0)
    assert report.ratio(by_name["start"], ours, theirs) == report.Ratio(0.5, 1 / 3, 2.0)
    assert report.ratio(by_name["W1"], ours, {9: 1.0}) is None


def test_the_table_names_the_best_peer_and_whoever_could_not_run(load: Any) -> None:
    report = load("report")
    octavo, slow, fast, absent = (
        report.Contestant(n, n.title(), "float32") for n in ("octavo", "slow", "fast", "absent")
    )
    for contestant, seconds in ((octavo, 1.0), (slow, 4.0), (fast, 2.0)):
        contestant.results = {0: result(seconds), 1: result(seconds)}
    absent.unavailable = "no such instruction"
    lines = report.table(octavo, [slow, fast, absent]).splitlines()
    assert lines[0] == "| median | Octavo float32 | Slow float32 | Fast float32 |"
    assert "| W2: 1 request, first token (ms) | 100 | 400 | 200 |" in lines
    assert "| W1: 64 mixed requests, in + out (tokens/s) | 6.00 | 1.50 | 3.00 |" in lines
    assert "| Process start to first token | 4.00 (4.00–4.00) | **2.00** (2.00–2.00) |" in lines
    assert not [line for line in lines if "W3" in line]
    assert lines[-1] == "- Absent float32: unavailable: no such instruction"
    found = report.summary(octavo, [slow, fast, absent])
    assert {name: entry["best_peer"] for name, entry in found.items()}["W2 decode"] == "fast"


def test_a_timeline_takes_tokens_apart_by_request(load: Any) -> None:
    protocol = load("protocol")

    class Scripted:
        prepared: Any = None

        def prepare(self, requests: Any) -> None:
            self.prepared = requests

        def run(self, requests: Any, record: Any) -> None:
            assert self.prepared is requests
            record(1, ())
            for index in (0, 1, 0):
                record(index, (index + 5,) * (index + 1))

        def settings(self) -> dict[str, Any]:
            return {}

    requests = [{"prompt_token_ids": [1, 2], "num_output_tokens": 2}] * 2
    found = protocol.measure(Scripted(), requests)
    assert found["token_ids"] == [[5, 5], [6, 6]]
    assert (found["num_input_tokens"], found["num_output_tokens"]) == (4, 4)
    assert 0 < found["first_token_seconds"] < found["seconds"]
    json.dumps(found)


def test_a_job_runs_in_a_process_of_its_own_and_says_why_it_failed(load: Any, tmp_path: Path) -> None:
    processes = load("processes")

    def run(statement: str, limit_seconds: float = 60) -> dict[str, Any]:
        script = f"import json, sys; job = json.load(open(sys.argv[1])); {statement}"
        return processes.run_job([sys.executable, "-c", script], {"x": 3}, tmp_path, {"EXTRA": "7"}, limit_seconds)

    said = "{**job, 'extra': os.environ['EXTRA'], 'peak_resident_bytes': 2**50}"
    found = run(f"import os; json.dump({said}, open(sys.argv[2], 'w'))")
    assert (found["x"], found["extra"], found["peak_bytes"]) == (3, "7", 2**50)
    assert found["spawned"] > 0
    with pytest.raises(processes.RunError, match=r"no such instruction \(exit status 4\)"):
        run("print('no such instruction', flush=True); import os; os._exit(4)")
    with pytest.raises(processes.RunError, match="SIGILL"):
        run("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(processes.RunError, match=r"exit status 0"):
        run("pass")
    with pytest.raises(processes.RunError, match="not done after"):
        run("import time; time.sleep(60)", limit_seconds=0.2)


def test_every_precision_is_a_configuration_of_octavo(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "protocol", load("protocol"))
    for precision in load("engines").OCTAVO.weights:
        settings = load("run_octavo").settings_of(precision)
        resolve_settings(env={}, command_line=settings)
