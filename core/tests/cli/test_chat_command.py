"""`octavo chat` with a tiny model: one message, a conversation through a pipe, and what goes wrong in between."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main

Run = Callable[..., tuple[int, str, str]]
SPEED = re.compile(r"\[\d+ tokens, \d+\.\d tokens/s, first after \d+ ms\]")
QUICK = ("--temperature", "0", "--max-tokens", "5", "--ignore-eos")


@pytest.fixture
def run(tiny_model, capsys, monkeypatch) -> Run:
    def run(*arguments: str, stdin: bytes = b"", model: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        engine = ("--model", model or str(tiny_model()), "--dtype", "float32", "--cache.num-blocks", "64")
        code = main(["chat", *engine, "--parallel.num-threads", "1", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


@pytest.fixture
def answers(tiny_model) -> Callable[..., list[str]]:
    """The answers of the API to user messages of one conversation."""

    def answers(*messages: str, system: str | None = None) -> list[str]:
        llm = LLM(str(tiny_model()), dtype="float32", num_blocks=64, num_threads=1)
        history = [] if system is None else [{"role": "system", "content": system}]
        given = []
        for message in messages:
            history.append({"role": "user", "content": message})
            (output,) = llm.chat(history, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
            given.append(output.outputs[0].text)
            history.append({"role": "assistant", "content": given[-1]})
        return given

    return answers


@pytest.mark.parametrize("system", [None, "be brief"])
def test_one_message_is_answered_with_the_speed(run: Run, answers, system: str | None) -> None:
    arguments = [] if system is None else ["--system", system]
    code, out, err = run("the", *arguments, *QUICK)
    assert code == 0
    assert out == answers("the", system=system)[0] + "\n"
    speed, note = err.splitlines()
    assert SPEED.fullmatch(speed)
    assert note.startswith("(cut off")


def test_a_piped_conversation_remembers_what_was_said(run: Run, answers) -> None:
    code, out, err = run(*QUICK, stdin=b"the\n\n  \nand")
    assert code == 0
    assert out == "".join(f"{a}\n" for a in answers("the", "and"))
    assert len(SPEED.findall(err)) == 2


def test_clear_forgets_and_exit_leaves(run: Run, answers) -> None:
    code, out, _ = run("--system", "x", *QUICK, stdin=b"the\n/clear\nand\n/exit\nthe\n")
    assert code == 0
    wanted = [*answers("the", system="x"), *answers("and", system="x")]
    assert out == "".join(f"{a}\n" for a in wanted)


def test_an_empty_conversation_is_fine(run: Run) -> None:
    assert run(stdin=b"") == (0, "", "")


def test_a_message_that_is_too_long_is_taken_back_and_the_conversation_goes_on(run: Run, answers) -> None:
    code, out, err = run(*QUICK, stdin=b"the\n" + b"y" * 400 + b"\nand\n")
    assert code == 0
    assert out == "".join(f"{a}\n" for a in answers("the", "and"))
    assert err.count("octavo: error: prompt: has ") == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["y" * 400], "prompt"),
        (["x", "--temperature", "inf"], "temperature"),
        (["x", "--max-tokens", "0"], "max_tokens"),
        (["x", "--stop", ""], "stop"),
        (["x", "more"], "more"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(run: Run, arguments: list[str], field: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("octavo: error: ")
    assert field in line


def test_input_that_is_no_text_is_an_error(run: Run) -> None:
    code, _, err = run(*QUICK, stdin=b"the\n\xff\xfe\n")
    assert code == 2
    assert "octavo: error: cannot read messages from standard input" in err


def test_a_model_without_a_template_says_so(run: Run, tiny_model, tmp_path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model().iterdir():
        if file.name != "tokenizer_config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    code, out, err = run("x", model=str(folder))
    assert (code, out) == (2, "")
    assert "has no chat template" in err
    assert len(err.splitlines()) == 1


def test_an_answer_that_fails_is_exit_code_one(run: Run, monkeypatch) -> None:
    def fail(self) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr("octavo.runner.model_runner.ModelRunner.collect", fail)
    code, _, err = run("x", *QUICK)
    assert code == 1
    assert "octavo: error: the step failed: RuntimeError('the device is on fire')" in err


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(run: Run, monkeypatch) -> None:
    from octavo.runner.model_runner import ModelRunner

    collect, calls = ModelRunner.collect, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return collect(self)

    monkeypatch.setattr(ModelRunner, "collect", interrupted)
    code, out, err = run(*QUICK, stdin=b"the\nand\n")
    assert code == 0
    assert len(calls) == 3 + 5
    assert out.count("\n") >= 2
    assert "[2 tokens, " in err
    assert "[5 tokens, " in err
