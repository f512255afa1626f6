"""The whole list of bad input: a typed exception here, one line and exit code 2 there, and then service as before."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.errors import InvalidRequestError, ModelLoadError, OctavoError

GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
ENGINE = ("--dtype", "float32", "--cache.num-blocks", "8", "--parallel.num-threads", "1")
CAPACITY = 7 * 16
"""Tokens that eight blocks hold, one of them being the null block."""


@pytest.fixture(scope="module")
def llm(tiny_model) -> LLM:
    return LLM(str(tiny_model()), dtype="float32", num_blocks=8, num_threads=1)


@pytest.fixture
def copy_of_model(tiny_model, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model whose config has some keys changed."""

    def copy(**changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model(), folder)
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return copy


def one_line(capsys, *arguments: str) -> str:
    """The error line of a command that must fail with exit code 2 and print nothing else."""
    assert main(["generate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("octavo: error: ")
    return line


REQUESTS: dict[str, tuple[Any, Callable[[], dict[str, Any]], str]] = {
    "empty prompt": ("", dict, "prompt"),
    "no token ids": ([[]], dict, "prompt"),
    "one empty prompt among good ones": (["hi", "", "ho"], dict, "prompt"),
    "id beyond the vocabulary": ([[5, 10**6]], dict, "prompt"),
    "negative id": ([[5, -1]], dict, "prompt"),
    "longer than the cache": ([[5] * CAPACITY], dict, "prompt"),
    "longer than the model": ([[5] * 100_000], dict, "prompt"),
    "max_tokens 0": ("x", lambda: {"max_tokens": 0}, "max_tokens"),
    "max_tokens negative": ("x", lambda: {"max_tokens": -1}, "max_tokens"),
    "temperature NaN": ("x", lambda: {"temperature": math.nan}, "temperature"),
    "stop with an empty string": ("x", lambda: {"stop": ["a", ""]}, "stop"),
    "100,000 logit_bias entries": ("x", lambda: {"logit_bias": dict.fromkeys(range(100_000), 1.0)}, "logit_bias"),
    "logit_bias beyond the vocabulary": ("x", lambda: {"logit_bias": {60_000: 1.0}}, "logit_bias"),
    "stop id beyond the vocabulary": ("x", lambda: {"stop_token_ids": [60_000]}, "stop_token_ids"),
    "allowed id beyond the vocabulary": ("x", lambda: {"allowed_token_ids": [60_000]}, "allowed_token_ids"),
    "a processor that nobody offers": ("x", lambda: {"extra_args": {"grammar": 1}}, "extra_args"),
    "a billion completions": ("x", lambda: {"n": 10**9}, "n"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bad_request_is_refused_by_name_and_the_next_one_is_served(llm: LLM, name: str) -> None:
    prompt, options, field = REQUESTS[name]
    before = llm.generate("the", SamplingParams(**GREEDY))[0].outputs
    started = time.process_time()
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, SamplingParams(**(GREEDY | options())))
    assert time.process_time() - started < 1
    assert isinstance(caught.value, OctavoError)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)
    assert not llm.engine.has_unfinished_requests()
    llm.engine.check_integrity()
    assert llm.generate("the", SamplingParams(**GREEDY))[0].outputs == before


def test_what_does_not_fit_says_what_does(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=rf"at most {CAPACITY - 1} fit.*KV cache.*raise cache\.memory"):
        llm.generate([[5] * CAPACITY])
    (output,) = llm.generate([[5] * (CAPACITY - 1)], SamplingParams(**GREEDY))
    assert len(output.outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ([""], "prompt: is empty"),
        (["y" * CAPACITY], "prompt: has"),
        (["y" * 5000], "prompt: has"),
        (["x", "--max-tokens", "0"], "max_tokens"),
        (["x", "--max-tokens", "-1"], "max_tokens"),
        (["x", "--temperature", "nan"], "temperature"),
        (["x", "--stop", "a", "--stop", ""], "stop"),
    ],
)
def test_the_command_says_it_in_one_line(tiny_model, capsys, arguments: list[str], field: str) -> None:
    assert field in one_line(capsys, "--model", str(tiny_model()), *ENGINE, *arguments)


def test_an_unknown_architecture_names_the_families_that_were_looked_at(copy_of_model, capsys) -> None:
    folder = copy_of_model(architectures=["NobodysForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"'NobodysForCausalLM'.*looked at: .*llama"):
        LLM(str(folder))
    line = one_line(capsys, "x", "--model", str(folder))
    assert "NobodysForCausalLM" in line
    assert "llama (octavo-llama" in line


def test_an_architecture_can_be_named_instead(copy_of_model) -> None:
    folder = copy_of_model(architectures=["NobodysForCausalLM"])
    llm = LLM(str(folder), architecture="LlamaForCausalLM", dtype="float32", num_blocks=8, num_threads=1)
    assert len(llm.generate("x", SamplingParams(**GREEDY))[0].outputs[0].token_ids) == 4


def test_a_folder_without_a_config_says_what_it_holds(copy_of_model, tmp_path: Path, capsys) -> None:
    folder = copy_of_model()
    (folder / "config.json").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, word in ((folder, "config.json"), (empty, "nothing"), (tmp_path / "nowhere.gguf", "no such file")):
        with pytest.raises(ModelLoadError, match=word):
            LLM(str(path))
        line = one_line(capsys, "x", "--model", str(path))
        assert word in line
        assert str(path) in line


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", "{}", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_broken_config_is_an_error_of_the_model(copy_of_model, capsys, broken: str) -> None:
    folder = copy_of_model()
    (folder / "config.json").write_text(broken)
    with pytest.raises(ModelLoadError):
        LLM(str(folder))
    assert "config" in one_line(capsys, "x", "--model", str(folder))


@pytest.mark.parametrize("kept", [4, 7, 24, 1000, 0.1, 0.9, -1])
def test_a_gguf_file_that_is_cut_off_is_an_error(packaged_model, tmp_path: Path, capsys, kept: float) -> None:
    pytest.importorskip("octavo_gguf")
    file = tmp_path / "cut.gguf"
    size = Path(packaged_model).stat().st_size
    num_bytes = int(size * kept) if isinstance(kept, float) else kept % size
    with open(packaged_model, "rb") as whole, open(file, "wb") as part:
        part.write(whole.read(min(num_bytes, size - 1)))
    started = time.process_time()
    with pytest.raises(ModelLoadError) as caught:
        LLM(str(file), num_blocks=8)
    assert "cut.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "cut.gguf" in one_line(capsys, "x", "--model", str(file))
    assert time.process_time() - started < 20
