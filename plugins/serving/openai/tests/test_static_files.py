"""The files of the page: how they are served, and what can be read off them without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from octavo_openai.http.static_files import page_routes


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(Starlette(routes=page_routes())) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ],
)
def test_a_file_has_its_type_its_policy_and_a_validator(client: TestClient, path: str, content_type: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == content_type
    assert response.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"
    etag = response.headers["etag"]
    for held in (etag, f'W/{etag}, "other"', "*"):
        unchanged = client.get(path, headers={"If-None-Match": held})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == response.content
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(response.content))


def test_nothing_else_is_served(client: TestClient) -> None:
    for path in ("/page/", "/page/other.js", "/page/../static_files.py", "/page/%2e%2e/static_files.py", "/index.html"):
        assert client.get(path).status_code == 404, path
    assert client.post("/").status_code == 405


def sources(ending: str) -> dict[str, str]:
    page = resources.files("octavo_openai").joinpath("page")
    return {file.name: file.read_text("utf-8") for file in page.iterdir() if file.name.endswith(ending)}


def test_the_page_names_no_foreign_host_and_parses_no_html() -> None:
    scripts = sources(".js")
    assert len(scripts) > 5
    for name, text in {**scripts, **sources(".css"), **sources(".html"), **sources(".svg")}.items():
        hosts = set(re.findall(r"https?://([^/\"'\s]*)", text))
        assert hosts <= {"www.w3.org"}, name  # the name of SVG's namespace, which is no address
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )


def test_texts_stand_out_from_their_grounds_in_both_schemes() -> None:
    """WCAG 2.2, criteria 1.4.3 (text, 4.5) and 1.4.11 (what is needed to see a control or a state, 3)."""
    schemes = re.findall(r":root \{(.*?)\}", sources(".css")["style.css"], re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        grounds = ("paper", "surface", "sunken")
        texts = [(ink, ground) for ink in ("ink", "ink-soft") for ground in grounds]
        texts += [("accent-ink", "accent"), ("bad", "bad-soft"), ("bad", "paper"), ("ink", "accent-soft")]
        assert {pair: contrast(colours, *pair) for pair in texts if contrast(colours, *pair) < 4.5} == {}
        shapes = [(mark, "paper") for mark in ("accent", "line-strong", "cell-used", "cell-shared")]
        assert {pair: contrast(colours, *pair) for pair in shapes if contrast(colours, *pair) < 3} == {}


def contrast(colours: dict[str, str], one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colours[colour][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
