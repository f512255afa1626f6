"""The description of the API, made of the routes and their records.

Owns: how records become an OpenAPI document. Must never know: what any route does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from octavo_openai.http.route import Route
from octavo_openai.options import ServerOptions

_ERRORS = {
    400: "A field of the request is wrong; the message names it",
    401: "The API key is missing or wrong",
    404: "There is no such model",
    413: "The body is too long",
    415: "The body is not announced as JSON",
    429: "Too many requests wait already",
    500: "The server failed",
    503: "The model is being loaded, the server is about to stop, or the engine has ended",
    504: "The request took too long",
}
_NEVER_WITHOUT_BODY = (400, 413, 415, 429, 504)


@functools.cache
def openapi_document(routes: tuple[Route, ...]) -> bytes:
    """As JSON."""
    kinds = {kind for r in routes for kind in (r.body, r.answer, r.errors.record, *r.events) if kind is not None}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of: dict[Any, Any] = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version("octavo-openai")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return msgspec.json.encode(document)


def _operation(route: Route, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"application/json": {"schema": schema_of.get(route.answer, {})}}
    if route.events:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": answer}}
    for status, text in _ERRORS.items():
        if route.body is not None or status not in _NEVER_WITHOUT_BODY:
            content = {"application/json": {"schema": schema_of[route.errors.record]}}
            responses[str(status)] = {"description": text, "content": content}
    operation: dict[str, Any] = {
        "operationId": route.operation_id or route.handler.__name__,
        "summary": route.summary,
        "responses": responses,
    }
    if names := re.findall(r"{(\w+)", route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[route.body]}},
        }
    if not route.is_open(ServerOptions()):
        operation["security"] = [{}, {"key": []}, {"header": []}]
    return operation
