"""Writes what is known so far: `results.json`, `table.md`, `plot.svg`.

Owns: the files. Must never know: how anything was run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import Engine
from environments import InstallError, make_environment, python_in
from report import METRICS, Contestant, heading, same_first_tokens, summary, table

PLOTTER = Engine("plot", "matplotlib", {}, installs=(("matplotlib",),))
_TELLING_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "sve",
    "i8mm",
)


def write(contestants: Sequence[Contestant], options: Mapping[str, Any], out: Path) -> None:
    """The first contestant is the one that the others are compared with."""
    subject, *peers = contestants
    computer = machine()
    agreement = _agreement(subject, peers)
    num_rounds = max(len(contestant.results) for contestant in contestants)
    title = f"{computer['processor']}, {options['threads']} threads, {num_rounds} rounds"
    if options["scale"] != 1:
        title += f", workloads at scale {options['scale']:g}"
    lines = [f"{title}, {', '.join(computer['instructions'])}", "", table(subject, peers).rstrip()]
    lines += [
        f"- {name}: {same} of {total} requests begin with Octavo's token" for name, (same, total) in agreement.items()
    ]
    (out / "table.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    found = {
        "title": title,
        "machine": computer,
        "options": options,
        "metrics": [dataclasses.asdict(metric) for metric in METRICS],
        "contestants": [_shown(contestant, contestant is subject) for contestant in contestants],
        "summary": summary(subject, peers),
        "same_first_tokens": agreement,
    }
    text = json.dumps(found, indent=1, ensure_ascii=False, default=dataclasses.asdict)
    (out / "results.json").write_text(text, encoding="utf-8")


def draw(out: Path, venv: Path, pip_options: Sequence[str], log: Path, *, may_install: bool) -> None:
    """The plot of `results.json`. Raises `InstallError`."""
    if may_install:
        make_environment(venv, PLOTTER, pip_options, log)
    command = [str(python_in(venv)), str(Path(__file__).with_name("plot.py")), "results.json", "plot.svg"]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"no plot: {done.stderr.strip().splitlines()[-1]}")


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (said.get("flags") or said.get("Features") or "").split()
    return {
        "processor": said.get("model name") or platform.processor() or platform.machine(),
        "instructions": [flag for flag in _TELLING_FLAGS if flag in flags],
        "num_cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
    }


def _agreement(subject: Contestant, peers: Sequence[Contestant]) -> dict[str, tuple[int, int]]:
    """By peer: requests whose first token is the subject's, and all; of the first rounds that there are."""
    if not subject.results:
        return {}
    reference = next(iter(subject.results.values()))
    return {heading(p): same_first_tokens(next(iter(p.results.values())), reference) for p in peers if p.results}


def _shown(contestant: Contestant, is_subject: bool) -> dict[str, Any]:
    runs = {turn: _without_tokens(result) for turn, result in contestant.results.items()}
    return {
        "name": contestant.name,
        "label": heading(contestant),
        "is_subject": is_subject,
        "unavailable": contestant.unavailable,
        "notes": contestant.notes,
        "values": {metric.name: contestant.values(metric) for metric in METRICS},
        "runs": runs,
    }


def _without_tokens(result: Mapping[str, Any]) -> dict[str, Any]:
    workloads = {
        name: {key: value for key, value in run.items() if key != "token_ids"}
        for name, run in result["workloads"].items()
    }
    return {**result, "workloads": workloads}
