"""`GET /v1/models`: the names of the one model that is served. Owns: OpenAI's records. Must never know: the model."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo_openai.http.api_call import APICall


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    max_model_len: int
    """Tokens of the longest sequence, prompt and completion."""


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


async def list_models(api_call: APICall[None]) -> ModelList:
    max_model_len = api_call.service.llm.max_model_len
    return ModelList(data=[_model(api_call, name, max_model_len) for name in api_call.service.model_names])


async def get_model(api_call: APICall[None]) -> Model:
    max_model_len = api_call.service.llm.max_model_len
    return _model(api_call, api_call.service.find_model(api_call.path["model"]), max_model_len)


def _model(api_call: APICall[None], name: str, max_model_len: int) -> Model:
    return Model(id=name, created=api_call.service.created, max_model_len=max_model_len)
