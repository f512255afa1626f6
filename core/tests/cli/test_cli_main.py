"""The command `octavo`: exit codes, error lines, commands of plugins, and that no plugin can break it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import importlib_metadata
import pytest

from octavo.cli import main

HELLO = """
from typing import Annotated
from msgspec import Meta
from octavo.config import Section

class Options(Section):
    name: Annotated[str, Meta(description="Whom to greet.")] = "world"

@hookimpl
def octavo_options():
    return Options

@hookimpl
def octavo_register_commands():
    return [Command(name="hello", help="greet", configure=configure, run=run)]

def configure(parser):
    parser.add_argument("--loud", action="store_true")

def run(arguments):
    print("HELLO" if arguments.loud else "hello")
    return 7
"""
BROKEN = {
    "raises": "raise ValueError('no luck')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "syntax": "def (:\n",
    "lacks": "import a_module_nobody_has\n",
    "misspelt": "@hookimpl\ndef octavo_registr_models():\n    return []\n",
    "thief": "@hookimpl\ndef octavo_register_executors():\n    return [ExecutorEntry(name='inproc', factory='m:x')]\n",
}


def _error(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("octavo: error: ")
    return line


def test_a_plugins_command_runs_and_its_code_is_returned(install, capsys) -> None:
    install("hello", HELLO)
    assert main(["hello", "--loud"]) == 7
    assert capsys.readouterr().out == "HELLO\n"


@pytest.mark.parametrize("flags", [["--disable-plugin", "hello"], ["--disable-plugin=hello"]])
@pytest.mark.parametrize("before", [True, False])
def test_a_disabled_plugin_has_no_command_and_is_not_imported(install, capsys, flags, before) -> None:
    module = install("hello", HELLO)
    assert main([*flags, "hello"] if before else ["hello", *flags]) == 2
    assert "no command is called 'hello'" in _error(capsys)
    assert module not in sys.modules


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_breaks_no_command_but_its_own(install, capsys, name) -> None:
    install(name, BROKEN[name])
    for argv in (["--help"], ["--version"], ["plugins"], ["plugins", "show", name], [], ["plugins", "--help"]):
        assert main(argv) == 0
        assert capsys.readouterr().err == ""
    assert main(["plugins", "--json"]) == 0
    reports = {report["name"]: report for report in json.loads(capsys.readouterr().out)}
    assert reports[name]["state"] == "broken"
    assert reports[name]["reason"]
    assert reports["builtin"]["state"] == "active"
    assert main(["plugins", "doctor"]) == 1
    assert name in capsys.readouterr().out


def test_an_unknown_command_is_one_line_with_a_suggestion(install, capsys) -> None:
    install("raises", BROKEN["raises"])
    assert main(["genrate"]) == 2
    line = _error(capsys)
    assert "no command is called 'genrate'; did you mean 'generate'?" in line
    assert "no luck" in line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plugins", "--josn"], "unknown option --josn; did you mean '--json'?; see `octavo plugins --help`"),
        (["config", "--scheduler.max-num-seq", "8"], "did you mean '--scheduler.max-num-seqs'?"),
        (["generate", "hi", "--max-token", "3"], "unknown option --max-token; did you mean '--max-tokens'?"),
        (["plugins", "show", "octavo-hello"], "no plugin is called 'octavo-hello'; did you mean 'hello'?"),
        (["show", "hello"], "no command is called 'show'; did you mean `octavo plugins show hello`?"),
        (["doctor", "--json"], "did you mean `octavo plugins doctor --json`?"),
        (["plugins", "show"], "write `octavo plugins show NAME`"),
        (["plugins", "list", "x"], "write `octavo plugins show NAME`"),
        (["plugins", "show", "bultin"], "no plugin is called 'bultin'; did you mean 'builtin'?"),
        (["config", "--cache.block-size", "0"], "cache.block_size: must be int >= 1; got '0' from command line"),
        (["config", "--disable-plugin", "nobody"], "no plugin is called 'nobody'"),
        (["config", "--config", "/nowhere.toml"], "cannot be read"),
        (["config", "--config"], "expected one argument"),
        (["config", "--plugins.hello", "3"], "write --plugins.<plugin>.<option> VALUE"),
        (["config", "--plugins.hello.name"], "write --plugins.<plugin>.<option> VALUE"),
        (["config", "--plugins.hello.nme", "3"], "did you mean 'plugins.hello.name'?"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_with_2(install, capsys, argv, message) -> None:
    install("hello", HELLO)
    assert main(argv) == 2
    assert message in _error(capsys)


def test_help_comes_even_if_the_configuration_is_broken(install, capsys, monkeypatch) -> None:
    monkeypatch.setenv("OCTAVO_CONFIG", "/nowhere.toml")
    assert main(["--help"]) == 0
    assert "plugins" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {importlib_metadata.version('octavo')}\n"
    assert main(["plugins"]) == 2
    assert "nowhere.toml" in _error(capsys)


@pytest.mark.parametrize(
    ("body", "code"), [("raise KeyboardInterrupt", 130), ("raise ConfigError('two\\nlines')", 2), ("return None", 0)]
)
def test_how_a_command_can_end(install, capsys, body, code) -> None:
    install("hello", "from octavo.errors import ConfigError\n" + HELLO.replace("return 7", body))
    assert main(["hello"]) == code
    assert ("octavo: error: two lines" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize(
    "broken", ["configure='nowhere:configure', run=run", "configure=configure, run='json:nothing'"]
)
def test_a_command_that_cannot_be_imported_names_its_plugin(install, capsys, broken) -> None:
    install("hello", HELLO.replace("configure=configure, run=run", broken))
    assert main(["hello"]) == 2
    assert "command 'hello' of plugin hello (dist-hello 2.0) cannot be loaded" in _error(capsys)


def test_plugins_shows_the_table_and_the_details(install, capsys) -> None:
    install("hello", HELLO)
    install("skewed", "", requires="octavo>=9")
    assert main(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"]
    rows = {line.split()[0]: line.split(maxsplit=4) for line in lines[1:]}
    assert rows["hello"][1:] == ["dist-hello", "2.0", "active", "command: hello"]
    assert rows["skewed"][3:] == [
        "broken",
        f"it needs octavo>=9, this is octavo {importlib_metadata.version('octavo')}",
    ]
    assert main(["plugins", "show", "hello", "--plugins.hello.name", "you"]) == 0
    shown = capsys.readouterr().out
    assert "hooks: octavo_options, octavo_register_commands" in shown
    assert shown.splitlines()[-1].split() == ["plugins.hello.name", "str", "world", "you", "Whom", "to", "greet."]
    assert main(["plugins", "doctor"]) == 1
    told = capsys.readouterr().out
    assert "skewed (dist-skewed 2.0) is broken: it needs octavo>=9" in told
    assert "no installed plugin offers any model" in told
    assert "no installed plugin offers any weight format" in told
    assert "no installed plugin offers any attention backend" in told
    assert told.count("mend: ") == 4
    assert main(["plugins", "doctor", "--json"]) == 1
    assert [set(problem) for problem in json.loads(capsys.readouterr().out)] == [{"plugin", "problem", "mend"}] * 4


def test_doctor_finds_nothing_wrong(install, capsys) -> None:
    source = """
