"""An engine core in a process or thread of its own, as its front end sees it.

Owns: `RemoteCore`: starting the core, the channel to it, noticing that it has ended. Must never know: text, requests'
meaning, asyncio.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Protocol

import zmq

from octavo.config import EngineConfig
from octavo.engine import wire
from octavo.engine.client import EngineFacts
from octavo.engine.core_loop import run_core
from octavo.errors import ConfigError, EngineDeadError, InvalidRequestError
from octavo.extensions import Extensions
from octavo.request import FinishReason, Request
from octavo.snapshot import EngineSnapshot
from octavo.step import StepReport

logger = logging.getLogger(__name__)

_LOOK = 0.2
"""Seconds between two looks at whether a core that says nothing is still there."""
_GOODBYE = 5.0
"""Seconds that a core gets to end by itself."""
_MAX_SOCKET_PATH = 90
"""Unix sockets have names of at most 107 bytes."""
_RECONNECT_MILLISECONDS = 20
"""Between two tries to reach a process that is about to start."""


class Host(Protocol):
    """Where a core runs."""

    def wait(self, timeout: float | None = None) -> str | None:
        """How it ended; None if it has not after `timeout` seconds."""
        ...

    def kill(self) -> None: ...


class RemoteCore:
    """An `EngineClient` whose core runs elsewhere. Calls come from one thread.

    `facts` wait for the core to stand. A core that ends by itself makes every later call raise `EngineDeadError`.
    """

    def __init__(self, channel: wire.Channel[wire.FromCore], host: Host, context: zmq.Context) -> None:
        self._channel = channel
        self._host = host
        self._context = context
        self._live: set[int] = set()
        self._reports: list[StepReport] = []
        self._snapshots: list[wire.Snapshot] = []
        self._facts: EngineFacts | None = None
        self.is_closed = False

    @property
    def fd(self) -> int:
        """Becomes readable when the core may have said something; see `Channel.fd`."""
        return self._channel.fd

    @property
    def facts(self) -> EngineFacts:
        """Raises what the core's builder raised, or `EngineDeadError`."""
        while self._facts is None:
            self._wait()
        return self._facts

    @property
    def has_news(self) -> bool:
        return bool(self._live or self._reports)

    def add(self, request: Request, sequence_ids: Sequence[int]) -> None:
        """Raises `InvalidRequestError` if the request holds what cannot be sent."""
        try:
            self._send(wire.Add(request, tuple(sequence_ids)))
        except (TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError("extra_args", f"must be plain numbers, texts and lists: {error}") from None
        self._live.update(sequence_ids)

    def finish(self, sequence_ids: Sequence[int], reason: FinishReason) -> None:
        live = self._live.intersection(sequence_ids)
        if live and not self.is_closed:
            self._live -= live
            with contextlib.suppress(EngineDeadError):  # nothing of it is left to end
                self._send(wire.Finish(tuple(live), reason))

    def step(self) -> StepReport:
        """Wait for the next report."""
        while not self._reports:
            self._wait()
        return self._reports.pop(0)

    def poll(self) -> list[StepReport]:
        """The reports that have come."""
        self._receive(0.0)
        reports, self._reports = self._reports, []
        return reports

    def inspect(self) -> EngineSnapshot:
        return self._snapshot().snapshot

    def ask_snapshot(self) -> None:
        """Ask for what `take_snapshots` gives when it has come."""
        self._send(wire.Inspect())

    def take_snapshots(self) -> list[EngineSnapshot]:
        """Answers that have come, in the order of the questions. `poll` receives them."""
        snapshots, self._snapshots = self._snapshots, []
        return [answer.snapshot for answer in snapshots]

    def check_integrity(self) -> None:
        fault = self._snapshot(checks_integrity=True).fault
        assert fault is None, fault

    def reset_prefix_cache(self) -> None:
        self._send(wire.ResetPrefixCache())

    def shutdown(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(zmq.ZMQError):
            self._channel.send(wire.Shutdown())
        if self._host.wait(_GOODBYE) is None:
            logger.warning("the engine did not end within %g s and is killed", _GOODBYE)
            self._host.kill()
            self._host.wait(_GOODBYE)
        self._channel.close()
        self._context.destroy(linger=0)

    def wait_ended(self) -> str:
        """Wait until the core ends, in whatever way; how it ended. May be called from another thread."""
        ending = None
        while ending is None:
            ending = self._host.wait()
        return ending

    def _snapshot(self, checks_integrity: bool = False) -> wire.Snapshot:
        self._send(wire.Inspect(checks_integrity))
        while not self._snapshots:
            self._wait()
        return self._snapshots.pop(0)

    def _send(self, message: wire.Message) -> None:
        if self.is_closed:
            raise EngineDeadError("the engine was shut down; start another")
        self._channel.send(message)

    def _wait(self) -> None:
        """Receive at least one message."""
        while not self._receive(_LOOK):
            ending = None if self.is_closed else self._host.wait(0.0)
            if (ending is not None and not self._receive(0.0)) or self.is_closed:
                raise EngineDeadError(f"the engine has ended ({ending or 'shut down'}); start it again")

    def _receive(self, timeout: float) -> bool:
        messages = list(self._channel.receive(timeout))
        for message in messages:
            match message:
                case wire.Stepped(report):
                    self._live.difference_update(u.sequence_id for u in report.updates if u.finish_reason is not None)
                    self._reports.append(report)
                case wire.Snapshot():
                    self._snapshots.append(message)
                case wire.Built(facts):
                    self._facts = facts
                case wire.BuildFailed(name, reason):
                    raise wire.BUILD_ERRORS.get(name, EngineDeadError)(reason)
        return bool(messages)


def start_process(config: EngineConfig, extensions: Extensions, plugins: Iterable[object] = ()) -> RemoteCore:
    """A core in a child process, which ends with this one. Returns at once; `facts` waits for it to stand.

    `plugins` are those handed over to `load_extensions`; only modules can be loaded there.
    """
    order = _order(config, extensions, plugins)
    folder = _socket_folder()
    lifeline, held = os.pipe()
    address = f"ipc://{folder}/engine"
    level = logging.getLogger("octavo").getEffectiveLevel()
    command = [sys.executable, "-m", "octavo.engine.process", address, str(lifeline), str(level)]
    environment = dict(os.environ)
    if order.modules:  # they may lie wherever this process looks
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen(command, pass_fds=[lifeline], stdin=subprocess.DEVNULL, env=environment)
    os.close(lifeline)
    return _connect(zmq.Context(), address, _Child(child, held, folder), order)


def start_thread(config: EngineConfig, extensions: Extensions, plugins: Iterable[object] = ()) -> RemoteCore:
    """A core in a thread of this process, for debugging: everything else is as with `start_process`."""
    order = _order(config, extensions, plugins)
    address = "inproc://engine"  # known to this context alone
    context = zmq.Context()
    return _connect(context, address, _Thread(context, address), order)


def _order(config: EngineConfig, extensions: Extensions, plugins: Iterable[object]) -> wire.Build:
    """What the core is told to build. Raises `ConfigError` for a plugin that it could not import."""
    modules = []
    for plugin in plugins:
        name = plugin.__name__ if isinstance(plugin, ModuleType) else "__main__"
        if name == "__main__":
            raise ConfigError(
                f"plugins: the engine's process cannot import {plugin!r}; put it into a module of its own and pass "
                "that, or package it with an entry point of the group 'octavo'"
            )
        modules.append(name)
    return wire.Build(config, tuple(origin.plugin for origin in extensions.plugins), tuple(modules))


def _connect(context: zmq.Context, address: str, host: Host, order: wire.Build) -> RemoteCore:
    socket = wire.open_socket(context)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
    socket.connect(address)
    channel = wire.Channel(socket, wire.FROM_CORE)
    channel.send(order)
    return RemoteCore(channel, host, context)


def _socket_folder() -> str:
    """A folder that only this user can enter."""
    folder = tempfile.mkdtemp(prefix="octavo-")
    if len(folder) <= _MAX_SOCKET_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="octavo-", dir="/tmp")


class _Child:
    """A child process as a `Host`."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, folder: str) -> None:
        self._process = process
        self._lifeline = lifeline
        self._folder = folder
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> str | None:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        with self._lock:
            if self._folder:
                os.close(self._lifeline)
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = ""
        return f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()


class _Thread:
    """A thread of this process as a `Host`."""

    def __init__(self, context: zmq.Context, address: str) -> None:
        self._ending = "it returned"
        self._thread = threading.Thread(target=self._run, args=(context, address), name="octavo-engine", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> str | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._ending

    def kill(self) -> None:
        """A thread cannot be killed; it ends with the process."""

    def _run(self, context: zmq.Context, address: str) -> None:
        socket = wire.open_socket(context)
        socket.bind(address)
        channel = wire.Channel(socket, wire.TO_CORE)
        try:
            run_core(channel)
        except BaseException as error:
            logger.exception("the engine's thread failed")
            self._ending = repr(error)
        finally:
            channel.close()
