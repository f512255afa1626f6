"""Requests sent on a schedule, never more of them in flight than may be.

Owns: the order of sending, and what shows whether the client itself kept up. Must never know: HTTP, statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from octavo_bench.serve.exchange import Exchange

_PROBE_PERIOD = 0.01
"""Seconds between two looks at the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A load that has been offered, or the part of it before an interruption."""

    exchanges: tuple[Exchange, ...]
    """In the order of the schedule; those that an interruption kept back have never been sent."""
    start: float
    """On the clock of `time.perf_counter`, as the times of the exchanges."""
    seconds: float
    """To the end of the last exchange, or to the interruption."""
    peak_concurrency: int
    """Most requests in flight at a time."""
    interrupted: bool
    loop_delays: tuple[float, ...]
    """By how many seconds the client's event loop woke late, looked at all the time."""
    cpu_seconds: float
    """Processor time of the client."""


class Load:
    """One load. `run` it once."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        send: Callable[[Exchange], Awaitable[None]],
        max_concurrency: int | None = None,
    ) -> None:
        """`send` must set an exchange's `sent` and, unless it is cancelled, its `end`."""
        self._exchanges = exchanges
        self._send = send
        self._free: asyncio.Queue[float] = asyncio.Queue()
        """For each request that may be sent, since when."""
        self._num_slots = min(max_concurrency or len(exchanges), len(exchanges))
        self._in_flight = self._peak = 0
        self._delays: list[float] = []

    async def run(self) -> Offered:
        """All of it; or, if the task is cancelled (Ctrl-C), what has come of it until then."""
        interrupted = False
        cpu = time.process_time()
        start = perf_counter()
        for _ in range(self._num_slots):
            self._free.put_nowait(start)
        probe = asyncio.create_task(self._watch_loop())
        try:
            await self._send_all(start)
        except asyncio.CancelledError:
            interrupted = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        finally:
            probe.cancel()
        return Offered(
            exchanges=tuple(self._exchanges),
            start=start,
            seconds=perf_counter() - start if interrupted else max(e.end or start for e in self._exchanges) - start,
            peak_concurrency=self._peak,
            interrupted=interrupted,
            loop_delays=tuple(self._delays),
            cpu_seconds=time.process_time() - cpu,
        )

    async def _send_all(self, start: float) -> None:
        async with asyncio.TaskGroup() as group:
            for exchange in self._exchanges:
                arrival = start + exchange.arrival
                while (wait := arrival - perf_counter()) > 0:
                    await asyncio.sleep(wait)
                exchange.due = max(arrival, await self._free.get())
                group.create_task(self._exchange(exchange))

    async def _exchange(self, exchange: Exchange) -> None:
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)
        try:
            await self._send(exchange)
        finally:
            self._in_flight -= 1
            self._free.put_nowait(perf_counter())

    async def _watch_loop(self) -> None:
        while True:
            before = perf_counter()
            await asyncio.sleep(_PROBE_PERIOD)
            self._delays.append(max(0.0, perf_counter() - before - _PROBE_PERIOD))
