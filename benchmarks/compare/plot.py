"""Draws `results.json` as one panel for each metric: medians as bars, rounds as dots.

    python plot.py RESULTS.json PLOT.svg

Runs in an environment of its own, since only this needs matplotlib.

Owns: the picture. Must never know: how anything was measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

OURS, THEIRS = "#1f6f8b", "#b8c4cc"


def draw(results: dict[str, Any], path: str) -> None:
    metrics = [m for m in results["metrics"] if any(c["values"].get(m["name"]) for c in results["contestants"])]
    columns = min(4, len(metrics))
    rows = -(-len(metrics) // columns)
    matplotlib.rcParams.update({"svg.hashsalt": "octavo", "font.size": 8, "axes.spines.top": False})
    matplotlib.rcParams.update({"axes.spines.right": False, "svg.fonttype": "none"})
    figure, axes = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.3 * rows), squeeze=False)
    for panel in axes.flat[len(metrics) :]:
        panel.set_visible(False)
    for metric, panel in zip(metrics, axes.flat, strict=False):
        _draw_panel(panel, metric, results["contestants"])
    figure.suptitle(results["title"], fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def _draw_panel(panel: Any, metric: dict[str, Any], contestants: list[dict[str, Any]]) -> None:
    shown = [c for c in contestants if c["values"].get(metric["name"])]
    for place, contestant in enumerate(shown):
        values = list(contestant["values"][metric["name"]].values())
        panel.barh(place, median(values), color=OURS if contestant["is_subject"] else THEIRS, height=0.65)
        panel.plot(values, [place] * len(values), "|", color="#333333", markersize=7, markeredgewidth=0.8)
    panel.set_yticks(range(len(shown)), [c["label"] for c in shown])
    panel.invert_yaxis()
    panel.set_xlim(left=0)
    better = "more is better" if metric["higher_is_better"] else "less is better"
    panel.set_title(metric["title"], fontsize=8, loc="left")
    panel.set_xlabel(f"{metric['unit']} ({better})")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
