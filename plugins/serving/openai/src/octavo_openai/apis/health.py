"""`GET /health` and `GET /version`. Owns: their records. Must never know: what keeps the engine from answering."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

import msgspec

from octavo_openai.http.api_call import APICall


class Health(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, kw_only=True):
    version: str


async def get_health(api_call: APICall[None]) -> Health:
    """An error (503) while the model is being loaded, while the server drains, and once the engine has ended."""
    api_call.service.check_ready()
    return Health()


async def get_version(api_call: APICall[None]) -> Version:
    return Version(version=version("octavo"))
