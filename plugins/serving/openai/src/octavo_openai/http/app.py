"""The ASGI application: from an HTTP request to a handler, and from what it returns or raises to an answer.

Owns: keys, ids, limits and errors that all routes have in common. Must never know: what any route does.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.spec import HTTPContent, HTTPMethod
from octavo_openai.errors import APIError, as_api_error
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import APICall
from octavo_openai.http.bodies import decode_body, refuse_unknown
from octavo_openai.http.exchange import CLIENT_LEFT, REQUEST_ID_HEADER, ClientLeft, Exchange
from octavo_openai.http.openapi import openapi_document
from octavo_openai.http.request_log import log_request
from octavo_openai.http.route import Route
from octavo_openai.service import Service, still_loading

logger = logging.getLogger("octavo_openai")

UNKNOWN_FIELDS_HEADER = "x-octavo-unknown-fields"
_MAX_UNKNOWN_SHOWN = 8
_LAST_WORDS = 1.0
"""Seconds that the errors of requests which were stopped may take to be sent."""
_EXCHANGE, _API_CALL = "octavo.exchange", "octavo.api_call"
"""Where the scope holds them."""

_encode = msgspec.json.Encoder().encode


class Application:
    """Answers HTTP requests with a service, by `routes`, their description and, without a key, the files of a page.

    Until `complete` has added the routes that are not known before the model is loaded, a path that is not there gets
    the answer of all paths meanwhile: 503, the model is being loaded.
    """

    def __init__(self, service: Service, routes: Sequence[Route], page: Sequence[StarletteRoute] = ()) -> None:
        self.service = service
        description = Route(
            method="GET",
            path="/openapi.json",
            handler=self._describe,
            operation_id="get_openapi",
            summary="This description",
        )
        self._routes: tuple[Route, ...] = (*routes, description)
        self._late_routes: tuple[Route, ...] = ()
        self._page = page
        self._polled = {route.path for route in routes if route.is_polled} | {route.path for route in page}
        self._is_complete = False
        self._live: set[Exchange] = set()
        self._connect()

    def answers(self, method: str, path: str) -> bool:
        """Whether there is a route or a file of the page for this path, which may have parameters itself."""
        scope = {"type": "http", "method": method, "path": path}
        return any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)

    def complete(self, routes: Sequence[Route]) -> None:
        """Add the routes that are known only now; from here on a path that is not there is a 404."""
        self._late_routes = tuple(routes)
        self._is_complete = True
        self._connect()

    def _connect(self) -> None:
        own, late = map(self._endpoints, (self._routes, self._late_routes))
        self._router = Router([*own, *self._page, *late], redirect_slashes=False)  # the first that matches answers
        self._errors = {route.path: route.errors for route in (*self._late_routes, *self._routes)}

    def _endpoints(self, routes: Sequence[Route]) -> list[StarletteRoute]:
        return [StarletteRoute(r.path, _Endpoint(self.service, r), methods=[r.method]) for r in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server is configured to speak nothing else"
        started = time.monotonic()
        exchange = Exchange(scope, receive, send)
        exchange.errors = self._errors.get(scope["path"], exchange.errors)
        scope["app"], scope[_EXCHANGE] = self, exchange
        self._live.add(exchange)
        error: APIError | None = None
        try:
            error = await self._answer(exchange, receive)
        finally:
            self._live.discard(exchange)
            self._log(exchange, time.monotonic() - started, error)

    async def drain(self, seconds: float) -> None:
        """Wait until every request has its answer; those that take longer end with an error."""
        await self._until_idle(seconds)
        for exchange in self._live:
            exchange.stop(APIError.unavailable("the server stops", "draining"))
        await self._until_idle(_LAST_WORDS)

    async def _until_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def _answer(self, exchange: Exchange, receive: Receive) -> APIError | None:
        """Send the answer of whichever route it is, or an error, which is returned."""
        try:
            await self._router(exchange.scope, receive, exchange.send)
            return None
        except ClientLeft:
            exchange.status = CLIENT_LEFT
            return None
        except HTTPException as found:
            may_come = found.status_code == 404 and not self._is_complete
            error = still_loading() if may_come else _routing_error(found, exchange.scope)
        except Exception as raised:
            known = as_api_error(raised)
            if known is None:
                logger.exception("request %s failed", exchange.request_id)
                known = APIError(500, f"the server failed; its log has request {exchange.request_id}", code="internal")
            error = known
        await exchange.send_error(error)
        return error

    async def _describe(self, api_call: APICall[None]) -> HTTPContent:
        return HTTPContent(openapi_document((*self._routes, *self._late_routes)), "application/json")

    def _log(self, exchange: Exchange, duration: float, error: APIError | None) -> None:
        if self.service.metrics is not None:
            self.service.metrics.count_answer(exchange.route, exchange.status or CLIENT_LEFT)
        api_call: APICall[Any] | None = exchange.scope.get(_API_CALL)
        count = api_call.count if api_call is not None else None
        path = exchange.scope.get("raw_path") or exchange.scope["path"].encode()
        log_request(
            request_id=exchange.request_id,
            method=exchange.scope["method"],
            path=path.decode("ascii", "backslashreplace"),
            status=exchange.status or CLIENT_LEFT,
            duration=duration,
            prompt_tokens=None if count is None else count.prompt,
            completion_tokens=None if count is None else count.completion,
            finish_reasons=api_call.finish_reasons if api_call is not None else [],
            error=None if error is None else error.code or error.kind,
            is_polled=exchange.scope["path"] in self._polled,
        )


class _Endpoint:
    """One route, as an ASGI application of its own."""

    def __init__(self, service: Service, route: Route) -> None:
        self._service, self._route = service, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[_EXCHANGE]
        exchange.route = self._route.path
        if not self._route.is_open(self._service.options):
            _check_key(exchange, self._service.options.api_key)
        body = await self._read(exchange) if self._route.body is not None else None
        api_call = APICall(
            service=self._service,
            request_id=exchange.request_id,
            headers=exchange.headers,
            body=body,
            path=scope.get("path_params", {}),
        )
        scope[_API_CALL] = api_call
        await exchange.run(self._handle(api_call, exchange), self._service.options.request_timeout)

    async def _read(self, exchange: Exchange) -> msgspec.Struct:
        options = self._service.options
        _check_content(exchange)
        raw = await exchange.read_body(options.max_body_bytes)
        assert self._route.body is not None
        body, unknown = decode_body(raw, self._route.body, options.max_items)
        if unknown and options.unknown_fields == "refuse":
            refuse_unknown(unknown)
        if unknown and options.unknown_fields == "warn":
            shown = ", ".join(ascii(name)[1:-1] for name in unknown[:_MAX_UNKNOWN_SHOWN])[:400]
            logger.warning("request %s: unknown fields are left out: %s", exchange.request_id, shown)
            exchange.extra_headers[UNKNOWN_FIELDS_HEADER] = shown
        return body

    async def _handle(self, api_call: APICall[Any], exchange: Exchange) -> None:
        with api_call.at_end:
            answer = await self._route.handler(api_call)
            if isinstance(answer, EventStream):
                await exchange.send_stream(answer)
            elif isinstance(answer, HTTPContent):
                await exchange.send_content(200, answer.body, answer.content_type)
            else:
                await exchange.send_content(200, _encode(answer))


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, callable by web pages of these origins."""
    if not origins:
        return app
    shown = [REQUEST_ID_HEADER, UNKNOWN_FIELDS_HEADER, "retry-after"]
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=get_args(HTTPMethod), allow_headers=["*"], expose_headers=shown
    )


def _check_key(exchange: Exchange, keys: Sequence[str]) -> None:
    if not keys:
        return
    scheme, _, given = exchange.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = exchange.headers.get("x-api-key", "")
    sent = given.strip().encode("latin-1")  # as headers are decoded
    found = [hmac.compare_digest(sent, key.encode()) for key in keys]  # all, whatever is found
    if not any(found):
        message = "the API key is wrong" if given else "an API key is needed: send Authorization: Bearer KEY"
        raise APIError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def _check_content(exchange: Exchange) -> None:
    """Only JSON: web pages of strangers may send other types without being asked whether they may."""
    kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise APIError(415, "send Content-Type: application/json", code="unsupported_media_type")
    if exchange.headers.get("content-encoding", "identity").lower() != "identity":
        raise APIError(415, "send the body without Content-Encoding", code="unsupported_media_type")


def _routing_error(error: HTTPException, scope: Scope) -> APIError:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = f"{scope['method']} {scope['path']}: {error.detail}; GET /openapi.json tells what is served"
    return APIError(error.status_code, message, code=code, headers=error.headers)
