"""What a plugin's command can ask of the command line: the engine's options, and a first word shared with others."""

from __future__ import annotations

import json

import pytest

from octavo.cli import main
from octavo.hookspecs import hookimpl
from octavo.spec import Command, Observer
from octavo.step import StepStats
from octavo.testing.table_model import table_llm

SHOWS_CONFIG = """
import json, msgspec

@hookimpl
def octavo_register_commands():
    return [Command(name="shows", help="show", configure=configure, run=run, takes_engine_options=True)]

def configure(parser):
    parser.add_argument("--seed", type=int, default=1, help="of my own")

def run(arguments):
    print(json.dumps([arguments.seed, msgspec.to_builtins(arguments.engine_config)]))
"""
FAMILY = """
@hookimpl
def octavo_register_commands():
    return [Command(name=name, help=f"do {name}", configure=configure, run=run) for name in NAMES]

def configure(parser):
    parser.add_argument("rest", nargs="*")

def run(arguments):
    print(arguments.rest)
"""


def test_a_command_gets_the_configuration_that_file_environment_and_flags_make(
    install, capsys, monkeypatch, tmp_path
) -> None:
    install("shows", SHOWS_CONFIG)
    file = tmp_path / "c.toml"
    file.write_text("[model]\ndtype = 'float16'\n[cache]\nblock_size = 8\n")
    monkeypatch.setenv("OCTAVO_SCHEDULER_MAX_NUM_SEQS", "5")
    flags = ["--model", "m", "--cache.block_size", "32", "--plugins.shows.x=y"]
    assert main(["shows", "--config", str(file), *flags]) == 0
    _, config = json.loads(capsys.readouterr().out)
    assert config["model"]["path"] == "m"
    assert config["model"]["dtype"] == "float16"
    assert config["cache"]["block_size"] == 32
    assert config["scheduler"]["max_num_seqs"] == 5
    assert config["plugins"] == {"shows": {"x": "y"}}


def test_a_flag_of_the_commands_own_wins_over_a_short_form(install, capsys) -> None:
    install("shows", SHOWS_CONFIG)
    assert main(["shows", "--seed", "7", "--sampling.seed", "9"]) == 0
    seed, config = json.loads(capsys.readouterr().out)
    assert (seed, config["sampling"]["seed"]) == (7, 9)
    assert main(["shows", "--help"]) == 0
    told = capsys.readouterr().out
    assert "of my own" in told
    assert "--scheduler.max-num-seqs" in told


def test_a_wrong_value_is_refused_before_the_command_runs(install, capsys) -> None:
    install("shows", SHOWS_CONFIG)
    assert main(["shows", "--cache.block-size", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cache.block_size: must be int >= 1" in captured.err


def test_a_command_that_does_not_ask_has_no_such_options(install, capsys) -> None:
    install("shows", SHOWS_CONFIG.replace(", takes_engine_options=True", ""))
    assert main(["shows", "--scheduler.max-num-seqs", "3"]) == 2
    assert "unknown option --scheduler.max-num-seqs" in capsys.readouterr().err
    assert not Command(name="x", help="", configure="m:c", run="m:r").takes_engine_options


@pytest.fixture
def family(install) -> None:
    install("one", f"NAMES = ('walk far', 'alone')\n{FAMILY}")
    install("two", f"NAMES = ('walk home',)\n{FAMILY}")


def test_two_plugins_share_the_first_word(family, capsys) -> None:
    for words, rest in ((["walk", "far"], []), (["walk", "home", "now"], ["now"]), (["alone", "far"], ["far"])):
        assert main(words) == 0
        assert capsys.readouterr().out == f"{rest}\n"
    assert main(["walk", "home", "--help"]) == 0
    assert "usage: octavo walk home" in capsys.readouterr().out


def test_the_first_word_alone_says_what_can_follow(family, capsys) -> None:
    assert main(["walk", "--help"]) == 0
    told = capsys.readouterr().out
    assert "walk far   do walk far [one]" in told
    assert "walk home  do walk home [two]" in told
    assert "alone" not in told
    assert main(["walk"]) == 2
    assert "`octavo walk` takes one more word; there is: walk far, walk home" in capsys.readouterr().err
    assert main(["walk", "hme", "--x"]) == 2
    assert "did you mean 'walk home'?" in capsys.readouterr().err
    assert main(["wlk"]) == 2
    assert "no command is called 'wlk'" in capsys.readouterr().err


def test_observers_are_told_what_each_sequence_computed() -> None:
    steps: list[StepStats] = []

    class Watch(Observer):
        @hookimpl
        def octavo_make_observers(self, config):
            return [self]

        def on_step(self, stats: StepStats) -> None:
            steps.append(stats)

    llm = table_llm(plugins=[Watch()], max_num_batched_tokens=8)
    params = llm.default_sampling_params(max_tokens=3, ignore_eos=True)
    llm.generate([list(range(2, 12)), [5, 6, 7]], params, use_tqdm=False)
    spans = [[(s.num_computed_tokens, s.num_scheduled_tokens) for s in step.scheduled] for step in steps]
    assert [[n for _, n in step] for step in spans] == [[8], [2, 3], [1, 1], [1, 1]]
    assert [[c for c, _ in step] for step in spans] == [[0], [8, 0], [10, 3], [11, 4]]
    assert all(step.num_scheduled_tokens == sum(n for _, n in span) for step, span in zip(steps, spans, strict=True))
