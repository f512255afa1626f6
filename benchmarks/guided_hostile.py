"""How fast fifteen requests go beside one whose constraint is hostile, against fifteen alone.

Owns: the constraints and the comparison. Must never know: any grammar library.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from measuring import median, print_table, rotated

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import OctavoError

NUM_NEIGHBOURS = 15
ALONE = "alone"
_CHAIN = "\n".join(["root ::= r0", *(f'r{i} ::= r{i + 1} "a" | "b"' for i in range(8000)), 'r8000 ::= "c"'])
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "EBNF that never ends compiling": ({"grammar": _CHAIN}, "xgrammar"),
    "schema that never ends compiling": ({"json": {"type": "integer", "multipleOf": 999_983}}, "llguidance"),
    "exponential regex": ({"regex": "(((a{0,999}){0,999}){0,999}b|(a|aa)+){0,999}c"}, "xgrammar"),
    "regex that grows on the way": ({"regex": "((a{0,100}){0,100}){0,100}"}, "llguidance"),
    "schema of 1 MB": ({"json": {"enum": [f"{i:0100}" for i in range(10_000)]}}, "xgrammar"),
}


def run(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    """Prints and returns the neighbours' tokens per second beside each constraint, as ratios to those alone."""
    seconds: dict[str, list[float]] = {name: [] for name in (ALONE, *HOSTILE)}
    errors: dict[str, str] = {}
    for repeat in range(options.repeats):
        for name in rotated(list(seconds), repeat):
            spent, error = _beside(llm, name, options.max_tokens)
            seconds[name].append(spent)
            errors[name] = error
    alone = median(seconds[ALONE])
    result = {name: {"ratio": alone / median(spent), "error": errors[name]} for name, spent in seconds.items()}
    print_table(["beside", "ratio", "its error"], [[n, r["ratio"], r["error"][:90]] for n, r in result.items()])
    return result


def _beside(llm: LLM, name: str, max_tokens: int) -> tuple[float, str]:
    """Seconds until all neighbours are done, and the hostile request's error."""
    engine, error = llm.engine, ""
    engine.reset_prefix_cache()
    started = time.perf_counter()
    if name != ALONE:
        constraint, backend = HOSTILE[name]
        structured = StructuredOutputsParams(**constraint, backend=backend)
        try:
            engine.add_request("hostile", [41], SamplingParams(max_tokens=max_tokens, structured_outputs=structured))
        except OctavoError as refused:
            error = str(refused)
    plain = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    waiting = {str(i) for i in range(NUM_NEIGHBOURS)}
    for request_id in waiting:
        engine.add_request(request_id, [40, 300 + int(request_id)] * 8, plain)
    seconds = 0.0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished and output.request_id == "hostile":
                error = output.outputs[0].error or "none"
            elif output.finished:
                waiting.discard(output.request_id)
                seconds = seconds if waiting else seconds or time.perf_counter() - started
    return seconds, error
