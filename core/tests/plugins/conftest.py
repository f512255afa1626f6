"""A folder of fabricated distributions that stands for everything installed."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import importlib_metadata
import pytest

_serial = itertools.count()


class Site:
    """Adds plugins as installed distributions would be laid out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        requires: tuple[str, ...] = ("octavo>=0.1",),
        module: str | None = None,
    ) -> str:
        """Install a plugin whose module has this source; the module's name."""
        distribution = distribution or f"dist-{name}"
        if module is None:
            module = f"fake_plugin_{next(_serial)}"
            (self.path / f"{module}.py").write_text(
                f"from octavo.hookspecs import hookimpl\nfrom octavo.spec import *\n{source}"
            )
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(f"[octavo]\n{name} = {module}\n")
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def entry_points(group: str) -> list[importlib_metadata.EntryPoint]:
        found = importlib_metadata.distributions(path=[str(folder)])
        return [point for one in found for point in one.entry_points.select(group=group)]

    monkeypatch.setattr(importlib_metadata, "entry_points", entry_points)
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if name.startswith("fake_plugin_"):
            del sys.modules[name]


def drafter(name: str) -> str:
    """Source of a plugin that offers one drafter."""
    return f"""
@hookimpl
def octavo_register_drafters():
    return [DrafterEntry(name={name!r}, factory="json:loads")]
"""


@pytest.fixture(name="drafter")
def _drafter():
    return drafter
