"""Arena of memory that is touched in the background before it is needed.

Under virtualisation the first use of a page may take a hundred times as long as later ones, and memory that was freed in
between may be unmapped again.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from compiler.runtime.memory import align_up
from compiler.runtime.pool import PAGE, MappedBlock, map_block

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MAX_CHUNK_BYTES = 1 << 30
"""Most bytes reserved at once; chosen empirically."""


@dataclass
class ArenaChunk:
    """A block whose first `used` bytes are allocated."""

    block: MappedBlock
    used: int = 0

    def bytes(self, start: int, count: int) -> Bytes:
        """Return `count` bytes from offset `start`."""
        return np.frombuffer(self.block.region, np.uint8, count, self.block.offset + start)


@dataclass
class PrefaultedArena:
    """Bump allocator over prefaulted chunks; threads may allocate at the same time."""

    chunks: list[ArenaChunk] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, nbytes: int, prefault: bool = True) -> None:
        """Map `nbytes`, at most `MAX_CHUNK_BYTES`, and touch every page if `prefault`."""
        if not nbytes:
            return
        chunk = ArenaChunk(map_block(align_up(min(nbytes, MAX_CHUNK_BYTES), PAGE)))
        if prefault:
            chunk.bytes(0, chunk.block.size)[::PAGE] = 0
        self.chunks.append(chunk)

    def allocate(self, nbytes: int) -> Bytes | None:
        """Return `nbytes` that start on a cache line, or None if no chunk has that many."""
        with self._lock:
            for chunk in self.chunks:
                start, end = chunk.used, chunk.used + nbytes
                if end <= chunk.block.size:
                    chunk.used = align_up(end)
                    return chunk.bytes(start, nbytes)
        return None

    def trim(self) -> None:
        """Return all unallocated pages to the operating system; the arena is empty afterwards."""
        for chunk in self.chunks:
            used = align_up(chunk.used, PAGE)
            if used < chunk.block.size and hasattr(mmap, "MADV_DONTNEED"):
                chunk.block.region.madvise(mmap.MADV_DONTNEED, chunk.block.offset + used, chunk.block.size - used)
        self.chunks.clear()
