"""What `GET /status` says, made by hand."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from octavo.extensions import Broken, Origin
from octavo.snapshot import BlockMap, EngineSnapshot, SequenceSnapshot
from octavo_openai.observation.metrics import EngineMetrics
from octavo_openai.observation.status import MAX_CELLS, Totals, make_status

TOTALS = {
    "prompt_tokens": 0,
    "generation_tokens": 0,
    "prefix_queries": 0,
    "prefix_hits": 0,
    "draft_tokens": 0,
    "accepted_tokens": 0,
    "preemptions": 0,
    "finished": {"stop": 0, "length": 0, "abort": 0, "error": 0},
}

SEQUENCE = SequenceSnapshot(
    sequence_id=3,
    request_id="chatcmpl-a",
    state="running",
    num_prompt_tokens=90,
    num_tokens=120,
    num_computed_tokens=119,
    num_blocks=8,
    num_preemptions=1,
)


def told(snapshot: EngineSnapshot, totals: dict | None = None) -> dict:
    origin = Origin("cpu", "octavo-cpu", "0.1.0")
    broken = [Broken(Origin("flash", "octavo-flash", "0.2.0"), "needs a GPU", "uninstall it")]
    made = make_status(
        snapshot,
        msgspec.convert(totals or TOTALS, Totals),
        model="Tiny",
        version="0.1.0",
        uptime=12.34567,
        description={"device": "cpu"},
        max_num_seqs=128,
        plugins=[origin],
        broken=broken,
    )
    return json.loads(msgspec.json.encode(made))


def blocks_told(states: bytes) -> dict:
    [group] = told(EngineSnapshot(sequences=(), groups=(BlockMap(block_size=16, states=states),)))["blocks"]
    return group


def test_the_whole_answer() -> None:
    snapshot = EngineSnapshot(sequences=(SEQUENCE,), groups=(BlockMap(block_size=16, states=bytes([2, 2, 3, 1, 0])),))
    figures = TOTALS | {"prompt_tokens": 90, "finished": {"stop": 3, "length": 2, "abort": 1, "error": 0}}
    assert told(snapshot, figures) == {
        "model": "Tiny",
        "version": "0.1.0",
        "uptime": 12.346,
        "description": {"device": "cpu"},
        "max_num_seqs": 128,
        "sequences": [
            {
                "id": 3,
                "request": "chatcmpl-a",
                "state": "running",
                "prompt_tokens": 90,
                "tokens": 120,
                "computed": 119,
                "blocks": 8,
                "preemptions": 1,
            }
        ],
        "blocks": [
            {
                "block_size": 16,
                "total": 5,
                "per_cell": 1,
                "cells": "uusc.",
                "counts": {"free": 1, "cached": 1, "used": 2, "shared": 1},
            }
        ],
        "totals": figures,
        "plugins": [
            {"name": "cpu", "distribution": "octavo-cpu", "version": "0.1.0", "state": "loaded", "reason": None},
            {
                "name": "flash",
                "distribution": "octavo-flash",
                "version": "0.2.0",
                "state": "broken",
                "reason": "needs a GPU; uninstall it",
            },
        ],
    }


def test_an_engine_without_blocks_or_sequences() -> None:
    answer = told(EngineSnapshot(sequences=(), groups=()))
    assert (answer["sequences"], answer["blocks"]) == ([], [])
    assert blocks_told(b"")["cells"] == ""


@pytest.mark.parametrize("total", [1, MAX_CELLS, MAX_CELLS + 1, 2 * MAX_CELLS, 2 * MAX_CELLS + 1, 10 * MAX_CELLS - 7])
def test_a_cell_shows_the_busiest_of_its_blocks(total: int) -> None:
    random.seed(total)
    states = bytes(random.choices(range(4), weights=[60, 8, 4, 1], k=total))
    group = blocks_told(states)
    per_cell = group["per_cell"]
    assert len(group["cells"]) <= MAX_CELLS
    assert (len(group["cells"]) - 1) * per_cell < total <= len(group["cells"]) * per_cell
    assert per_cell == 1 or -(-total // (per_cell - 1)) > MAX_CELLS  # no coarser than it must be
    busiest = [".cus"[max(states[start : start + per_cell])] for start in range(0, total, per_cell)]
    assert group["cells"] == "".join(busiest)
    assert group["counts"] == {n: states.count(i) for i, n in enumerate(["free", "cached", "used", "shared"])}


def test_totals_begin_at_nothing() -> None:
    assert msgspec.to_builtins(EngineMetrics("Tiny").totals()) == TOTALS
