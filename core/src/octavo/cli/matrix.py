"""`octavo plugins matrix`: the installed plugins' features in every pair, tried on a scripted model.

Owns: which plugins take part, and how the table is printed. Must never know: how a combination is judged.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

from octavo.cli.tables import table
from octavo.config import EngineConfig
from octavo.extensions import Extensions
from octavo.plugins import load_extensions

if TYPE_CHECKING:
    from octavo.testing.matrix import Combination, Verdict


def run_matrix(config: EngineConfig, as_json: bool) -> int:
    """Try the drafters and grammar backends that `config` loads; exit code 1 if a combination changes tokens."""
    from octavo.testing.matrix import Matrix  # brings torch

    extensions = load_extensions(config)
    matrix = Matrix(
        drafters=[name for name, offer in extensions.drafters.items() if offer.entry.rewinds],
        grammars=_grammars(extensions),
        autoload_plugins=config.autoload_plugins,
        disable_plugins=config.disable_plugins,
        override_plugins=config.override_plugins,
        options=config.plugins,
    )
    results = [(combination, matrix.check(combination)) for combination in matrix.combinations()]
    if as_json:
        print(json.dumps([{**c, **dataclasses.asdict(verdict)} for c, verdict in results], indent=2))
    else:
        heads = [factor.upper() for factor in matrix.factors]
        print(table([*heads, "TOKENS"], [[*c.values(), str(verdict)] for c, verdict in results]))
        print()
        print("\n".join(_summary(results)))
    return 0 if all(verdict.holds or verdict.refused for _, verdict in results) else 1


def _grammars(extensions: Extensions) -> list[str]:
    """Each grammar backend with each kind of constraint that it has and that is tried."""
    from octavo.testing.matrix import CONSTRAINTS

    offers = extensions.logits_processors.items()
    return [f"{name} {kind}" for name, offer in offers for kind in CONSTRAINTS if kind in offer.entry.grammar_kinds]


def _summary(results: list[tuple[Combination, Verdict]]) -> list[str]:
    """How many hold, and the pairs that no combination makes work, with a reason."""
    works: dict[tuple[Any, Any], bool] = {}
    reasons: dict[tuple[Any, Any], str] = {}
    for combination, verdict in results:
        for pair in itertools.combinations(combination.items(), 2):
            works[pair] = works.get(pair, False) or verdict.holds
            reasons[pair] = str(verdict)
    refused = [pair for pair, work in works.items() if not work]
    lines = [
        f"{len(results)} combinations hold all {len(works)} pairs; tokens equal to the plain path in "
        f"{sum(verdict.holds for _, verdict in results)}; pairs that do not work: {len(refused)}"
    ]
    for pair in refused:
        (a, x), (b, y) = pair
        lines.append(f"- {a} {x} with {b} {y}: {reasons[pair]}")
    return lines
