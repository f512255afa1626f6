"""Strangers' plugins: built as wheels outside the repository, installed in a fresh environment with core's wheel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

Environment = Any  # that of conftest.py

GOOD = """
from octavo.hookspecs import hookimpl
from octavo.spec import Command, LogitsProcessorEntry, ModelEntry


@hookimpl
def octavo_register_models():
    return [ModelEntry(name="StrangerForCausalLM", factory="stranger_{name}.model:Stranger")]


@hookimpl
def octavo_register_logits_processors():
    return [LogitsProcessorEntry(name="shout", factory="stranger_{name}.model:Shout")]


@hookimpl
def octavo_register_commands():
    part = "stranger_{name}.command"
    return [Command(name="hello", help="greet", configure=part + ":configure", run=part + ":run")]
"""
MODEL = """
from octavo.testing.table_model import TableModel, logits_of


class Stranger(TableModel):
    def logits(self, hidden):
        return logits_of(hidden[:, 0] + 1)


class Shout:
    def __init__(self, context): ...

    def attach(self, sequence):
        return True

    def prepare(self, rows): ...

    def apply(self, logits, rows):
        for row in rows:
            logits[row.index, 32:] = -float("inf")

    def accept(self, sequence, token_ids): ...

    def release(self, sequence_id): ...
"""
COMMAND = """
def configure(parser):
    parser.add_argument("who")


def run(arguments):
    print("hello,", arguments.who)
    return 0
"""
MISSPELT = "from octavo.hookspecs import hookimpl\n\n\n@hookimpl\ndef octavo_registr_models():\n    return []\n"
RAISING = "raise RuntimeError('not today')\n"
THIEF = """
from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry


@hookimpl
def octavo_register_logits_processors():
    return [LogitsProcessorEntry(name="penalties", factory="nowhere:Penalties")]
"""
PLUGINS = {
    "good": (GOOD.replace("{name}", "good"), "octavo>=0.1,<0.2"),
    "misspelt": (MISSPELT, "octavo>=0.1,<0.2"),
    "future": (GOOD.replace("{name}", "future"), "octavo>=9"),
    "raising": (RAISING, "octavo>=0.1,<0.2"),
    "thief": (THIEF, "octavo>=0.1,<0.2"),
}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger-{name}"
version = "2.5"
requires-python = ">=3.11"
dependencies = ["{requires}"]

[project.entry-points.octavo]
{name} = "stranger_{name}.plugin"
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, make_environment: Any) -> Environment:
    root = tmp_path_factory.mktemp("strangers")
    for name, (source, requires) in PLUGINS.items():
        package = root / name / f"stranger_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "plugin.py").write_text(source)
        (package / "model.py").write_text(MODEL)
        (package / "command.py").write_text(COMMAND)
        (root / name / "pyproject.toml").write_text(PROJECT.format(name=name, requires=requires))
    return make_environment(root, [root / name for name in PLUGINS])


def test_core_comes_from_its_wheel(environment: Environment) -> None:
    done = environment.run("python", "-c", "import octavo.plugins; print(octavo.plugins.__file__)")
    assert Path(done.stdout).is_relative_to(environment.path), done.stderr


def test_a_good_plugin_registers_and_works(environment: Environment) -> None:
    done = environment.run("octavo", "hello", "reader")
    assert (done.returncode, done.stdout) == (0, "hello, reader\n"), done.stderr
    done = environment.load(
        "for registry, name in (extensions.models, 'StrangerForCausalLM'), (extensions.logits_processors, 'shout'):",
        "    offer = registry.find(name)",
        "    print(offer.origin, load_factory(offer.entry.factory).__name__)",
        OCTAVO_DISABLE_PLUGINS="thief",
    )
    assert done.stdout.splitlines() == ["good (stranger-good 2.5) Stranger", "good (stranger-good 2.5) Shout"], (
        done.stderr
    )


def test_its_model_and_its_processor_generate(environment: Environment) -> None:
    script = """
from octavo import SamplingParams
from octavo.testing.naive import naive_generate
from octavo.testing.table_model import state_of, table_llm
from stranger_good.model import logits_of
import torch

options = dict(max_tokens=12, temperature=0, ignore_eos=True)
llm = table_llm(autoload_plugins=True, architecture="StrangerForCausalLM", disable_plugins=["thief"])
plain, shouted = llm.generate([[5, 6, 7]] * 2, [SamplingParams(**options, extra_args=e) for e in ({}, {"shout": True})])
expected = naive_generate(
    lambda tokens: logits_of(torch.tensor([state_of(tokens) + 1]))[0],
    [5, 6, 7],
    SamplingParams(**options),
    max_model_len=512,
)
assert plain.outputs[0].token_ids == expected.token_ids
assert max(shouted.outputs[0].token_ids) < 32 <= max(plain.outputs[0].token_ids)
print("generated")
"""
    done = environment.run("python", "-c", script)
    assert (done.returncode, done.stdout) == (0, "generated\n"), done.stderr


def test_the_list_tells_each_state_and_reason(environment: Environment) -> None:
    done = environment.run("octavo", "plugins", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    reports = {report["name"]: report for report in json.loads(done.stdout)}
    states = {name: report["state"] for name, report in reports.items()}
    assert states == {"builtin": "active", "good": "active"} | dict.fromkeys(set(PLUGINS) - {"good"}, "broken")
    assert {reports[name]["distribution"] for name in PLUGINS} == {f"stranger-{name}" for name in PLUGINS}
    reasons = {
        "misspelt": "no hook is called octavo_registr_models; did you mean 'octavo_register_models'?",
        "future": "it needs octavo>=9, this is octavo ",
        "raising": "importing it failed: RuntimeError: not today",
        "thief": "logits processor 'penalties' is offered by builtin (octavo ",
    }
    for name, reason in reasons.items():
        assert reports[name]["reason"].startswith(reason)


def test_the_doctor_names_every_broken_plugin(environment: Environment) -> None:
    done = environment.run("octavo", "plugins", "doctor", "--json")
    assert done.returncode == 1
    problems = json.loads(done.stdout)
    assert {problem["plugin"] for problem in problems} - {""} == set(PLUGINS) - {"good"}
    assert all(problem["mend"] for problem in problems)


def test_a_taken_name_is_an_error_that_names_both(environment: Environment) -> None:
    done = environment.load()
    assert done.returncode == 1
    assert "'penalties' is offered by builtin (octavo " in done.stderr
    assert "thief (stranger-thief 2.5)" in done.stderr
    won = environment.run("octavo", "config", "--override-plugins", "thief", "--json")
    assert won.returncode == 0, won.stderr


def test_broken_plugins_cost_one_warning_each_and_strict_makes_them_errors(environment: Environment) -> None:
    done = environment.load(OCTAVO_DISABLE_PLUGINS="thief")
    assert done.returncode == 0, done.stderr
    for name in ("misspelt", "future", "raising"):
        assert done.stderr.count(f"plugin {name} (stranger-{name} 2.5) is broken") == 1
    strict = environment.load(OCTAVO_DISABLE_PLUGINS="thief", OCTAVO_STRICT_PLUGINS="1")
    assert strict.returncode == 1
    assert "PluginError" in strict.stderr
