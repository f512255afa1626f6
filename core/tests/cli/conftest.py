"""Plugins as source text, installed as the only ones; and the environment without Octavo's variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import importlib_metadata
import pytest

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def entry_points(group: str) -> list[importlib_metadata.EntryPoint]:
        found = importlib_metadata.distributions(path=[str(folder)])
        return [point for one in found for point in one.entry_points.select(group=group)]

    monkeypatch.setattr(importlib_metadata, "entry_points", entry_points)

    def add(name: str, source: str, requires: str = "octavo>=0.1") -> str:
        module = f"cli_fake_{tmp_path.name}_{name}"
        (folder / f"{module}.py").write_text(
            f"from octavo.hookspecs import hookimpl\nfrom octavo.spec import *\n{source}"
        )
        info = folder / f"dist_{name}-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 2.0\nRequires-Dist: {requires}\n"
        )
        (info / "entry_points.txt").write_text(f"[octavo]\n{name} = {module}\n")
        return module

    return add
