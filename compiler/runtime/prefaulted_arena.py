"""Memory that is touched before it is needed, while another thread works.

Where memory is virtual, its first use may take a hundred times the later ones; and what is given back in between may be new again.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from compiler.runtime.memory import align_up
from compiler.runtime.pool import PAGE, PooledBlock, map_block

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MAX_CHUNK_BYTES = 1 << 30
"""Bytes that are claimed at once, at most."""


@dataclass
class ArenaChunk:
    """A block whose first `used` bytes are taken."""

    block: PooledBlock
    used: int = 0

    def bytes(self, start: int, count: int) -> Bytes:
        return np.frombuffer(self.block.region, np.uint8, count, self.block.offset + start)


@dataclass
class PrefaultedArena:
    """Rooms from which arrays are cut one after the other; for one thread at a time."""

    chunks: list[ArenaChunk] = field(default_factory=list)

    def reserve(self, nbytes: int) -> None:
        """Have the machine provide so much memory."""
        room = ArenaChunk(map_block(align_up(min(nbytes, MAX_CHUNK_BYTES), PAGE)))
        room.bytes(0, room.block.size)[::PAGE] = 0
        self.chunks.append(room)

    def allocate(self, nbytes: int) -> Bytes | None:
        """Memory that begins on a cache line; None where there is not so much."""
        for room in self.chunks:
            start, end = room.used, room.used + nbytes
            if end <= room.block.size:
                room.used = align_up(end)
                return room.bytes(start, nbytes)
        return None

    def trim(self) -> None:
        """Give back what nobody has taken."""
        for room in self.chunks:
            rest = align_up(room.used, PAGE)
            if rest < room.block.size and hasattr(mmap, "MADV_DONTNEED"):
                room.block.region.madvise(mmap.MADV_DONTNEED, room.block.offset + rest, room.block.size - rest)
        self.chunks.clear()
