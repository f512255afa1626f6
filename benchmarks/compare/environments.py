"""A virtual environment for each engine, kept between runs.

Owns: what is installed where. Must never know: what an engine does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engines import Engine
from packaging.requirements import Requirement

_STAMP = "installed.json"
_LIST_REQUIREMENTS = "import importlib.metadata as m, json, sys; print(json.dumps(m.requires(sys.argv[1]) or []))"


class InstallError(Exception):
    """What pip said last."""


def python_in(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make_environment(venv: Path, engine: Engine, pip_options: Sequence[str], log: Path) -> None:
    """Install what `engine` needs into `venv`, unless just that was done before. Raises `InstallError`."""
    wanted = [list(engine.installs), engine.needs_all_of, engine.leaves_out]
    stamp = venv / _STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == json.dumps(wanted):
        return
    if venv.exists():
        shutil.rmtree(venv)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    for arguments in engine.installs:
        _pip(venv, [*pip_options, *arguments], log)
    if engine.needs_all_of:
        _pip(venv, [*pip_options, *_requirements(venv, engine), *engine.installs[0]], log)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")


def _requirements(venv: Path, engine: Engine) -> list[str]:
    """What the installed distribution asks for on this machine, less what it runs without."""
    command = [str(python_in(venv)), "-c", _LIST_REQUIREMENTS, engine.needs_all_of]
    lines = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = [requirement for requirement in map(Requirement, lines) if requirement.name not in engine.leaves_out]
    applying = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    return [f"{r.name}{'[' + ','.join(sorted(r.extras)) + ']' if r.extras else ''}{r.specifier}" for r in applying]


def _pip(venv: Path, arguments: Sequence[str], log: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python_in(venv)), "install", *arguments]
    with log.open("a", encoding="utf-8") as output:
        print("$", *command, file=output, flush=True)
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if "ERROR" in line]
        raise InstallError(f"{lines[-1] if lines else 'pip failed'} (see {log})")
