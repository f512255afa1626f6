"""`octavo config` shows every value but secrets."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from msgspec import Meta

from octavo.cli import main
from octavo.config import Section
from octavo.errors import ConfigError
from octavo.plugins import leaves_of


class Options(Section, frozen=True):
    key: Annotated[tuple[str, ...], Meta(description="A key.", extra={"secret": True})] = ()
    name: Annotated[str, Meta(description="A name.")] = "x"


def test_a_secret_is_not_shown_but_that_there_is_one_is() -> None:
    key, name = leaves_of(Options)["key"], leaves_of(Options)["name"]
    assert key.shown(("sesame",)) == "***"
    assert key.shown(()) == ()
    assert name.shown("sesame") == "sesame"
    with pytest.raises(ConfigError) as caught:
        key.convert({"sesame": 1})
    assert "sesame" not in str(caught.value)


def test_the_servers_key_is_one(capsys) -> None:
    pytest.importorskip("octavo_openai")
    assert main(["config", "--json", "--plugins.openai.api_key", "sesame"]) == 0
    out = capsys.readouterr().out
    assert "sesame" not in out
    assert json.loads(out)["plugins.openai.api_key"] == {"value": "***", "source": "command line"}
