"""What front end and engine core say to each other when they do not share a process.

Frames are MessagePack, encoded and checked by msgspec from the types below: never pickle, so whoever could write to the
socket could send requests at most.

Owns: the messages, their encoding, `Channel`. Must never know: who sends them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
import zmq

from octavo.config import EngineConfig
from octavo.engine.client import EngineFacts
from octavo.errors import CapacityError, ConfigError, ModelLoadError, PluginError
from octavo.request import FinishReason, Request
from octavo.snapshot import EngineSnapshot
from octavo.step import StepReport

M = TypeVar("M")


BUILD_ERRORS = {error.__name__: error for error in (ConfigError, PluginError, ModelLoadError, CapacityError)}
"""What may keep a core from being built; a subclass crosses over as the one of these that it is."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The smallest frame is an array of its type's name and its fields."""


class Build(Message, frozen=True):
    """The first word to a core: what to build it from."""

    config: EngineConfig
    plugins: tuple[str, ...]
    """Names of the plugins to load, exactly."""
    modules: tuple[str, ...]
    """Plugin modules that were handed over, to be imported."""


class Built(Message, frozen=True):
    """The core stands."""

    facts: EngineFacts


class BuildFailed(Message, frozen=True):
    error: str
    """Key of `BUILD_ERRORS`; empty for any other error."""
    message: str


class Add(Message, frozen=True):
    request: Request
    sequence_ids: tuple[int, ...]


class Finish(Message, frozen=True):
    sequence_ids: tuple[int, ...]
    reason: FinishReason


class Inspect(Message, frozen=True):
    """Answered by a `Snapshot`."""

    checks_integrity: bool = False


class Snapshot(Message, frozen=True):
    snapshot: EngineSnapshot
    fault: str | None = None
    """What the check of integrity found."""


class ResetPrefixCache(Message, frozen=True):
    pass


class Shutdown(Message, frozen=True):
    pass


class Stepped(Message, frozen=True):
    report: StepReport


ToCore = Build | Add | Finish | Inspect | ResetPrefixCache | Shutdown
FromCore = Built | BuildFailed | Stepped | Snapshot

encode = msgspec.msgpack.Encoder().encode
TO_CORE: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
FROM_CORE: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)


def open_socket(context: zmq.Context) -> zmq.Socket:
    """One that both ends have, to be bound or connected."""
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)  # what is under way is bounded by what runs, and neither may wait for the other
    return socket


class Channel(Generic[M]):
    """One end of the connection: whole messages in order, none lost; `M` are those that come. One thread at a time."""

    def __init__(self, socket: zmq.Socket, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._socket = socket
        self._decoder = decoder
        self.fd: int = socket.FD
        """Becomes readable when messages may have come; edge-triggered, so `receive` all of them, and again after
        each `send`."""

    def send(self, message: Message) -> None:
        """Never waits. Raises `TypeError` for what MessagePack cannot carry."""
        self._socket.send(encode(message), zmq.NOBLOCK)

    def receive(self, timeout: float | None = 0.0) -> Iterator[M]:
        """The messages that have come; waits up to `timeout` seconds for the first one, None: as long as it takes."""
        if timeout != 0.0 and not self._socket.poll(None if timeout is None else int(timeout * 1000)):
            return
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._decoder.decode(frame)

    def close(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.close(linger=0)
