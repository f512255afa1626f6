"""`octavo serve`: the life of the server's process.

It listens before the model is loaded and says so to whoever asks. The first signal to stop lets running requests end,
the second ends everything at once; an engine that died is told to everybody, and then the process ends with 1.
Owns: sockets, signals, the order of start and end, exit codes. Must never know: routes, requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import stat
from collections.abc import Generator, Sequence
from types import ModuleType

import uvicorn
import uvloop

from octavo import AsyncLLM
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo_openai.http.app import Application, with_cors
from octavo_openai.http.connection import make_connection_class
from octavo_openai.http.request_log import configure_logging, log_throughput
from octavo_openai.http.route import Route
from octavo_openai.http.static_files import page_routes
from octavo_openai.observation.throughput import ThroughputReporter
from octavo_openai.options import ServerOptions, read_engine_config, read_options
from octavo_openai.plugin_routes import plugin_routes
from octavo_openai.routes import ROUTES
from octavo_openai.service import Service

logger = logging.getLogger("octavo_openai")

_BACKLOG = 2048
_MAX_FILES = 2**20
_KNOCK = 1.0
"""Seconds that a server may take to let a caller in."""
LAST_WORDS = 2.0
"""Seconds in which a server whose engine died still says so."""


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal (0) or the engine's death (1). Raises what the engine raises if it cannot be built."""
    options = read_options(arguments)
    configure_logging(options.log_format, options.log_requests)
    raise_file_limit()
    with listen(options) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve_until_signal(Service(options), read_engine_config(arguments), listener))


async def _serve_until_signal(service: Service, config: EngineConfig, listener: socket.socket) -> int:
    return await serve(service, config, listener, stop_on_signals())


async def serve(
    service: Service,
    config: EngineConfig,
    listener: socket.socket,
    stop: asyncio.Event,
    plugins: Sequence[ModuleType] = (),
) -> int:
    """Load a model and answer requests on `listener` until `stop` is set (0) or the engine has died (1)."""
    options = service.options
    app = Application(service, ROUTES, page_routes())
    settings = _uvicorn_config(options, app)
    settings.load()  # raises for certificates that cannot be read
    server = _Server(settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    logger.info("loading the model; until it is there %s answers 503", _address(options, listener))
    loading = asyncio.create_task(_load(config, plugins, options.in_process, app))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            server.should_exit = True
            await serving
            _forget_socket(options)
            os._exit(0)  # threads that load cannot be called back; the engine's process ends with this one
        llm, routes = loading.result()
        try:
            service.attach(llm)
            _log_throughput(service, llm)
            app.complete(routes)
            gc.collect()
            gc.freeze()  # what was imported and loaded lives as long as the process
            print(f"octavo: serving {service.model_names[0]} at {_address(options, listener)}", flush=True)
            return await _until_end(app, llm, stopping)
        finally:
            await llm.shutdown()
    finally:
        server.should_exit = True
        await serving


async def _load(
    config: EngineConfig, plugins: Sequence[ModuleType], in_process: bool, app: Application
) -> tuple[AsyncLLM, list[Route]]:
    """The model, and the routes of plugins that answer with it."""
    llm = await AsyncLLM.start(config, plugins, in_process=in_process)
    try:
        return llm, await asyncio.to_thread(plugin_routes, llm, app.answers)  # nobody knows how long a plugin takes
    except BaseException:
        await llm.shutdown()
        raise


def _log_throughput(service: Service, llm: AsyncLLM) -> None:
    interval = service.options.log_stats_interval
    assert service.metrics is not None, "the service has its model"
    if interval is not None:
        call_later = asyncio.get_running_loop().call_later
        llm.observe(ThroughputReporter(service.metrics, interval, log_throughput, call_later))


async def _until_end(app: Application, llm: AsyncLLM, stopping: asyncio.Task[bool]) -> int:
    ended = asyncio.create_task(llm.wait_ended())
    await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        app.service.draining = True
        draining = asyncio.create_task(app.drain(app.service.options.drain_timeout))
        await asyncio.wait((draining, ended), return_when=asyncio.FIRST_COMPLETED)
        return 0
    logger.error("%s", llm.error)
    await asyncio.sleep(LAST_WORDS)
    return 1


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _uvicorn_config(options: ServerOptions, app: Application) -> uvicorn.Config:
    return uvicorn.Config(
        with_cors(app, options.allow_origins),
        http=make_connection_class(options.timeout_client),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=options.timeout_keep_alive,  # type: ignore[arg-type] - a float will do
        timeout_graceful_shutdown=1,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )


def stop_on_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process on the spot."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        logger.warning("stopping: new requests are refused, running ones may end; a second signal stops at once")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


@contextlib.contextmanager
def listen(options: ServerOptions) -> Generator[socket.socket]:
    """A socket that is bound already, so that its port is known and clients may come.

    Raises `ConfigError` where nobody can listen, and `OSError` for the path of a Unix socket.
    """
    if options.uds is None:
        with _bound(options.host, options.port) as listener:
            yield listener
        return
    _remove_dead_socket(options.uds)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(options.uds)
        try:
            listener.listen(_BACKLOG)
            yield listener
        finally:
            _forget_socket(options)


def _remove_dead_socket(path: str) -> None:
    """Make room where a server that was killed has left its socket. Raises `ConfigError` if one listens there."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(TimeoutError, BlockingIOError):
        caller.settimeout(_KNOCK)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"another server listens at {path}; stop it, or choose another path with --uds")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
        message = f"cannot listen on port {port} of {host}: {reason}; choose others with --port and --host"
        raise ConfigError(message) from error


def _forget_socket(options: ServerOptions) -> None:
    if options.uds is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.uds)


def _address(options: ServerOptions, listener: socket.socket) -> str:
    if options.uds is not None:
        return f"unix:{options.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "http" if options.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def raise_file_limit() -> None:
    """As many connections as the system allows; each is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
