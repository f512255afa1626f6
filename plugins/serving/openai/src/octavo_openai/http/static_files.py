"""The files of the page, as routes.

Owns: which files there are, their content types, validators and security headers. Must never know: what the page shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# By hand: the system's table, which `mimetypes` reads, may say text/plain for scripts, and browsers refuse those.
_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_HEADERS = {
    # The page speaks to this server and to nobody else, runs no inline code, and cannot turn text into HTML.
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Kept by the browser but asked for again each time: after an upgrade nobody has half of the old page.
    "Cache-Control": "no-cache",
}

_Endpoint = Callable[[Request], Awaitable[Response]]


def page_routes() -> list[Route]:
    """`/` and `/page/<file>`, for GET and HEAD. The files are read now, once; none needs the API key."""
    routes = []
    for file in resources.files("octavo_openai").joinpath("page").iterdir():
        content_type = _CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is None:
            continue  # what an editor or the system left there
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        routes.append(Route(path, _endpoint(file.read_bytes(), content_type), methods=["GET"]))
    return routes


def _endpoint(content: bytes, content_type: str) -> _Endpoint:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": etag}

    async def serve(request: Request) -> Response:
        if _matches(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "Content-Type": content_type})

    return serve


def _matches(if_none_match: str, etag: str) -> bool:
    """Whether the browser holds this version; proxies may have made its tag a weak one (RFC 9110, section 13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
