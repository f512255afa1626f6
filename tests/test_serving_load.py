"""Many clients of one server: `benchmarks/serving_load.py`, briefly, and without its bounds on time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "serving_load.py"


@pytest.mark.parametrize("options", [(), ("--in-process",)], ids=["process", "thread"])
def test_every_client_gets_its_own_and_nothing_is_left_over(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(SCRIPT), "--clients", "40", "--seconds", "6", "--max-delay", "10", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[0])
    requests = result["requests"]
    assert requests["whole"] + requests["left"] >= 40
    assert requests["whole"] > requests["left"] > 0
