"""Lists that take too long to be made while everybody else waits.

Owns: how much is made at once. Must never know: what is in a list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 512
"""Entries that are made in one go: a few milliseconds' work at most."""

_encode = msgspec.json.Encoder().encode


async def do_in_parts(
    items: Sequence[T], num_entries: int, turns: asyncio.Lock, work: Callable[[Sequence[T]], None]
) -> None:
    """Do the work on all items, which hold `num_entries`, a part at a time, with others' work in between.

    Whoever holds `turns`, which is the server's, may do a part. So there is but one in a turn of the event loop,
    however many long lists are being made.
    """
    if num_entries <= AT_ONCE:
        work(items)
        return
    size = max(1, len(items) * AT_ONCE // num_entries)
    for start in range(0, len(items), size):
        async with turns:
            await asyncio.sleep(0)
            work(items[start : start + size])


async def make_list(items: Sequence[T], num_entries: int, turns: asyncio.Lock, make: Callable[[T], R]) -> list[R]:
    """What `make` makes of each item. In a long list each is JSON already, which is written as it is.

    So what was made is let go of at once, and nothing is left that would take long to encode.
    """
    made: list[R] = []

    def add(part: Sequence[T]) -> None:
        made.extend([make(item) for item in part])

    def add_encoded(part: Sequence[T]) -> None:
        made.extend(cast("list[R]", [msgspec.Raw(_encode(make(item))) for item in part]))

    await do_in_parts(items, num_entries, turns, add if num_entries <= AT_ONCE else add_encoded)
    return made
