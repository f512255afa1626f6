"""An engine core at the far end of a channel: builds it, steps it while there is work, sleeps while there is none.

Owns: the loop. Must never know: whether it runs in a process of its own or in a thread, text, HTTP.
"""

from __future__ import annotations

import importlib
import logging

from octavo.engine import wire
from octavo.engine.build import build_core, open_model
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError
from octavo.plugins import load_extensions
from octavo.request import FinishReason
from octavo.step import SequenceUpdate, StepReport

logger = logging.getLogger(__name__)

_PAUSE = 0.002
"""Seconds to wait for messages where sequences only wait for background work."""


def run_core(channel: wire.Channel[wire.ToCore]) -> None:
    """Do what the front end says until it says `Shutdown`."""
    core = _build(channel)
    if core is None:
        return
    try:
        _loop(core, channel)
    finally:
        core.shutdown()


def _build(channel: wire.Channel[wire.ToCore]) -> EngineCore | None:
    """The core that the first message asks for, or None and the reason sent."""
    order = next(channel.receive(None))
    if not isinstance(order, wire.Build):
        return None  # the front end gave up before it began
    try:
        modules = [importlib.import_module(name) for name in order.modules]
        extensions = load_extensions(order.config, modules, only=order.plugins)
        core = build_core(order.config, extensions, open_model(order.config, extensions))
    except OctavoError as error:
        name = next((name for name, kind in wire.BUILD_ERRORS.items() if isinstance(error, kind)), "")
        channel.send(wire.BuildFailed(name, str(error)))
        return None
    except Exception as error:
        logger.exception("the engine cannot be built")
        channel.send(wire.BuildFailed("", f"{type(error).__name__}: {error}"))
        return None
    channel.send(wire.Built(core.facts))
    return core


def _loop(core: EngineCore, channel: wire.Channel[wire.ToCore]) -> None:
    pause: float | None = None
    while True:
        for message in channel.receive(pause):
            if isinstance(message, wire.Shutdown):
                return
            _obey(core, channel, message)
        if not core.has_news:
            pause = None
            continue
        report = core.step(idle_wait=0.0)
        if report.updates or report.stats is not None:
            channel.send(wire.Stepped(report))
            pause = 0.0
        else:
            pause = _PAUSE


def _obey(core: EngineCore, channel: wire.Channel[wire.ToCore], message: wire.ToCore) -> None:
    match message:
        case wire.Add(request, sequence_ids):
            try:
                core.add(request, sequence_ids)
            except Exception as error:
                logger.exception("request %r cannot be added", request.request_id)
                core.finish(sequence_ids, FinishReason.ERROR)
                channel.send(_refusal(sequence_ids, f"the engine cannot take the request: {error!r}"))
        case wire.Finish(sequence_ids, reason):
            core.finish(sequence_ids, reason)
        case wire.ResetPrefixCache():
            core.reset_prefix_cache()
        case wire.Inspect(checks_integrity):
            channel.send(wire.Snapshot(core.inspect(), _fault(core) if checks_integrity else None))
        case wire.Build() | wire.Shutdown():
            raise AssertionError(f"the first or the last word in the middle: {message!r}")


def _refusal(sequence_ids: tuple[int, ...], error: str) -> wire.Stepped:
    updates = (SequenceUpdate(i, finish_reason=FinishReason.ERROR, error=error) for i in sequence_ids)
    return wire.Stepped(StepReport(tuple(updates)))


def _fault(core: EngineCore) -> str | None:
    try:
        core.check_integrity()
    except AssertionError as error:
        return str(error) or "an integrity check failed"
    return None
