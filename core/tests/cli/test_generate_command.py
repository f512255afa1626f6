"""`octavo generate` with a tiny model: where prompts come from, what is printed, exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main

Run = Callable[..., tuple[int, str, str]]
QUICK = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")


@pytest.fixture
def run(tiny_model, capsys, monkeypatch) -> Run:
    """`run(*arguments, stdin=bytes or None)`: exit code, standard output, standard error."""

    def run(*arguments: str, stdin: bytes | None = None, command: str = "generate") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b""), encoding="utf-8"))
        if stdin is None:
            monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        engine = ("--model", str(tiny_model()), "--dtype", "float32", "--cache.num-blocks", "64")
        code = main([command, *engine, "--parallel.num-threads", "1", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


@pytest.fixture
def texts(tiny_model) -> Callable[..., list[str]]:
    """What the API gives for the same prompts."""

    def texts(*prompts: str) -> list[str]:
        llm = LLM(str(tiny_model()), dtype="float32", num_blocks=64, num_threads=1)
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        return [o.outputs[0].text for o in llm.generate(list(prompts), params)]

    return texts


def test_one_prompt_is_printed_with_its_completion(run: Run, texts) -> None:
    (text,) = texts("Hello")
    assert run("Hello", *QUICK) == (0, f"Hello{text}\n", "")
    assert run("Hello", "--no-echo", *QUICK) == (0, f"{text}\n", "")


def test_several_prompts_come_in_order(run: Run, texts) -> None:
    prompts = ["the", "and", "x"]
    wanted = "".join(f"{p}{t}\n" for p, t in zip(prompts, texts(*prompts), strict=True))
    assert run(*prompts, *QUICK) == (0, wanted, "")


def test_prompts_may_come_from_a_file_or_from_standard_input(run: Run, texts, tmp_path: Path) -> None:
    wanted = "".join(f"{p}{t}\n" for p, t in zip(["the", "and\fx"], texts("the", "and\fx"), strict=True))
    content = "\ufeffthe\r\n\n  \nand\fx".encode()
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    assert run("--file", str(file), *QUICK) == (0, wanted, "")
    assert run("--file", "-", *QUICK, stdin=content) == (0, wanted, "")
    assert run(*QUICK, stdin=content) == (0, wanted, "")
    code, out, _ = run("first", "--file", str(file), "--json", *QUICK)
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["first", "the", "and\fx"]


def test_prompts_given_as_arguments_leave_standard_input_alone(run: Run) -> None:
    code, out, _ = run("x", *QUICK, stdin=b"never read\n")
    assert code == 0
    assert "never" not in out


def test_json_lines_hold_the_whole_output(run: Run, texts) -> None:
    code, out, err = run("the", "x", "--json", "--logprobs", "2", *QUICK)
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    for record, prompt, text in zip(records, ["the", "x"], texts("the", "x"), strict=True):
        assert record["prompt"] == prompt
        assert record["finished"] is True
        assert record["num_prompt_tokens"] == 1
        assert "prompt_token_ids" not in record
        (completion,) = record["outputs"]
        assert completion["text"] == text
        assert len(completion["token_ids"]) == 6
        assert completion["finish_reason"] == "length"
        assert [p["token_id"] for p in completion["logprobs"]] == completion["token_ids"]
        assert all(len(p["top"]) == 2 for p in completion["logprobs"])
        assert record["metrics"]["num_cached_tokens"] == 0
        assert record["metrics"]["time_to_first_token"] > 0


def test_sampling_options_arrive(run: Run) -> None:
    code, out, _ = run(
        "x", "--json", "--n", "3", "--seed", "5", "--max-tokens", "4", "--temperature", "2", "--ignore-eos"
    )
    assert code == 0
    record = json.loads(out)
    assert [len(c["token_ids"]) for c in record["outputs"]] == [4, 4, 4]
    again = run("x", "--json", "--n", "3", "--seed", "5", "--max-tokens", "4", "--temperature", "2", "--ignore-eos")[1]
    assert json.loads(again)["outputs"] == record["outputs"]
    code, out, _ = run("x", "--n", "2", "--max-tokens", "2", "--no-echo")
    assert code == 0


def test_a_stop_string_stops(run: Run, texts) -> None:
    (text,) = texts("the")
    code, out, _ = run("the", "--json", "--stop", "never there", "--stop", text[2:4], *QUICK)
    assert code == 0
    (completion,) = json.loads(out)["outputs"]
    assert completion["text"] == text[: text.index(text[2:4])]
    assert completion["finish_reason"] == "stop"
    assert completion["stop_reason"] == text[2:4]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["x", "--max-tokens", "0"], "max_tokens"),
        (["x", "--max-tokens", "-3"], "max_tokens"),
        (["x", "--max-tokens", "many"], "max-tokens"),
        (["x", "--temperature", "nan"], "temperature"),
        (["x", "--temperature", "-1"], "temperature"),
        (["x", "--top-p", "0"], "top_p"),
        (["x", "--top-k", "-2"], "top_k"),
        (["x", "--min-p", "2"], "min_p"),
        (["x", "--n", "0"], "n:"),
        (["x", "--min-tokens", "9", "--max-tokens", "8"], "min_tokens"),
        (["x", "--stop", ""], "stop"),
        (["x", "--logprobs", "1000"], "logprobs"),
        ([""], "prompt"),
        (["ok", ""], "prompt"),
        (["y" * 300], "prompt"),
        (["\udcff"], "prompt"),
        ([], "no prompt"),
        (["--file", "/nowhere/at/all"], "/nowhere/at/all"),
        (["x", "--cache.num-blocks", "1"], "cache.num_blocks"),
        (["x", "--max-model-len", "100000"], "model.max_model_len"),
        (["x", "--attention-backend", "torch"], "torch"),
        (["x", "--drafter", "nobody"], "nobody"),
        (["x", "--colour"], "--colour"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(run: Run, arguments: list[str], field: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("octavo: error: ")
    assert field in line


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\n"])
def test_standard_input_without_a_prompt_is_an_error(run: Run, content: bytes) -> None:
    code, out, err = run(stdin=content)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_bad_options_are_refused_before_a_model_is_looked_for(capsys, monkeypatch) -> None:
    monkeypatch.setattr("octavo.loading.locate.locate", lambda *_: pytest.fail("a model was looked for"))
    assert main(["generate", "x", "--temperature", "nan"]) == 2
    assert main(["chat", "x", "--max-tokens", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_request_that_fails_later_is_exit_code_one(run: Run, monkeypatch) -> None:
    def fail(self) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr("octavo.runner.model_runner.ModelRunner.collect", fail)
    for arguments in (["x"], ["x", "y"], ["x", "--json"]):
        code, _, err = run(*arguments, *QUICK)
        assert code == 1
        assert "octavo: error: the step failed: RuntimeError('the device is on fire')" in err


def test_ctrl_c_ends_it_quietly(run: Run, monkeypatch) -> None:
    def interrupt(self) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.runner.model_runner.ModelRunner.collect", interrupt)
    code, _, err = run("x", *QUICK)
    assert (code, err) == (130, "")


@pytest.mark.slow
def test_a_process_of_its_own_prints_what_its_terminal_can_show(tiny_model) -> None:
    """A tiny random model soon makes characters that ASCII lacks."""
    arguments = ["--model", str(tiny_model()), "--dtype", "float32", "--cache.num-blocks", "64", "--seed", "1"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "generate", "x", "--max-tokens", "60", "--temperature", "5", *arguments],
        capture_output=True,
        env=environment | {"PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"x")
    assert b"?" in done.stdout


def test_what_became_of_drafts_is_told_at_the_end(run: Run, texts, monkeypatch) -> None:
    (text,) = texts("the")
    assert run("the", *QUICK)[2] == "", "nobody drafts, nothing is said"
    from octavo.runner.drafting import NoDrafter

    answer = run_ids(run, "the")
    right = lambda self, rows: [answer[len(r.sequence.output_token_ids) :][: r.max_drafts] for r in rows]  # noqa: E731
    monkeypatch.setattr(NoDrafter, "propose", right)
    code, out, err = run("the", "--speculation.adaptive", "false", "--speculation.num-draft-tokens", "2", *QUICK)
    assert (code, out) == (0, f"the{text}\n")
    # six tokens: one with the prompt, three in the next step, and then one draft before the last
    assert "[drafts: 3 proposed, 3 verified, 3 accepted (100%); 2.00 tokens a step of a sequence]" in err
    assert "[accepted by position: 100% 100%]" in err
    monkeypatch.setattr(NoDrafter, "propose", lambda self, rows: [[2] * r.max_drafts for r in rows])
    code, out, err = run("the", "x", "--json", "--speculation.adaptive", "false", *QUICK)
    assert [json.loads(line)["outputs"][0]["text"] for line in out.splitlines()] == texts("the", "x")
    assert "accepted by position" in err


def run_ids(run: Run, prompt: str) -> list[int]:
    return json.loads(run(prompt, "--json", *QUICK)[1])["outputs"][0]["token_ids"]
