"""Lists that take too long to be made and encoded while everybody else waits.

A record is encoded without them, each leaves a gap, and what belongs there is made and encoded a part at a time, with
others' work in between.
Owns: which list is long, gaps. Must never know: what is in a list, what an answer looks like.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 512
"""Entries that are made and encoded in one go: a few milliseconds' work at most."""
GAP = 0
"""The byte that stands for a long list in JSON, which never has it."""
_GAP = bytes([GAP])


class LongList:
    """Stands for a list in a record."""

    def __init__(self, parts: Iterator[list[Any]]) -> None:
        """The list is all parts joined. They are made once, each when the one before is encoded."""
        self._parts = parts
        self._encoded: list[bytes] | None = None

    async def encoded(self, turns: asyncio.Lock) -> list[bytes]:
        """Pieces of its JSON. `turns` as for `Unfilled.fill`."""
        if self._encoded is None:
            pieces = [b"["]
            while True:
                async with turns:
                    await asyncio.sleep(0)
                    if (part := next(self._parts, None)) is None:
                        break
                    data = encode(part)
                if part:
                    inner = await _filled(data, part, turns)
                    inner[0] = inner[0][1:]
                    inner[-1] = inner[-1][:-1]
                    pieces += [b",", *inner] if len(pieces) > 1 else inner
            self._encoded = [*pieces, b"]"]
        return self._encoded


def listed(items: Sequence[T], num_entries: int, make: Callable[[Sequence[T]], list[R]]) -> list[R]:
    """What `make` makes of the items, or what stands for it where they hold too many entries to be told at once."""
    return make(items) if num_entries <= AT_ONCE else joined(parted(items, num_entries, make), num_entries)


def parted(items: Sequence[T], num_entries: int, make: Callable[[Sequence[T]], list[R]]) -> Iterator[list[R]]:
    """What `make` makes of the items, a part at a time. Items are let go of with their part."""
    left = deque(items)
    del items
    size = max(1, len(left) * AT_ONCE // max(1, num_entries))
    while left:
        yield make([left.popleft() for _ in range(min(size, len(left)))])


def joined(parts: Iterator[list[R]], num_entries: int) -> list[R]:
    """All of the parts, or what stands for them."""
    if num_entries > AT_ONCE:
        return cast("list[R]", LongList(parts))
    return [item for part in parts for item in part]


def _gap(value: Any) -> msgspec.Raw:
    if not isinstance(value, LongList):
        raise TypeError(f"a {type(value).__name__} cannot be encoded as JSON")
    return msgspec.Raw(_GAP)


encode = msgspec.json.Encoder(enc_hook=_gap).encode
"""A record as JSON, which needs to be filled if `GAP` is in it."""


@dataclass(frozen=True, slots=True)
class Unfilled:
    """Bytes with gaps."""

    data: bytes
    records: Sequence[msgspec.Struct]
    """Those that were encoded in it, in their order."""

    async def fill(self, turns: asyncio.Lock) -> bytes:
        """The bytes without gaps.

        Whoever holds `turns`, which is the server's, may do one part's work. So there is but one in a turn of the event
        loop, however many long answers are under way.
        """
        pieces = await _filled(self.data, self.records, turns)
        return await asyncio.to_thread(b"".join, pieces)  # lets others run even while it copies


async def _filled(data: bytes, records: Any, turns: asyncio.Lock) -> list[bytes]:
    if GAP not in data:
        return [data]
    found: list[LongList] = []

    def note(value: Any) -> msgspec.Raw:
        found.append(value)
        return _gap(value)

    msgspec.json.encode(records, enc_hook=note)
    first, *others = data.split(_GAP)
    pieces = [first]
    for long_list, text in zip(found, others, strict=True):
        pieces += [*await long_list.encoded(turns), text]
    return pieces
