"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from octavo import hookspecs

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "octavo"
SOURCES = [*CORE.rglob("*.py"), *(ROOT / "plugins").glob("*/*/src/**/*.py")]
HOOKS = [name for name in dir(hookspecs) if name.startswith("octavo_")]
FORBIDDEN_NAMES = re.compile(r"(utils?|common|misc|helpers?)$")


def test_there_are_sources_and_hooks() -> None:
    assert len(SOURCES) > 50
    assert len(HOOKS) >= 15


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_docstring_a_line_in_the_guide_and_a_test(hook: str) -> None:
    assert (getattr(hookspecs, hook).__doc__ or "").strip()
    assert f"`{hook}`" in (ROOT / "docs" / "plugins.md").read_text()
    tests = [*(ROOT / "core" / "tests").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    users = [p for p in [*tests, *(CORE / "testing").rglob("*.py")] if p != Path(__file__) and hook in p.read_text()]
    assert users, f"no test uses {hook}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_says_what_it_is_and_stays_small(path: Path) -> None:
    text = path.read_text()
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert not FORBIDDEN_NAMES.search(path.stem), f"{path.stem} says nothing about what it owns"
    limit = 330 if CORE in path.parents else 400
    assert len(text.splitlines()) <= limit, f"{path} has more than {limit} lines: which noun wants a room of its own?"


def test_every_module_of_core_is_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in CORE.iterdir():
        if path.name.startswith("__") or path.name == "py.typed":
            continue
        assert f"`{path.name}/`" in page or f"{path.name}/" in page or f"`{path.name}`" in page, path.name


def test_every_plugin_has_its_papers() -> None:
    for manifest in (ROOT / "plugins").glob("*/*/pyproject.toml"):
        folder = manifest.parent
        package = next((folder / "src").iterdir())
        assert (folder / "README.md").exists(), folder
        assert (package / "py.typed").exists(), folder
        assert list((folder / "tests").glob("test_*.py")), folder
        assert '"octavo>=0.1,<0.2"' in manifest.read_text(), folder
