"""Routes: how they are registered, and which cannot be."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig
from octavo.plugins import load_extensions, survey
from octavo.spec import RouteEntry

ROUTES = "@hookimpl\ndef octavo_register_routes():\n    return [{}]\n"


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
    assert RouteEntry(method="PUT", path=path, factory=list, summary="").name == f"PUT {path}"


def test_other_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="GET, POST, PUT, DELETE, not 'TRACE'"):
        RouteEntry(method="TRACE", path="/a", factory=list, summary="")  # type: ignore[arg-type]
