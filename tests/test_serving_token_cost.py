"""The servers that `benchmarks/serving_token_cost.py` compares, briefly: each streams, and is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "serving_token_cost.py"


def test_each_server_is_measured(tmp_path: Path) -> None:
    kinds, result = "completions,chat,starlette,none", tmp_path / "result.json"
    options = ["--kinds", kinds, "--streams", "4", "--tokens", "200", "--repeats", "2", "--json", str(result)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = json.loads(result.read_text())["seconds_per_token"]
    assert list(costs) == kinds.split(",")
    assert all(len(found) == 2 and min(found) > 0 for found in costs.values())
