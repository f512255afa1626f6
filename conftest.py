"""What holds for the tests of all distributions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo import trial


@pytest.fixture(autouse=True, scope="session")
def nothing_starves() -> Iterator[None]:
    """At idle priority a grammar may never be compiled on a busy machine, and then there is nothing to test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial, "_BRIEF_SECONDS", 60.0)
        patched.setattr(trial, "_PATIENCE", 200.0)
        yield
