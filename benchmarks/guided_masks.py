"""Time of mask rows and of compilation, grammar backends side by side.

Owns: following a valid instance through a schema's grammar token by token. Must never know: any grammar library; the
backends come through `octavo.spec.grammar` alone.

The instances are written compactly, with the keys in the order of the schema, and so are a path through every
grammar: a row that forbids the instance's next token is counted, for it is an error or a gap of the backend.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from measuring import counted, median, print_table, quantile, rotated
from workloads import NamedSchema

from octavo import LLM, StructuredOutputsParams
from octavo.config import EngineConfig, StructuredOutputsConfig
from octavo.errors import OctavoError
from octavo.plugins import load_extensions
from octavo.spec import GrammarBackend, GrammarMatcher, MaskRows, ProcessorContext, Tokenizer

NUM_DRAFTS = 4


@dataclass(slots=True)
class MaskTimes:
    """Of one backend; microseconds, compilation in milliseconds."""

    compile_ms: list[float] = field(default_factory=list)
    row_us: list[float] = field(default_factory=list)
    """One row a call: plain decoding."""
    draft_row_us: list[float] = field(default_factory=list)
    """For each of the rows of a call with drafts, which also walks over them and back."""
    accept_us: list[float] = field(default_factory=list)
    """For each token that a matcher moves on by."""
    refused: list[str] = field(default_factory=list)
    """Schemas that the backend does not compile, and why."""
    forbidden: list[str] = field(default_factory=list)
    """Instances that its grammar does not let through, and where."""

    def summary(self) -> dict[str, Any]:
        def of(values: Sequence[float]) -> dict[str, float]:
            if not values:
                return {}
            return {
                "median": median(values),
                "p90": quantile(values, 0.9),
                "p99": quantile(values, 0.99),
                "max": max(values),
            }

        return {
            "num_rows": len(self.row_us),
            "compile_ms": of(self.compile_ms),
            "row_us": of(self.row_us),
            "draft_row_us": of(self.draft_row_us),
            "accept_us": of(self.accept_us),
            "refused": self.refused,
            "forbidden": self.forbidden,
        }


def make_backend(name: str, llm: LLM, vocab_size: int, compile_timeout: float) -> GrammarBackend:
    """The backend as an engine would make it, with whatever it starts for its first compilation."""
    extensions = load_extensions(EngineConfig())
    offer = extensions.logits_processors.find(name)
    context = ProcessorContext(
        options=extensions.options_of(offer),
        tokenizer=llm.get_tokenizer(),
        vocab_size=vocab_size,
        device=torch.device("cpu"),
        max_num_seqs=16,
        max_num_draft_tokens=NUM_DRAFTS,
        structured_outputs=StructuredOutputsConfig(compile_timeout=compile_timeout),
    )
    backend = offer.make(context)._backend
    backend.compile(StructuredOutputsParams(json={"type": "null"}))
    return backend


def measure_masks(
    backends: dict[str, GrammarBackend], tokenizer: Tokenizer, vocab_size: int, schemas: Sequence[NamedSchema]
) -> dict[str, MaskTimes]:
    times = {name: MaskTimes() for name in backends}
    for turn, schema in enumerate(counted(schemas, "masks")):
        for name in rotated(list(backends), turn):
            _measure_schema(backends[name], times[name], tokenizer, vocab_size, schema)
    return times


def _measure_schema(
    backend: GrammarBackend, times: MaskTimes, tokenizer: Tokenizer, vocab_size: int, schema: NamedSchema
) -> None:
    started = time.perf_counter()
    try:
        compiled = backend.compile(StructuredOutputsParams(json=schema.schema))
    except OctavoError as error:
        times.refused.append(f"{schema.name}: {error}")
        return
    times.compile_ms.append((time.perf_counter() - started) * 1e3)
    stops = frozenset(tokenizer.eos_token_ids)
    for instance in schema.instances:
        text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        for num_drafts in (0, NUM_DRAFTS):
            stuck = _follow(backend, compiled.matcher(stops), token_ids, vocab_size, num_drafts, times)
            if stuck is not None and num_drafts == 0:
                times.forbidden.append(f"{schema.name}: {text} before {tokenizer.decode(token_ids[stuck:])!r}")


def _follow(
    backend: GrammarBackend,
    matcher: GrammarMatcher,
    token_ids: Sequence[int],
    vocab_size: int,
    num_drafts: int,
    times: MaskTimes,
) -> int | None:
    """Fill rows along `token_ids`, the next `num_drafts` of them as drafts. The first token that is forbidden."""
    row_us = times.draft_row_us if num_drafts else times.row_us
    for i, token_id in enumerate(token_ids):
        drafts = token_ids[i : i + num_drafts]
        bitmask = np.full((1 + len(drafts), -(-vocab_size // 32)), -1, dtype=np.int32)
        work = [MaskRows(matcher, 0, drafts)]
        started = time.perf_counter()
        backend.fill_bitmask(work, bitmask)
        row_us.append((time.perf_counter() - started) * 1e6 / len(bitmask))
        started = time.perf_counter()
        accepted = matcher.accept(token_id)
        times.accept_us.append((time.perf_counter() - started) * 1e6)
        is_allowed = bool(bitmask[0, token_id // 32] >> (token_id % 32) & 1)
        assert accepted == is_allowed, "the bitmask and the matcher disagree"
        if not accepted:
            return i
    return None


def run(llm: LLM, schemas: Sequence[NamedSchema], options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None, "the packaged model has a tokenizer"
    vocab_size = tokenizer.vocab_size
    backends = {name: make_backend(name, llm, vocab_size, options.compile_timeout) for name in options.backends}
    times = measure_masks(backends, tokenizer, vocab_size, schemas)
    rows = []
    for name, t in times.items():
        for what, values in (
            ("mask row, µs", t.row_us),
            (f"mask row among {NUM_DRAFTS + 1}, µs", t.draft_row_us),
            ("accept a token, µs", t.accept_us),
            ("compile, ms", t.compile_ms),
        ):
            if values:
                quantiles = [quantile(values, q) for q in (0.9, 0.99)]
                rows.append([name, what, len(values), median(values), *quantiles, max(values)])
    print_table(["backend", "what", "number", "median", "p90", "p99", "max"], rows)
    for name, t in times.items():
        for line in (*t.refused, *t.forbidden):
            print(f"{name}: {line}")
    return {name: t.summary() for name, t in times.items()}
