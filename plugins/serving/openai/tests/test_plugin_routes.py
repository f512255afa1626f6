"""Routes of other plugins: what the server does for them, and what their handlers' errors become."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from octavo.errors import PluginError
from octavo.extensions import Offer, Origin, Registry
from octavo.spec import HTTPContent, RouteEntry
from octavo_openai.http.app import Application
from octavo_openai.http.route import Route
from octavo_openai.http.static_files import page_routes
from octavo_openai.options import ServerOptions
from octavo_openai.plugin_routes import plugin_routes
from octavo_openai.routes import ROUTES
from octavo_openai.service import Service

Server = Any  # that of conftest.py
SHOUT, SHOUTS = "/v1/shout", "/v1/shouts"


def test_a_record_goes_in_and_a_record_comes_out(server: Server) -> None:
    answer = server.post(SHOUT, text="the inn", tokens=4)
    assert (answer.status_code, answer.json()) == (200, {"text": "THE INN"}), answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]


def test_a_stream_has_an_event_for_each_record(server: Server) -> None:
    with server.client.stream("POST", SHOUTS, json={"text": "the inn" * 150, "tokens": 600}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [json.loads(event.removeprefix("data: ")) for event in response.read().decode().split("\n\n")[:-1]]
    assert len(events) > 1
    assert "".join(event["text"] for event in events) == "THE INN" * 150


def test_parameters_of_the_path_headers_and_other_content(server: Server) -> None:
    answer = server.client.get("/notes/kept", headers={"x-reader": "you"})
    assert (answer.status_code, answer.text) == (200, "a note for you")
    assert answer.headers["content-type"] == "text/plain"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (SHOUT, {"tokens": 2}, 400, "text"),
        (SHOUT, {"text": 5}, 400, "text"),
        (SHOUT, {"text": "a", "tokens": 0}, 400, "max_tokens"),
        (SHOUTS, {"text": "a", "tokens": 0}, 400, "max_tokens"),
        (SHOUT, {"text": ""}, 500, None),
    ],
)
def test_what_is_wrong_is_an_error_like_any_other(
    server: Server, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = server.client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert "nothing to shout" not in answer.text
    assert server.post(SHOUT, text="still here", tokens=1).status_code == 200


def test_a_handlers_own_error(server: Server) -> None:
    answer = server.client.get("/notes/lost")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no note lost"
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("what", ["exit", "base", "cancel", "status", "mapping", "nothing"])
def test_what_no_handler_should_do_is_an_error_of_its_request(server: Server, what: str) -> None:
    answer = server.client.get(f"/bad/{what}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal"), answer.text
    assert server.post(SHOUT, text="still here", tokens=1).status_code == 200


@pytest.mark.parametrize("what", ["exit", "base", "cancel", "status"])
def test_what_no_stream_should_do_is_an_error_of_its_request(server: Server, what: str) -> None:
    answer = server.client.get(f"/bad/0/{what}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal"), answer.text
    answer = server.client.get(f"/bad/1/{what}")
    shout, error = (json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-1])
    assert (answer.status_code, shout, error["error"]["code"]) == (200, {"text": "!"}, "internal")
    assert server.post(SHOUT, text="still here", tokens=1).status_code == 200


def test_a_stream_that_waits_for_nothing_ends_with_its_client(server: Server) -> None:
    with server.client.stream("GET", "/bad/restless") as response:
        assert next(response.iter_lines()) == 'data: {"text":"!"}'
        assert server.client.get("/health").status_code == 200
    assert server.post(SHOUT, text="still here", tokens=1).status_code == 200


def test_keys_and_metrics_are_the_servers(start: Any) -> None:
    server = start(api_key=["secret"])
    assert server.post(SHOUT, text="a").status_code == 401
    assert server.client.delete("/notes/kept").status_code == 401
    assert server.client.get("/notes/kept", headers={"x-reader": "you"}).status_code == 200
    assert server.post(SHOUT, {"authorization": "Bearer secret"}, text="a", tokens=1).status_code == 200
    metrics = server.client.get("/metrics", headers={"x-api-key": "secret"}).text
    assert 'path="/notes/{id}"' in metrics
    assert "/notes/kept" not in metrics


def test_a_client_that_leaves_ends_its_requests(server: Server) -> None:
    for path in (SHOUT, SHOUTS):
        with server.send(path, text="long " * 300, tokens=3000):
            server.until(lambda: server.service.llm.num_unfinished == 1)
        server.until_idle(seconds=3)


def test_a_factory_that_takes_its_time_keeps_nobody_waiting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> list[Route]:
        has_begun.set()
        assert may_end.wait(20)
        return plugin_routes(*arguments)

    monkeypatch.setattr("octavo_openai.serve.plugin_routes", slowly)
    made = type(server)({}, {})
    try:
        assert has_begun.wait(20)
        assert made.client.get("/health").status_code == 503
        assert made.post(SHOUT, text="a").json()["error"]["code"] == "model_loading"
        may_end.set()
        made.wait_ready()
        assert made.post(SHOUT, text="a", tokens=1).status_code == 200
    finally:
        may_end.set()
        made.close()


def content_of(document: dict[str, Any], path: str, method: str) -> set[str]:
    return set(document["paths"][path][method]["responses"]["200"]["content"])


def test_they_are_described(server: Server) -> None:
    document = server.client.get("/openapi.json").json()
    shout = document["paths"][SHOUT]["post"]
    assert shout["summary"] == "Loud"
    assert shout["operationId"] == "post_v1_shout"
    assert shout["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Shout"}
    assert content_of(document, SHOUT, "post") == {"application/json"}
    assert content_of(document, SHOUTS, "post") == {"application/json", "text/event-stream"}
    assert content_of(document, "/bad/{what}", "get") == {"application/json", "text/event-stream"}, "without a record"
    assert {"Shouted", "UndescribedEvent"} <= document["components"]["schemas"].keys()
    assert set(document["paths"]["/notes/{id}"]) == {"get", "delete"}
    assert "security" not in document["paths"]["/notes/{id}"]["get"]


def model_with(entry: RouteEntry) -> Any:
    routes = Registry("route", {entry.name: Offer(entry, Origin("mine", "dist-mine", "1.0"))})
    return SimpleNamespace(extensions=SimpleNamespace(routes=routes, options_of=lambda _: None))


class Unknown:
    pass


class Indescribable(msgspec.Struct):
    what: Unknown


def test_what_cannot_be_served_is_refused() -> None:
    entry = RouteEntry(method="POST", path="/a", factory=lambda *_: str, summary="", body=Indescribable)
    with pytest.raises(PluginError, match=r"mine \(dist-mine 1.0\) offers POST /a, whose records have no JSON schema"):
        plugin_routes(model_with(entry), lambda method, path: False)
    entry = RouteEntry(method="POST", path="/a", factory=lambda *_: "text", summary="")
    with pytest.raises(PluginError, match="makes 'text' for POST /a, which cannot be called"):
        plugin_routes(model_with(entry), lambda method, path: False)


def test_the_servers_own_come_first() -> None:
    async def answer(api_call: Any) -> HTTPContent:
        return HTTPContent(b"of a plugin", "text/plain")

    paths = ("/{rest:path}", "/v1/messages")
    app = Application(Service(ServerOptions()), ROUTES, page_routes())
    app.complete([Route(method="GET", path=path, handler=answer, summary="") for path in paths])

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            assert (await client.get("/anything/else")).text == "of a plugin"
            assert (await client.get("/v1/messages")).text == "of a plugin"
            assert (await client.get("/version")).json()["version"]
            assert "<html" in (await client.get("/")).text
            assert (await client.post("/v1/messages", json={})).json()["type"] == "error"  # as Anthropic writes them

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("method", "path", "is_refused"),
    [
        ("GET", "/health", True),
        ("GET", "/openapi.json", True),
        ("GET", "/v1/models/mine", True),  # the server's own path has a parameter there
        ("GET", "/v1/models/{name}/{part:path}", True),
        ("DELETE", "/health", False),
        ("GET", "/health/{part}", False),
    ],
)
def test_what_the_server_answers_itself_stays_its_own(method: Any, path: str, is_refused: bool) -> None:
    entry = RouteEntry(method=method, path=path, factory=lambda *_: str, summary="")
    llm = model_with(entry)
    app = Application(Service(ServerOptions()), ROUTES, page_routes())
    if is_refused:
        message = rf"mine \(dist-mine 1.0\) offers {re.escape(entry.name)}, .* = \[\"mine\"\]"
        with pytest.raises(PluginError, match=message):
            plugin_routes(llm, app.answers)
    else:
        assert [route.path for route in plugin_routes(llm, app.answers)] == [path]
