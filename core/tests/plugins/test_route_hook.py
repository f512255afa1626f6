"""Routes: how they are registered, and which cannot be."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.errors import PluginError
from octavo.plugins import load_extensions, survey
from octavo.spec import HTTPContent, HTTPError, RouteEntry

T = TypeVar("T")
ROUTES = "@hookimpl\ndef octavo_register_routes():\n    return [{}]\n"


class Page(msgspec.Struct, Generic[T]):
    first: T


def route(method: str = "POST", path: str = "/v1/rerank") -> str:
    return f"RouteEntry(method={method!r}, path={path!r}, factory=list, summary='order')"


def test_a_path_may_have_several_methods(site) -> None:
    site.add("mine", ROUTES.format(f"{route()}, {route('GET')}"))
    site.add("theirs", ROUTES.format(route("DELETE")))
    extensions = load_extensions(EngineConfig())
    assert list(extensions.routes) == ["POST /v1/rerank", "GET /v1/rerank", "DELETE /v1/rerank"]
    (report,) = (report for report in survey(EngineConfig()).plugins() if report.name == "theirs")
    assert [(offer.kind, offer.name) for offer in report.offers] == [("route", "DELETE /v1/rerank")]


@pytest.mark.parametrize(
    "path", ["/", "rerank", "/v1/", "/v1//x", "/a b", "/{}", "/{Id}", "/{id:int}", "/x?y", "/a{b}"]
)
def test_a_path_that_cannot_be_breaks_its_plugin(site, path: str) -> None:
    site.add("mine", ROUTES.format(route(path=path)))
    (broken,) = load_extensions(EngineConfig()).broken
    assert "octavo_register_routes raised ValueError" in broken.reason
    assert "write it like /v1/rerank" in broken.reason


@pytest.mark.parametrize("path", ["/a", "/v1/a-b_c.d~e", "/{id}", "/notes/{id}/lines/{line}", "/files/{name:path}"])
def test_paths_that_can_be(path: str) -> None:
    assert RouteEntry(method="PUT", path=path, factory=list, summary="").path == path


def test_names_of_parameters_tell_no_routes_apart(site) -> None:
    site.add("mine", ROUTES.format(route("GET", "/notes/{id}")))
    site.add("theirs", ROUTES.format(route("GET", "/notes/{name}")))
    with pytest.raises(PluginError, match=r"GET /notes/{}.*dist-mine 1.0.*dist-theirs 1.0"):
        load_extensions(EngineConfig())
    assert RouteEntry(method="GET", path="/a/{b:path}", factory=list, summary="").name == "GET /a/{:path}"


def test_parameters_of_one_path_have_different_names() -> None:
    with pytest.raises(ValueError, match="two parameters of one name"):
        RouteEntry(method="GET", path="/notes/{id}/lines/{id:path}", factory=list, summary="")


@pytest.mark.parametrize("field", ["body", "answer"])
def test_bodies_and_answers_are_records(field: str) -> None:
    for kind in (Page[int], Page):
        assert RouteEntry(method="PUT", path="/a", factory=list, summary="", **{field: kind})  # type: ignore[arg-type]
    for no_record in (dict, dict[str, int], "Page", Page(1)):
        with pytest.raises(ValueError, match=r"a msgspec\.Struct, not"):
            RouteEntry(method="PUT", path="/a", factory=list, summary="", **{field: no_record})  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [0, 99, 200, 204, 399, 600, 1000, -404, 404.5, "404", None])
def test_an_error_has_the_status_of_one(status: Any) -> None:
    with pytest.raises(ValueError, match="from 400 to 599"):
        HTTPError(status, "no")
    assert [HTTPError(good, "no").status for good in (400, 599, HTTPStatus.NOT_FOUND)] == [400, 599, 404]


def test_content_is_bytes_of_a_type() -> None:
    with pytest.raises(TypeError, match="is bytes, not str"):
        HTTPContent("text", "text/plain")  # type: ignore[arg-type]
    for content_type in ("text/plain\r\nset-cookie: a", "text/\N{SNOWMAN}"):
        with pytest.raises(ValueError, match="is no content type"):
            HTTPContent(b"text", content_type)


def test_other_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="GET, POST, PUT, DELETE, not 'TRACE'"):
        RouteEntry(method="TRACE", path="/a", factory=list, summary="")  # type: ignore[arg-type]
