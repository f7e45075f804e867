"""Memory that is touched before it is needed, while another thread works.

Where memory is virtual, its first use may take a hundred times the later ones; and what is given back in between may be new again.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from compiler.runtime.memory import aligned
from compiler.runtime.pool import PAGE, Block, mapped

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MOST = 1 << 30
"""Bytes that are claimed at once, at most."""


@dataclass
class Room:
    """A block whose first `used` bytes are taken."""

    block: Block
    used: int = 0

    def bytes(self, start: int, count: int) -> Bytes:
        return np.frombuffer(self.block.region, np.uint8, count, self.block.offset + start)


@dataclass
class Reserve:
    """Rooms from which arrays are cut one after the other; for one thread at a time."""

    rooms: list[Room] = field(default_factory=list)

    def claim(self, nbytes: int) -> None:
        """Have the machine provide so much memory."""
        room = Room(mapped(aligned(min(nbytes, MOST), PAGE)))
        room.bytes(0, room.block.size)[::PAGE] = 0
        self.rooms.append(room)

    def take(self, nbytes: int) -> Bytes | None:
        """Memory that begins on a cache line; None where there is not so much."""
        for room in self.rooms:
            start, end = room.used, room.used + nbytes
            if end <= room.block.size:
                room.used = aligned(end)
                return room.bytes(start, nbytes)
        return None

    def release(self) -> None:
        """Give back what nobody has taken."""
        for room in self.rooms:
            rest = aligned(room.used, PAGE)
            if rest < room.block.size and hasattr(mmap, "MADV_DONTNEED"):
                room.block.region.madvise(mmap.MADV_DONTNEED, room.block.offset + rest, room.block.size - rest)
        self.rooms.clear()
