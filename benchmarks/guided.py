"""Guided decoding on the packaged model: time per mask row, throughput, validity, and neighbours of hostile grammars.

    python benchmarks/guided.py --parts masks
    python benchmarks/guided.py --parts validity --backends xgrammar --drafters none,ngram --limit 50

Exit status 1 if an output is not valid against its schema, or a schema is refused.

Owns: the options and the throughput part. Must never know: any grammar library.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import guided_hostile
import guided_masks
import guided_validity
from guided_validity import guided_params, messages_for
from measuring import median, print_table, rotated, write_json
from workloads import NamedSchema, schemas

from octavo import LLM, SamplingParams

PARTS = ("masks", "throughput", "validity", "hostile")
PLAIN = "unguided"


def throughput(llm: LLM, chosen: Sequence[NamedSchema], options: argparse.Namespace) -> dict[str, Any]:
    """Requests at once, guided by one backend or another or not at all, with the same number of tokens each.

    The numbers of tokens are those of the first backend; what another backend writes may be longer or shorter, so
    each has unguided runs of its own.
    """
    messages, rows, result = [messages_for(schema) for schema in chosen], [], {}
    for backend in options.backends:
        guided = [guided_params(schema, backend, 0.0, options.max_tokens) for schema in chosen]
        first_seconds, num_tokens = _timed(llm, messages, guided)
        plain = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in num_tokens]
        arms = {PLAIN: plain, backend: guided}
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for repeat in range(options.repeats):
            for name in rotated(list(arms), repeat):
                spent, counts = _timed(llm, messages, arms[name])
                assert counts == num_tokens, "the same requests gave another number of tokens"
                seconds[name].append(spent)
        total = sum(num_tokens)
        rates = {name: total / median(spent) for name, spent in seconds.items()}
        entry = {
            "requests": len(chosen),
            "tokens": total,
            "unguided_tokens_per_second": rates[PLAIN],
            "guided_tokens_per_second": rates[backend],
            "ratio": rates[backend] / rates[PLAIN],
            "ratio_when_first_compiled": total / first_seconds / rates[PLAIN],
        }
        result[backend] = entry
        rows.append([backend, *entry.values()])
    header = ["backend", "requests", "tokens", "unguided tok/s", "guided tok/s", "ratio", "ratio of first run"]
    print_table(header, rows)
    return result


def _timed(
    llm: LLM, messages: Sequence[Sequence[dict[str, str]]], params: Sequence[SamplingParams]
) -> tuple[float, list[int]]:
    """Seconds and tokens of each answer, with a cold prefix cache."""
    llm.engine.reset_prefix_cache()
    started = time.perf_counter()
    outputs = llm.chat(messages, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    for output in outputs:
        assert output.outputs[0].error is None, output.outputs[0].error
    return seconds, [len(output.outputs[0].token_ids) for output in outputs]


def main() -> int:
    options = _parse()
    chosen = schemas()[: options.limit]
    result: dict[str, Any] = {}
    if {"masks", "throughput", "hostile"} & set(options.parts):
        llm = LLM(memory=options.memory)
        if "masks" in options.parts:
            result["masks"] = guided_masks.run(llm, chosen, options)
        if "throughput" in options.parts:
            result["throughput"] = throughput(llm, spread(chosen, options.requests), options)
        if "hostile" in options.parts:
            result["hostile"] = guided_hostile.run(llm, options)
        llm.shutdown()
    if "validity" in options.parts:
        result["validity"] = guided_validity.run(chosen, options)
    write_json(options.json, {"options": vars(options), **result})
    faults = [*result.get("validity", {}).values(), *result.get("masks", {}).values()]
    return int(any(f.get("wrong") or f.get("errors") or f.get("refused") or f.get("forbidden") for f in faults))


def spread(chosen: Sequence[NamedSchema], number: int) -> list[NamedSchema]:
    """So many schemas, taken at equal distances."""
    return [chosen[i * len(chosen) // number] for i in range(number)]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--backends", default="xgrammar,llguidance", help="grammar backends (default: %(default)s)")
    parser.add_argument("--drafters", default="none,ngram", help="of validity (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="only the first schemas")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind in throughput and hostile")
    parser.add_argument("--requests", type=int, default=16, help="at once in throughput")
    parser.add_argument("--max-tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--compile-timeout", type=float, default=10.0, help="seconds for one grammar, in masks")
    parser.add_argument("--memory", default="1GiB", help="KV cache of each engine")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    options = parser.parse_args()
    for name, known in (("parts", PARTS), ("backends", None), ("drafters", None)):
        names = [part.strip() for part in getattr(options, name).split(",") if part.strip()]
        setattr(options, name, names)
        if known is not None and set(names) - set(known):
            parser.error(f"--{name}: there is {', '.join(known)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
