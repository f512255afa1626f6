"""`octavo bench` from end to end with a tiny model: what is printed, the JSON, which options are refused and how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.cli import main
from octavo_bench import measurement
from octavo_bench.roofline import Machine

Run = Callable[..., tuple[int, str, str]]
THROUGHPUT = ("throughput", "--num-prompts", "3", "--input-len", "4:20", "--output-len", "2:6")
LATENCY = ("latency", "--batch-size", "2", "--input-len", "9", "--output-len", "5", "--num-iters", "3")
NUMBERS = {"median", "min", "max", "p90", "p99", "values"}


@pytest.fixture
def machines(monkeypatch) -> list[Machine]:
    """What measuring the machine gives, one after the other."""
    given = [Machine(2e9, 3e9), Machine(1e9, 4e9)]
    left = list(given)
    monkeypatch.setattr(measurement, "measure_machine", lambda dtype, device: left.pop(0))
    return left


@pytest.fixture
def run(tiny_model, capsys, monkeypatch) -> Run:
    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str, str]:
        engine = ("--model", str(tiny_model()), "--dtype", "float32", "--cache.num-blocks", "64")
        code = main(["bench", *arguments, *engine, "--parallel.num-threads", "1"])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


def test_throughput(run: Run, machines: list[Machine], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    code, out, err = run(*THROUGHPUT, "--repeats", "2", "--seed", "5", "--json", str(file))
    assert (code, err) == (0, "")
    assert machines == [], "the machine was measured before and after"
    record = json.loads(file.read_text())
    assert (record["format"], record["command"], record["num_warmups"]) == (1, "throughput", 1)
    workload = record["workload"]
    assert {k: workload[k] for k in ("dataset", "seed", "input_len", "output_len", "prefix_len", "num_requests")} == {
        "dataset": "random",
        "seed": 5,
        "input_len": "4:20",
        "output_len": "2:6",
        "prefix_len": 0,
        "num_requests": 3,
    }
    num_in, num_out = workload["num_input_tokens"], workload["num_output_tokens"]
    assert 12 <= num_in <= 60
    assert 6 <= num_out <= 18
    assert (record["machine"]["bytes_per_second"], record["machine"]["operations_per_second"]) == (2e9, 4e9)
    assert record["machine"]["num_threads"] == 1
    assert record["engine"]["model"].endswith("0")
    assert set(record["versions"]) == {"octavo", "octavo-bench", "torch"}
    assert len(record["runs"]) == 2
    for one in record["runs"]:
        assert one["num_scheduled_tokens"] == num_in + num_out - 3
        assert one["num_output_tokens"] == num_out
        assert (one["num_cached_tokens"], one["num_preemptions"], one["num_draft_tokens"]) == (0, 0, 0)
        assert 0 < one["seconds_in_steps"] < one["seconds"]
        assert one["limit"]["seconds"] >= one["limit"]["num_bytes"] / 2e9
    results = record["results"]
    assert all(set(spread) == NUMBERS for spread in results.values())
    seconds = [one["seconds"] for one in record["runs"]]
    assert results["seconds"]["values"] == seconds
    assert results["requests_per_second"]["values"] == [3 / s for s in seconds]
    assert results["input_tokens_per_second"]["values"] == [num_in / s for s in seconds]
    assert results["output_tokens_per_second"]["values"] == [num_out / s for s in seconds]
    assert results["total_tokens_per_second"]["values"] == [(num_in + num_out) / s for s in seconds]
    ratios = [one["limit"]["seconds"] / one["seconds"] for one in record["runs"]]
    assert record["roofline"]["ratio"] == pytest.approx(sum(ratios) / 2)
    assert record["roofline"]["dtype"] == "float32"
    assert f"3 requests at once (random, seed 5): {num_in} tokens in, {num_out} out" in out
    assert "2.000 GB/s and 4.000 Gop/s in float32, measured; reached " in out
    for label in ("steps", "time", "requests", "input", "output", "input + output", "roofline"):
        assert f"\n{label:<16}" in out


def test_latency(run: Run, machines: list[Machine]) -> None:
    code, out, err = run(*LATENCY, "--num-iters-warmup", "1", "--output-json", "-")
    assert code == 0
    record = json.loads(out)
    assert (record["command"], record["num_warmups"], len(record["runs"])) == ("latency", 1, 3)
    results = record["results"]
    assert set(results) == {
        "seconds",
        "first_token_seconds",
        "seconds_per_output_token",
        "decode_tokens_per_second",
        "decode_ratio",
    }
    assert all(set(spread) == NUMBERS and len(spread["values"]) == 3 for spread in results.values())
    for i in range(3):
        total, first, each, rate = (spread["values"][i] for spread in list(results.values())[:4])
        assert 0 < first < total
        # after the first token come four more of each of the two requests
        assert rate == pytest.approx(2 * 4 / (total - first))
        assert 0 < each <= (total - first) / 4 * 1.001
    assert [one["num_steps"] for one in record["runs"]] == [5, 5, 5]
    for label in ("end to end", "first token", "per token", "decode", "decode roofline", "roofline"):
        assert f"\n{label:<16}" in err
    assert "p99" in err


def test_outputs_of_one_token_have_no_decode(run: Run) -> None:
    code, out, _ = run("latency", "--input-len", "9", "--output-len", "1", "--num-iters", "1", "--no-roofline")
    assert code == 0
    assert "none: one token a request" in out
    assert "roofline" not in out
    assert "1 request at once" in out


def test_a_shared_prefix_comes_from_the_cache(run: Run) -> None:
    arguments = (
        "throughput",
        "--dataset",
        "shared-prefix",
        "--prefix-len",
        "32",
        "--input-len",
        "3",
        "--num-prompts",
        "4",
    )
    arguments += (
        "--output-len",
        "2",
        "--no-roofline",
        "--repeats",
        "2",
        "--json",
        "-",
        "--scheduler.max-num-seqs",
        "1",
    )
    code, out, err = run(*arguments)
    assert code == 0
    record = json.loads(out)
    assert record["roofline"] is None
    assert record["machine"]["bytes_per_second"] is None
    assert [one["limit"] for one in record["runs"]] == [None, None]
    assert record["workload"]["num_input_tokens"] == 4 * 35
    # the first request of each run fills the cache anew
    assert [one["num_cached_tokens"] for one in record["runs"]] == [3 * 32, 3 * 32]
    assert "32 of each prompt's shared" in err
    assert "96 prompt tokens from the prefix cache" in err


def test_requests_of_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "the and"}\n{"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}\n')
    code, out, _ = run(
        "throughput", "--dataset-path", str(file), "--output-len", "5", "--no-roofline", "--repeats", "1", "--json", "-"
    )
    assert code == 0
    workload = json.loads(out)["workload"]
    assert (workload["dataset"], workload["num_requests"], workload["num_output_tokens"]) == ("jsonl", 2, 8)


def test_requests_may_end_early_only_if_asked(run: Run, monkeypatch) -> None:
    monkeypatch.setattr("octavo.engine.build.eos_token_ids", lambda *_: frozenset(range(1000)))
    arguments = (*THROUGHPUT, "--repeats", "1", "--no-roofline", "--json", "-", "--warmup", "0")
    assert json.loads(run(*arguments)[1])["workload"]["num_output_tokens"] > 3
    assert json.loads(run(*arguments, "--no-ignore-eos")[1])["workload"]["num_output_tokens"] == 3


def test_drafts_are_reported(run: Run, monkeypatch) -> None:
    from octavo.runner.drafting import NoDrafter

    monkeypatch.setattr(NoDrafter, "propose", lambda self, rows: [[2] * min(2, r.max_drafts) for r in rows])
    arguments = ("--repeats", "1", "--no-roofline", "--json", "-", "--speculation.adaptive=false")
    code, out, err = run("throughput", "--num-prompts", "2", "--input-len", "9", "--output-len", "4", *arguments)
    assert code == 0
    (one,) = json.loads(out)["runs"]
    assert one["num_draft_tokens"] > one["num_accepted_tokens"]
    assert one["num_scheduled_tokens"] == 2 * (9 + 3) + one["num_draft_tokens"] - one["num_accepted_tokens"]
    assert f"{one['num_draft_tokens']} drafts verified, {one['num_accepted_tokens']} accepted" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["throughput", "--num-prompts", "0"], "--num-prompts: '0' is not a whole number of at least 1"),
        (["throughput", "--num-prompts", "x"], "--num-prompts"),
        (["throughput", "--input-len", "9:3"], "the lower bound comes first, 3:9"),
        (["throughput", "--input-len", "3:"], "--input-len"),
        (["throughput", "--output-len", "0"], "--output-len"),
        (["throughput", "--repeats", "0"], "--repeats"),
        (["throughput", "--warmup", "-1"], "--warmup: '-1' is not a whole number of at least 0"),
        (["throughput", "--dataset", "sharegpt"], "random"),
        (["throughput", "--workload", "w9"], "no workload is called 'w9'; there is: w1, w2, w3, w4"),
        (["throughput", "--workload", "w2"], "octavo bench latency --workload w2"),
        (["latency", "--workload", "w1"], "octavo bench throughput --workload w1"),
        (["throughput", "--workload", "w1", "--dataset", "random"], "leave out one of the two"),
        (["throughput", "--dataset", "jsonl"], "--dataset-path FILE and --dataset jsonl go together"),
        (["throughput", "--dataset", "random", "--dataset-path", "f"], "go together; the dataset is random"),
        (["throughput", "--dataset-path", "f", "--input-len", "3"], "--input-len: the prompts of a file"),
        (["throughput", "--prefix-len", "3"], "--prefix-len: with --dataset shared-prefix"),
        (["throughput", "--dataset-path", "/nowhere"], "--dataset-path: cannot read '/nowhere'"),
        (["throughput", "--temperature", "-1"], "temperature"),
        (["throughput", "--cache.block-size", "0"], "cache.block_size"),
        (["throughput", "--num-prmpts", "3"], "did you mean '--num-prompts'?"),
        (["latency", "--num-prompts", "3"], "unknown option --num-prompts"),
        (["latency", "--batch-size", "0"], "--batch-size"),
        (["latency", "--num-iters", "0"], "--num-iters"),
        (["latency", "--input-len", "250", "--output-len", "7"], "250 tokens in"),
        (["throughput", "--workload", "w3"], "1056 tokens in (--prefix-len and --input-len) and 64 out (--output-len)"),
        (["latncy"], "did you mean 'bench latency'?"),
        ([], "takes one more word"),
    ],
)
def test_wrong_options_are_one_line_and_exit_with_2(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("octavo: error: ")
    assert message in line


def test_a_request_that_is_too_long_is_told_the_limit(run: Run) -> None:
    line = run("latency", "--input-len", "250", "--output-len", "7")[2]
    assert "make 257, and a sequence has at most 256 tokens" in line
    assert "raise --max-model-len" in line
    assert run("latency", "--input-len", "250", "--output-len", "6", "--num-iters", "1", "--no-roofline")[0] == 0


def test_a_failed_request_is_an_error_and_no_number(run: Run, monkeypatch) -> None:
    def fail(self) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr("octavo.runner.model_runner.ModelRunner.collect", fail)
    code, out, err = run(*THROUGHPUT, "--no-roofline")
    assert (code, out) == (2, "")
    assert "nothing was measured, for a request failed: the step failed" in err


def test_a_json_file_that_cannot_be_written_is_told(run: Run) -> None:
    code, _, err = run(*THROUGHPUT, "--no-roofline", "--repeats", "1", "--json", "/nowhere/at/all.json")
    assert code == 2
    assert "--json: cannot write '/nowhere/at/all.json'" in err


def test_bad_options_are_refused_before_a_model_is_loaded(run: Run, monkeypatch) -> None:
    monkeypatch.setattr("octavo.loading.locate.locate", lambda *_: pytest.fail("a model was looked for"))
    assert run("throughput", "--temperature", "-1")[0] == 2
    assert run("throughput", "--dataset", "jsonl")[0] == 2


@pytest.mark.parametrize(
    "words", [["bench", "--help"], ["bench", "latency", "--help"], ["bench", "throughput", "--help"]]
)
def test_help(words: list[str], capsys) -> None:
    assert main(words) == 0
    told = capsys.readouterr().out
    assert words[1] in told or "bench latency" in told
    if "throughput" in words:
        assert "w1, w3, w4" in " ".join(told.split())


def test_help_needs_no_torch() -> None:
    code = "import sys; from octavo.cli import main; main(['bench', '--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