@hookimpl
def octavo_register_models():
    return [ModelEntry(name="M", factory="json:loads")]

@hookimpl
def octavo_register_weight_formats():
    return [WeightFormatEntry(name="w", can_read=lambda path: False, factory="json:loads")]

@hookimpl
def octavo_register_attention_backends():
    can = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}))
    return [AttentionBackendEntry(name="a", factory="json:loads", capabilities=can)]
"""
    install("whole", source)
    assert main(["plugins", "doctor"]) == 0
    assert capsys.readouterr().out == "no problems\n"


def test_a_drafter_is_idle_until_it_is_selected(install, capsys) -> None:
    install(
        "ngram", "@hookimpl\ndef octavo_register_drafters():\n    return [DrafterEntry(name='ng', factory='m:x')]\n"
    )
    for flags, state in (([], "idle"), (["--drafter", "ng"], "active"), (["--disable-plugin", "ngram"], "disabled")):
        assert main(["plugins", "--json", *flags]) == 0
        assert {r["name"]: r["state"] for r in json.loads(capsys.readouterr().out)}["ngram"] == state


def test_config_prints_values_and_sources(install, capsys, monkeypatch, tmp_path) -> None:
    install("hello", HELLO)
    monkeypatch.setenv("OCTAVO_SCHEDULER_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("OCTAVO_PLUGINS_HELLO_NAME", "env")
    file = tmp_path / "c.toml"
    file.write_text("[model]\ndtype = 'float16'\n")
    argv = ["--config", str(file), "config", "--cache.block-size", "32", "--cache.num_blocks=9", "--seed", "4"]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cache.block_size"] == {"value": 32, "source": "command line"}
    assert found["cache.num_blocks"] == {"value": 9, "source": "command line"}
    assert found["sampling.seed"] == {"value": 4, "source": "command line"}
    assert found["scheduler.max_num_seqs"] == {"value": 5, "source": "environment OCTAVO_SCHEDULER_MAX_NUM_SEQS"}
    assert found["model.dtype"] == {"value": "float16", "source": f"file {file}"}
    assert found["model.device"] == {"value": "auto", "source": "default"}
    assert found["plugins.hello.name"] == {"value": "env", "source": "environment OCTAVO_PLUGINS_HELLO_NAME"}
    assert main(argv) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cache.block_size", "32", "command", "line"] in lines


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["plugins"], ["config"]])
def test_torch_and_numpy_stay_out(argv) -> None:
    code = (
        f"import sys; from octavo.cli import main; main({argv!r}); assert not {{'torch', 'numpy'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_commands_that_build_engines_list_their_options(install, capsys) -> None:
    for command, listed in (("plugins", False), ("config", True)):
        assert main([command, "--help"]) == 0
        assert ("--scheduler.max-num-seqs" in capsys.readouterr().out) == listed


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("octavo", f"{sys.executable} -m octavo", 1)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_null_devices(closed) -> None:
    done = _shell(f"octavo config {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    done = _shell(f"octavo nonsense {closed}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert ("no command is called" in done.stderr) == ("2>" not in closed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("arguments", ["config", "config --json", "--help", "plugins"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(arguments) -> None:
    done = _shell(f"octavo {arguments} >/dev/full")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("octavo: error: ")
    assert "No space left" in line


def test_a_reader_that_leaves_is_no_error(install) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "octavo", "config", "--json"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == ""
