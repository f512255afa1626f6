"""Plugins made by `octavo plugins new`: clean under our own settings, and working where strangers install them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.new_plugin import KINDS

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "pyproject.toml"
SAFETENSORS = ROOT / "plugins" / "models" / "safetensors"
LONGEST = "x" * 32
"""Longer names are refused."""


def _new(folder: Path, name: str, kind: str) -> Path:
    assert main(["plugins", "new", name, "--kind", kind, "--output", str(folder)]) == 0
    return folder


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=cwd, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["q", LONGEST])
def test_new_plugins_are_formatted_and_lint_clean(tmp_path: Path, name: str) -> None:
    for kind in KINDS:
        folder = _new(tmp_path / kind, name, kind)
        _run("ruff", "format", "--check", "--config", str(SETTINGS), ".", cwd=folder)
        _run("ruff", "check", "--no-cache", "--config", str(SETTINGS), ".", cwd=folder)


def test_new_plugins_have_sound_types(tmp_path: Path) -> None:
    folders = [_new(tmp_path / kind, f"new-{kind}", kind) for kind in KINDS]
    search = [f"--search-path={path / 'src'}" for path in folders]
    files = [str(path) for folder in folders for path in folder.rglob("*.py")]
    _run(
        "pyrefly", "check", f"--config={SETTINGS}", *search, f"--search-path={ROOT / 'core' / 'src'}", *files, cwd=ROOT
    )


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("new")
    return {kind: _new(root / kind, f"new-{kind}", kind) for kind in KINDS}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, projects: dict[str, Path], make_environment: Any) -> Any:
    return make_environment(tmp_path_factory.mktemp("environment"), [*projects.values(), SAFETENSORS])


@pytest.mark.slow
def test_the_doctor_is_content_and_the_list_has_them_all(environment: Any) -> None:
    done = environment.run("octavo", "plugins", "doctor")
    assert (done.returncode, done.stdout) == (0, "no problems\n"), done.stderr
    listed = environment.run("octavo", "plugins").stdout
    assert all(f"new_{kind.replace('-', '_')} " in listed for kind in KINDS)


@pytest.mark.slow
@pytest.mark.timeout(600)  # about a minute where nothing else runs
def test_installed_from_wheels_they_pass_their_own_tests(environment: Any, projects: dict[str, Path]) -> None:
    pytest_ = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib")
    done = environment.run(*pytest_, *map(str, projects.values()), timeout=560, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
