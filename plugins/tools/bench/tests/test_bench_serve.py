"""`octavo bench serve` from end to end, against a server that misbehaves on demand."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.cli import main
from octavo.errors import ConfigError
from octavo_bench.serve.options import key_of

Run = Callable[..., tuple[int, str, str]]
Measure = Callable[..., tuple[int, dict[str, Any], str]]
SMALL = ("--num-prompts", "6", "--input-len", "4:9", "--output-len", "2:5", "--num-warmups", "0")
ROUNDING = 1e-9


@pytest.fixture
def run(fake_server, capsys, monkeypatch) -> Run:
    for name in list(os.environ):
        if name.startswith(("OCTAVO_", "OPENAI_")):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str, str]:
        url = () if "--base-url" in arguments else ("--base-url", fake_server.url)
        code = main(["bench", "serve", *url, *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


@pytest.fixture
def measure(run: Run) -> Measure:
    """Exit code, JSON, and the lines for people."""

    def measure(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code, out, err = run(*SMALL, "--json", "-", *arguments)
        return code, json.loads(out), err

    return measure


def test_what_is_sent_and_what_is_told(run: Run, fake_server, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    code, out, err = run("--workload", "w4", "--output-len", "3:6", "--seed", "2", "--json", str(file))
    assert (code, err) == (0, "")
    warmup, *bodies = fake_server.bodies
    assert set(fake_server.paths) == {"/v1/completions"}
    assert len(bodies) == 8
    for body in bodies:
        assert body["model"] == "fake"
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
        assert body["temperature"] == 0
        assert 32 <= len(body["prompt"]) <= 512
        assert 3 <= body["max_tokens"] <= 6
        assert "ignore_eos" not in body
    assert warmup["prompt"] not in [body["prompt"] for body in bodies], "the measured prompts are new to the server"
    record = json.loads(file.read_text())
    assert (record["format"], record["command"], record["interrupted"]) == (1, "serve", False)
    assert set(record["versions"]) == {"octavo", "octavo-bench", "aiohttp"}
    setting = record["setting"]
    assert (setting["model"], setting["dataset"], setting["prompt_format"], setting["seed"]) == (
        "fake",
        "random",
        "ids",
        2,
    )
    assert (setting["request_rate"], setting["max_concurrency"], setting["num_warmups"]) == (None, None, 1)
    results, requests = record["results"], record["requests"]
    num_in, num_out = sum(len(b["prompt"]) for b in bodies), sum(b["max_tokens"] for b in bodies)
    assert (results["num_input_tokens"], results["num_output_tokens"], results["num_cached_tokens"]) == (
        num_in,
        num_out,
        8,
    )
    assert (results["num_requests"], results["num_completed"], results["failures"]) == (8, 8, {})
    assert results["output_tokens_per_second"] == pytest.approx(num_out / results["seconds"])
    assert results["requests_per_second"] == pytest.approx(8 / results["seconds"])
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert set(results[name]) == {"mean", "median", "p90", "p99", "min", "max"}
    for one in requests:
        assert one["num_output_tokens"] == one["max_tokens"] == one["num_text_chunks"]
        assert 0 <= one["due"] <= one["sent"] < one["end"] <= results["seconds"]
        assert 0 < one["ttft"] <= one["e2e"] == pytest.approx(one["end"] - one["sent"])
        assert one["tpot"] == pytest.approx((one["e2e"] - one["ttft"]) / (one["num_output_tokens"] - 1))
        assert len(one["itl"]) == one["num_text_chunks"] - 1
        assert (one["finish_reason"], one["failure"]) == ("length", None)
    assert results["e2e"]["max"] == max(one["e2e"] for one in requests)
    assert f"8 requests to {fake_server.url} (completions), model fake" in out
    assert f"\noutput          {num_out} tokens; " in out
    for label in ("completed", "input", "client", "first text (TTFT)", "per token (TPOT)", "end to end (E2E)"):
        assert f"\n{label}" in out
    assert "failed" not in out
    assert "chunks carry" not in out


def test_tokens_are_what_usage_says_and_not_chunks(measure: Measure, fake_server) -> None:
    """Chunks hold several tokens each, and their text has another number of words."""
    fake_server.tokens_per_chunk = 2
    code, record, err = measure("--output-len", "8")
    assert code == 0
    results = record["results"]
    assert results["num_output_tokens"] == 6 * 8
    assert results["tokens_per_chunk"] == 2
    for one in record["requests"]:
        assert (one["num_output_tokens"], one["num_text_chunks"], len(one["itl"])) == (8, 4, 3)
        assert one["tpot"] == pytest.approx((one["e2e"] - one["ttft"]) / 7)
    assert "chunks carry 2.00 tokens on average" in err


def test_usage_may_stand_in_chunks_with_text(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: "usage_with_text"
    code, record, _ = measure()
    assert code == 0
    told = sorted(one["num_output_tokens"] for one in record["requests"])
    assert told == sorted(body["max_tokens"] for body in fake_server.bodies)


def test_without_usage_tokens_are_unknown(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: "no_usage"
    code, record, err = measure("--goodput", "tpot:100000")
    results = record["results"]
    assert (code, results["num_completed"], results["num_without_usage"]) == (0, 6, 6)
    assert results["num_output_tokens"] is results["output_tokens_per_second"] is results["tpot"] is None
    assert results["ttft"] is not None
    assert results["num_good"] == 0, "a time that is not known meets no goal"
    assert "no usage for 6 requests" in err
    assert "\noutput          unknown" in err


def test_an_answer_without_text_is_one(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: "no_text"
    code, record, err = measure()
    results = record["results"]
    assert (code, results["num_completed"], results["num_without_text"]) == (0, 6, 6)
    assert results["ttft"] is results["tpot"] is results["itl"] is None
    assert results["num_output_tokens"] == sum(body["max_tokens"] for body in fake_server.bodies)
    assert "no text came for 6 requests" in err


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ("http_503", "HTTP 503", "too many requests"),
        ("hang_up", "connection", "ServerDisconnectedError"),
        ("error_event", "error event", "the engine died"),
        ("error_line", "error event", "out of slots"),
        ("ends_early", "cut stream", "ended after 1 events of text/event-stream without data: [DONE]"),
        ("cut", "cut stream", ""),
        ("garbage", "malformed event", "{oops}"),
        ("aborted", "finish reason abort", "gave the request up"),
    ],
)
def test_failures_are_counted_by_kind(measure: Measure, fake_server, behaviour: str, kind: str, message: str) -> None:
    fake_server.behaviours = lambda index: behaviour if index in (1, 3) else "answer"
    code, record, err = measure("--max-concurrency", "1")
    results = record["results"]
    assert code == 1
    assert (results["num_completed"], results["num_failed"], results["failures"]) == (4, 2, {kind: 2})
    failed = [one["failure"] for one in record["requests"]]
    assert [f and f["kind"] for f in failed] == [None, kind, None, kind, None, None]
    assert message in failed[1]["message"]
    assert f"\nfailed          2 of kind {kind}, the first: " in err
    done = [body["max_tokens"] for i, body in enumerate(fake_server.bodies) if i not in (1, 3)]
    assert results["num_output_tokens"] == sum(done), "tokens of failed requests do not count"


def test_a_server_that_never_answers_one_of_ten_does_not_hang_the_run(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: {4: "nothing", 14: "never"}.get(index, "answer")
    code, record, err = measure("--num-prompts", "20", "--timeout", "3")
    assert (code, record["results"]["num_completed"]) == (1, 18)
    assert record["results"]["failures"] == {"timeout": 2}
    assert "no whole answer within 3 s" in err


def test_a_server_that_leaves_answers_open_after_their_end_is_no_failure(
    measure: Measure, fake_server, monkeypatch
) -> None:
    async def leave_open(request, body) -> None:
        await fake_server.answer(request, body)
        await fake_server.nothing(request, body)

    fake_server.leave_open = leave_open
    fake_server.behaviours = lambda index: "leave_open"
    monkeypatch.setattr("octavo_bench.serve.client._DRAIN", 0.05)
    code, record, _ = measure()
    assert (code, record["results"]["num_completed"]) == (0, 6)


@pytest.mark.parametrize("cap", [1, 4])
def test_never_more_in_flight_than_may_be(measure: Measure, fake_server, cap: int) -> None:
    fake_server.behaviours = lambda index: "linger"
    code, record, _ = measure("--num-prompts", "12", "--max-concurrency", str(cap), "--request-rate", "100000")
    assert code == 0
    assert fake_server.peak <= cap
    assert record["results"]["peak_concurrency"] == cap
    assert record["client"]["held_back"]["max"] > 0.01, "a request waits for an answer that takes 10 ms"
    assert all(one["due"] >= one["arrival"] - ROUNDING for one in record["requests"])


def test_all_at_once_are_all_in_flight(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: "together"
    fake_server.wanted_together = 12
    _, record, err = measure("--num-prompts", "12")
    assert fake_server.peak == record["results"]["peak_concurrency"] == 12
    assert record["client"]["held_back"] is None
    client = record["client"]
    assert client["cpu_share"] > 0
    assert set(client["sent_late"]) == {"mean", "median", "p90", "p99", "min", "max"}
    assert client["sent_late"]["max"] == max(one["sent"] - one["due"] for one in record["requests"])
    assert "requests sent late by" in err


def test_requests_arrive_on_schedule(measure: Measure) -> None:
    _, record, err = measure("--request-rate", "50", "--burstiness", "0.5", "--percentiles", "25,99.9", "--seed", "1")
    arrivals = [one["arrival"] for one in record["requests"]]
    assert arrivals[-1] == pytest.approx(5 / 50)
    assert all(one["sent"] >= one["arrival"] - ROUNDING for one in record["requests"])
    assert "50 requests/s, burstiness 0.5" in err
    assert re.search(r"mean +p25 +p99\.9\n", err)
    assert set(record["results"]["e2e"]) == {"mean", "p25", "p99.9", "min", "max"}


def test_a_chat_gets_text(measure: Measure, fake_server) -> None:
    code, record, _ = measure(
        "--endpoint", "chat", "--dataset", "shared-prefix", "--prefix-len", "7", "--input-len", "3"
    )
    assert code == 0
    assert set(fake_server.paths) == {"/v1/chat/completions"}
    texts = [body["messages"][0]["content"] for body in fake_server.bodies]
    assert [body["messages"][0]["role"] for body in fake_server.bodies] == ["user"] * 6
    assert {len(text.split()) for text in texts} == {10}
    assert len({tuple(text.split()[:7]) for text in texts}) == 1
    assert len(set(texts)) == 6
    assert record["results"]["num_input_tokens"] == 60
    assert record["setting"]["prompt_format"] == "text"
    # the chunk that only names the role is no text
    assert all(one["num_text_chunks"] == one["num_output_tokens"] for one in record["requests"])


def test_fields_of_requests(measure: Measure, fake_server) -> None:
    arguments = (
        "--ignore-eos",
        "--temperature",
        "0.7",
        "--model",
        "mine",
        "--extra-body",
        '{"top_k": 3, "seed": null}',
    )
    measure(*arguments, "--prompt-format", "text", "--api-key", "sk-1")
    body = fake_server.bodies[0]
    assert (body["ignore_eos"], body["temperature"], body["model"], body["top_k"], body["seed"]) == (
        True,
        0.7,
        "mine",
        3,
        None,
    )
    assert isinstance(body["prompt"], str)
    assert fake_server.headers[0]["Authorization"] == "Bearer sk-1"


def test_the_key_stays_out_of_what_is_told(run: Run, fake_server, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code, out, err = run(*SMALL, "--json", "-")
    assert code == 0
    assert fake_server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in out + err


def test_the_key_of_the_command_line_comes_first_then_octavos_own() -> None:
    both = {"OPENAI_API_KEY": "b", "OCTAVO_API_KEY": "a"}
    given, none = argparse.Namespace(api_key="c"), argparse.Namespace(api_key=None)
    assert [key_of(given, both), key_of(none, both)] == ["c", "a"]
    assert [key_of(none, {"OPENAI_API_KEY": "b", "OCTAVO_API_KEY": ""}), key_of(none, {})] == ["b", None]
    assert key_of(argparse.Namespace(api_key=""), both) is None, "none is wanted"
    with pytest.raises(ConfigError, match="OPENAI_API_KEY: a key is printable"):
        key_of(none, {"OPENAI_API_KEY": "b\n"})


@pytest.mark.parametrize(
    ("meta", "option", "most"),
    [(None, (), 48_999), ({"n_vocab": 300}, (), 299), ({"n_vocab": 300}, ("--vocab-size", "90"), 89)],
)
def test_random_ids_are_of_the_vocabulary(measure: Measure, fake_server, meta, option, most: int) -> None:
    fake_server.models = {"data": [{"id": "fake", "meta": meta}]}
    measure("--input-len", "400", *option)
    ids = {i for body in fake_server.bodies for i in body["prompt"]}
    assert most * 0.9 < max(ids) <= most


def test_requests_of_a_file(measure: Measure, fake_server, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "one two three", "max_tokens": 7}\n{"prompt_token_ids": [7, 8]}\n')
    arguments = ("--dataset-path", str(file), "--num-prompts", "2", "--output-len", "4", "--num-warmups", "3")
    # the lengths of SMALL do not suit a file
    code = main(["bench", "serve", "--base-url", fake_server.url, *arguments])
    assert code == 0
    prompts = [(body["prompt"], body["max_tokens"]) for body in fake_server.bodies]
    assert sorted(map(str, prompts)) == sorted(map(str, [("one two three", 7)] * 3 + [([7, 8], 4)] * 2))


def test_messages_of_a_file_go_to_the_chat(run: Run, fake_server, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    file.write_text(json.dumps({"messages": messages}) + '\n{"prompt": "z"}\n')
    assert run("--dataset-path", str(file), "--endpoint", "chat", "--num-warmups", "0")[0] == 0
    both = [body["messages"] for body in fake_server.bodies]
    assert sorted(both, key=len) == [[{"role": "user", "content": "z"}], messages]
    code, _, err = run("--dataset-path", str(file))
    assert (code, "line 1: messages need --endpoint chat" in err) == (2, True)
    file.write_text('{"prompt_token_ids": [3]}')
    assert (
        "line 1: prompt_token_ids need --endpoint completions"
        in run("--dataset-path", str(file), "--endpoint", "chat")[2]
    )


def test_goodput(measure: Measure, fake_server) -> None:
    fake_server.behaviours = lambda index: "error_event" if index == 2 else "answer"
    _, record, err = measure("--goodput", "ttft:100000", "tpot:90000", "e2el:80000")
    results = record["results"]
    assert results["num_good"] == results["num_completed"] == 5
    assert results["goodput"] == pytest.approx(5 / results["seconds"])
    assert "5 with at most ttft 100,000, tpot 90,000, e2el 80,000 ms" in err
    _, record, _ = measure("--goodput", "ttft:0.00001")
    assert record["results"]["num_good"] == record["results"]["goodput"] == 0


def test_a_plot_shows_each_request(measure: Measure, fake_server, tmp_path: Path) -> None:
    fake_server.models = {"data": [{"id": "<&>"}]}
    fake_server.behaviours = lambda index: "error_event" if index == 2 else "answer"
    file = tmp_path / "plot.svg"
    measure("--plot", str(file))
    picture = ElementTree.fromstring(file.read_text())
    spaces = {"svg": "http://www.w3.org/2000/svg"}
    texts = [text.text or "" for text in picture.findall("svg:text", spaces)]
    assert any("model <&>" in text for text in texts)
    assert "6 requests over time, s" in texts
    bars = {path.get("stroke"): path.get("d", "").count("M") for path in picture.findall("svg:path", spaces)}
    assert (bars["#b8c4cc"], bars["#1f6f8b"], bars["#b5403a"]) == (5, 5, 1)
    assert len(picture.findall("svg:polyline", spaces)) == 4


def test_ctrl_c_leaves_a_report_of_what_was_done(fake_server, tmp_path: Path) -> None:
    fake_server.behaviours = lambda index: "answer" if index < 3 else "never"
    fake_server.wanted_silent = 2
    file = tmp_path / "result.json"
    arguments = ("--num-prompts", "8", "--max-concurrency", "2", "--plot", str(tmp_path / "plot.svg"))
    process = _start(fake_server.url, *SMALL, *arguments, "--json", str(file))
    assert fake_server.silent.wait(60)  # two wait in vain, so that three must have ended
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert re.search(r"interrupted +after .*: 2 were under way, 3 not sent\n", out)
    record = json.loads(file.read_text())
    results = record["results"]
    assert record["interrupted"]
    assert (results["num_completed"], results["num_failed"]) == (3, 0)
    assert (results["num_unfinished"], results["num_unsent"]) == (2, 3)
    assert results["num_output_tokens"] == sum(body["max_tokens"] for body in fake_server.bodies[:3])
    # those under way may have had a first token by then, or not
    assert 3 <= sum(one["ttft"] is not None for one in record["requests"]) <= 5
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


def test_ctrl_c_before_anything_was_measured(fake_server) -> None:
    fake_server.behaviours = lambda index: "nothing"
    process = _start(fake_server.url, *SMALL, "--num-warmups", "1")
    assert fake_server.silent.wait(60)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def _start(url: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "octavo", "bench", "serve", "--base-url", url, *arguments]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAVO_", "OPENAI_"))}
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_refused_connection_is_one_line(run: Run) -> None:
    with socket.socket() as taken:  # bound and not listening, so that nobody answers
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run("--base-url", url)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"octavo: error: no server answers at {url} (")
    assert "octavo serve" in line


def test_a_failed_warm_up_is_one_line(run: Run, fake_server) -> None:
    fake_server.behaviours = lambda index: "http_503"
    code, out, err = run("--num-prompts", "3", "--num-warmups", "2")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "a request to warm up failed (HTTP 503): too many requests" in line
    assert len(fake_server.bodies) == 2


def test_models_that_cannot_be_listed_need_a_name(run: Run, fake_server) -> None:
    for models in (404, {"data": []}, {"models": 3}):
        fake_server.models = models
        code, _, err = run(*SMALL)
        assert code == 2
        assert err.startswith(f"octavo: error: {fake_server.url}/v1/models ")
        assert "give --model NAME" in err
        assert run(*SMALL, "--model", "mine")[0] == 0
        assert fake_server.bodies[-1]["model"] == "mine"


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "give --api-key KEY"), (503, "try again when the server is ready")]
)
def test_a_server_that_is_not_to_be_asked_yet_says_why(run: Run, fake_server, status: int, advice: str) -> None:
    fake_server.models = status
    code, _, err = run(*SMALL)
    assert (code, err.rstrip().endswith(f"(HTTP {status}: no models for you); {advice}")) == (2, True)


def test_a_url_may_end_like_that_of_a_client_library(run: Run, fake_server) -> None:
    assert run(*SMALL, "--base-url", f"{fake_server.url}/v1/")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts: '0' is not a whole number of at least 1"),
        (["--base-url", "localhost:8000"], "is not like http://127.0.0.1:8000"),
        (["--base-url", "http://h:99999"], "is not like http://127.0.0.1:8000"),
        (["--base-url", f"http://{'h' * 64}"], "is not like http://127.0.0.1:8000"),
        (["--base-url", "http://me:secret@h"], "is not like http://127.0.0.1:8000"),
        (["--request-rate", "0"], "--request-rate: '0' is not a number above 0, or inf"),
        (["--request-rate", "nan"], "--request-rate"),
        (["--request-rate", "5", "--burstiness", "0"], "--burstiness"),
        (["--burstiness", "0.5"], "give a --request-rate"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--timeout", "inf"], "--timeout"),
        (["--temperature", "-1"], "--temperature"),
        (["--goodput", "itl:3"], "'itl:3' is not like ttft:500; goals, in ms: ttft, tpot, e2el"),
        (["--goodput", "ttft:0"], "--goodput"),
        (["--percentiles", "50,101"], "--percentiles"),
        (["--extra-body", "[1]"], "is not a JSON object"),
        (["--extra-body", '{"stream": false}'], "stream: the measurement needs"),
        (["--endpoint", "chat", "--prompt-format", "ids"], "a chat takes text"),
        (["--dataset-path", "f", "--prompt-format", "ids"], "--prompt-format: the prompts of a file"),
        (["--dataset-path", "/nowhere/f"], "--dataset-path: cannot read"),
        (["--workload", "w9"], "w1, w2, w3, w4"),
        (["--api-key", "a\nb"], "--api-key: a key is printable ASCII"),
        (["--json", "/nowhere/at/all.json"], "--json: cannot write '/nowhere/at/all.json'"),
        (["--plot", "/nowhere/at/all.svg"], "--plot: cannot write"),
        (["--num-prmpts", "3"], "did you mean '--num-prompts'?"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_sent(
    run: Run, fake_server, arguments: list[str], message: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("octavo: error: ")
    assert message in line
    assert fake_server.bodies == []


def test_a_workload_of_one_request_suits_a_server(run: Run, fake_server) -> None:
    assert run("--workload", "w2", "--num-warmups", "0")[0] == 0
    assert [(len(body["prompt"]), body["max_tokens"]) for body in fake_server.bodies] == [(300, 200)]


def test_help_needs_neither_torch_nor_a_client() -> None:
    code = (
        "import sys; from octavo.cli import main; main(['bench', 'serve', '--help']); "
        "assert not {'torch', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--request-rate" in done.stdout
