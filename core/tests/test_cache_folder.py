from __future__ import annotations

from pathlib import Path

import pytest

from octavo import cache_folder as module
from octavo.cache_folder import cache_folder


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.delenv("OCTAVO_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "octavo"
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x"
    monkeypatch.setenv("OCTAVO_CACHE_DIR", "")
    assert cache_folder() is None


def test_a_home_that_is_missing_is_not_made(monkeypatch):
    monkeypatch.setenv("HOME", "/no/such/home")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", "~/x")
    with pytest.raises(RuntimeError, match="/no/such/home"):
        cache_folder()
    assert not Path("/no").exists()
