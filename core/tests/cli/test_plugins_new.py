"""`octavo plugins new`: what it writes passes its suite at once, and what it refuses it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import octavo.testing
from octavo.cli import main
from octavo.cli.new_plugin import KINDS

LONG_LAWS = "another_process or circumstance or plain_decoding or runner_in_this_process or chunks_batches or released"
"""Left to tests/test_new_plugins.py, which has the plugins installed and runs all of them."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ET.Element]]:
    """The test cases that ran in one process with a new plugin of each kind, by the plugin's name."""
    folder = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        assert main(["plugins", "new", f"new-{kind}", "--kind", kind, "--output", str(folder / kind)]) == 0
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(str(folder / kind / "src") for kind in KINDS)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--junitxml=report.xml"]
    command += ["-k", f"not ({LONG_LAWS})", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases: dict[str, list[ET.Element]] = {}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        cases.setdefault(case.get("classname", "").split(".test_new_")[-1].split(".")[0], []).append(case)
    return cases


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_suite(results: dict[str, list[ET.Element]], kind: str) -> None:
    cases = results[kind.replace("-", "_")]
    failed = [
        (case.get("name"), bad.get("message")) for case in cases for bad in case if bad.tag in ("failure", "error")
    ]
    assert not failed
    passed = [case for case in cases if case.find("skipped") is None]
    assert any("TestLaws" in case.get("classname", "") for case in passed)
    assert any("TestLaws" not in case.get("classname", "") for case in passed)


def test_there_is_a_kind_for_every_suite() -> None:
    suites = {name.lower() for name in octavo.testing.__all__ if name.endswith("Suite")}
    assert {kind.replace("-", "") + "suite" for kind in KINDS} == suites


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_are_in_their_places(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "octavo_my-thing", "--kind", kind]) == 0
    folder = tmp_path / "octavo-my-thing"
    assert capsys.readouterr().out.splitlines()[1:] == [
        '  pip install --editable "octavo-my-thing[test]"',
        '  pytest "octavo-my-thing"',
        "  octavo plugins doctor",
    ]
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    package = "src/octavo_my_thing"
    assert {
        "README.md",
        "pyproject.toml",
        "tests/test_my_thing.py",
        f"{package}/__init__.py",
        f"{package}/plugin.py",
        f"{package}/py.typed",
    } < files.keys()
    assert len([name for name in files if name.startswith(package)]) == 4
    assert all(b"$" not in path.read_bytes() for path in files.values())
    settings = tomllib.loads(files["pyproject.toml"].read_text())
    assert "ini_options" in settings["tool"]["pytest"], "its tests would take the settings of a folder above it"
    project = settings["project"]
    assert project["name"] == "octavo-my-thing"
    assert project["entry-points"]["octavo"] == {"my_thing": "octavo_my_thing.plugin"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "--kind: say which kind it is; there is: attention-backend, drafter, "),
        (["x", "--kind", "drafte"], "no kind of plugin is called 'drafte'; did you mean 'drafter'?; there is: "),
        (["--kind", "drafter"], "write `octavo plugins new NAME --kind KIND`"),
        *(
            ([name, "--kind", "drafter"], f"a plugin cannot be called {name!r}: write small letters")
            for name in ("2fast", "Mine", "my thing", "a--b", "a-", "../up", "octavo-", "ä", "", "x" * 33)
        ),
        (["octavo-hello", "--kind", "drafter"], "the plugin 'hello' is there already, from dist-hello 2.0"),
        (["greet", "--kind", "model"], "the drafter 'greet' is there already, from dist-hello 2.0"),
        (["full-attention", "--kind", "kv-policy"], "the KV policy 'FullAttentionSpec' is there already"),
        (["mine", "--kind", "model"], "the model 'MineForCausalLM' is there already"),
        (["x", "--kind", "model", "--output", "there"], "there exists; choose another folder with --output"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_leaves_no_file(
    install, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    drafter = "@hookimpl\ndef octavo_register_drafters():\n    return [DrafterEntry(name='greet', factory='m:x')]\n"
    model = "@hookimpl\ndef octavo_register_models():\n    return [ModelEntry(name='MineForCausalLM', factory='m:x')]\n"
    install("hello", drafter + model)
    (work := tmp_path / "work").mkdir()
    (work / "there").mkdir()
    monkeypatch.chdir(work)
    assert main(["plugins", "new", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert [path.name for path in work.rglob("*")] == ["there"]


def test_options_of_new_plugins_are_no_options_of_the_list(install, capsys) -> None:
    assert main(["plugins", "--kind", "drafter"]) == 2
    assert "--kind and --output are for `octavo plugins new NAME --kind KIND`" in capsys.readouterr().err


def test_a_name_can_end_with_its_kind(tmp_path: Path) -> None:
    for name, kind, stem in (
        ("my-drafter", "drafter", "My"),
        ("my", "drafter", "My"),
        ("drafter", "drafter", "Drafter"),
    ):
        folder = tmp_path / name
        assert main(["plugins", "new", name, "--kind", kind, "--output", str(folder)]) == 0
        (module,) = folder.rglob("drafter.py")
        assert f"class {stem}Drafter:" in module.read_text()


def test_it_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom octavo.cli import main\n"
        "assert main(['plugins', 'new', 'x', '--kind', 'model']) == 0\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
