"""`benchmarks/serving_token_cost.py`, briefly: each server streams and is measured, FastAPI's where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "serving_token_cost.py"


def test_each_server_is_measured(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = ["--streams", "16", "--tokens", "250", "--repeats", "1", "--json", str(result)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = json.loads(result.read_text())["seconds_per_token"]
    assert {"completions", "chat", "starlette", "none"} <= set(costs)
    assert all(len(found) == 1 and found[0] > 0 for found in costs.values())
