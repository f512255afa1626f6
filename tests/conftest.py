"""Fresh environments with core's wheel and a few others in them, for plugins as strangers install them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "core"


class Environment:
    """A virtual environment, and commands run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *argv: str, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAVO_", "PYTHON", "VIRTUAL_ENV"))}
        command = [str(self.path / "bin" / argv[0]), *argv[1:]]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=env | variables, cwd=self.path, timeout=timeout
        )

    def load(self, *statements: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Load `extensions` in this environment and run `statements`."""
        lines = (
            "from octavo.plugins import load_extensions, resolve_settings",
            "from octavo.spec import load_factory",
            "extensions = load_extensions(resolve_settings().config)",
            *statements,
        )
        return self.run("python", "-c", "\n".join(lines), **variables)


@pytest.fixture(scope="session")
def make_environment() -> Callable[[Path, Iterable[Path]], Environment]:
    """Makes an environment in a folder, with the wheels of core and of other projects."""

    def make(folder: Path, projects: Iterable[Path]) -> Environment:
        wheels, venv = folder / "wheels", folder / "venv"
        _pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), *map(str, [CORE, *projects]))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
        _lend_dependencies(venv)
        python = str(venv / "bin" / "python")
        _pip("--python", python, "install", "--no-deps", "--no-index", *map(str, sorted(wheels.glob("*.whl"))))
        return Environment(venv)

    return make


def _pip(*arguments: str) -> None:
    quiet = ["--disable-pip-version-check", "--quiet", "--no-input"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *quiet, *arguments], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr


def _lend_dependencies(venv: Path) -> None:
    """Link what core depends on (torch is large), but nothing of Octavo's own, into the new environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = venv / "lib" / version / "site-packages"
    for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for installed in Path(path).iterdir():
            if installed.name.startswith(("octavo", "_editable")) or installed.suffix == ".pth":
                continue
            if not (target / installed.name).exists():
                (target / installed.name).symlink_to(installed)
