"""Fixtures for plugins' tests; active in every environment that has Octavo and pytest.

Owns: the fixtures. Must never know: torch, until a fixture that needs it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def packaged_model() -> str:
    """Path of the packaged SmolLM2-135M-Instruct; skips where it is not installed."""
    from octavo.errors import ModelLoadError
    from octavo.loading.locate import locate

    try:
        return locate(None)
    except ModelLoadError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model("llama", seed=1, num_hidden_layers=3)`: the folder of a tiny random model; same call, same folder."""
    from octavo.testing.tiny_models import write_tiny_model

    made: dict[Any, Path] = {}

    def make(family: str = "llama", seed: int = 0, **changes: Any) -> Path:
        key = repr((family, seed, sorted(changes.items())))
        if key not in made:
            made[key] = write_tiny_model(tmp_path_factory.mktemp(f"tiny-{family}"), family, seed, **changes)
        return made[key]

    return make
