"""Memory pool for workspaces and large outputs.

Fresh memory from the operating system costs a page fault per 4 KiB touched, several times the cost of a memory-bound kernel.
A block returns to the pool when its tensor and all views of it are freed, and serves the next request of its size class.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

PAGE, HUGE_PAGE = 4096, 2 << 20
"""Bytes of a page, and of a huge page of x86-64 and AArch64 Linux."""

IDLE_LIMIT = 1 << 30
"""Most bytes of unused memory that the pool holds; chosen empirically."""


@dataclass(eq=False)
class PooledBlock:
    """Block of `size` bytes at `address`, aligned to a page, or a huge page from 2 MiB on; unmapped with `region`."""

    address: int
    size: int
    region: mmap.mmap
    returned_at: int = 0  # ordinal of its last return to the pool

    @property
    def offset(self) -> int:
        """Offset of the block in `region`, in bytes."""
        return self.address - ctypes.addressof(ctypes.c_char.from_buffer(self.region))


class MemoryPool:
    """Thread-safe pool of blocks by size class."""

    def __init__(self, idle_limit: int = IDLE_LIMIT) -> None:
        self.idle_limit = idle_limit
        self.idle_bytes = 0
        self._idle: dict[int, list[PooledBlock]] = {}
        self._clock = 0
        self._lock = threading.Lock()
        # a finalizer may return a block while this thread holds the lock: finalizers only append here
        self._returned: deque[PooledBlock] = deque()

    def allocate(self, nbytes: int) -> PooledBlock:
        """Return an uninitialised block of at least `nbytes` and at least one byte."""
        size = size_class(nbytes)
        with self._lock:
            self._reclaim()
            stack = self._idle.get(size)
            if stack:
                self.idle_bytes -= size
                return stack.pop()
        return map_block(size)

    def release(self, block: PooledBlock) -> None:
        """Return `block` to the pool; beyond the limit, the blocks idle for longest are unmapped."""
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._reclaim()
            finally:
                self._lock.release()

    def empty_tensor(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, count: int
    ) -> torch.Tensor:
        """Return an uninitialised tensor of `count` > 0 elements; its block returns to the pool with its storage."""
        block = self.allocate(count * dtype.itemsize)
        lease = _lease_type(block.size).from_address(block.address)
        lease.pool, lease.block = self, block
        return torch.frombuffer(lease, dtype=dtype, count=count).as_strided_(shape, stride)

    def clear(self) -> None:
        """Unmap every idle block."""
        with self._lock:
            self._reclaim()
            self._idle.clear()
            self.idle_bytes = 0

    def _reclaim(self) -> None:
        """Make returned blocks available, then trim to the limit.  The caller holds the lock."""
        while self._returned:
            block = self._returned.popleft()
            self._clock += 1
            block.returned_at = self._clock
            self._idle.setdefault(block.size, []).append(block)
            self.idle_bytes += block.size
        while self.idle_bytes > self.idle_limit:
            oldest = min((stack for stack in self._idle.values() if stack), key=lambda stack: stack[0].returned_at)
            self.idle_bytes -= oldest.pop(0).size


def size_class(nbytes: int) -> int:
    """Return `nbytes` rounded up to a page, then to one of eight sizes per power of two: at most 1/8 is wasted."""
    pages = max(1, -(-nbytes // PAGE))
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * PAGE


def map_block(size: int) -> PooledBlock:
    """Map fresh memory; on Linux, huge pages are requested for large blocks."""
    alignment = HUGE_PAGE if size >= HUGE_PAGE else PAGE
    padding = alignment if alignment > PAGE else 0
    if os.name == "posix":
        region = mmap.mmap(-1, size + padding, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        region = mmap.mmap(-1, size + padding)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    address = -(-start // alignment) * alignment
    if padding and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE, address - start, size)
    return PooledBlock(address, size, region)


@lru_cache(maxsize=1024)
def _lease_type(size: int) -> Any:
    """Return a type whose objects expose `size` bytes as a buffer and release their block when freed."""

    class Lease(ctypes.c_char * size):  # type: ignore[misc]  # the length is known only now
        pool: MemoryPool
        block: PooledBlock

        def __del__(self) -> None:
            self.pool.release(self.block)

    return Lease


GLOBAL_POOL = MemoryPool()
"""The pool of every compiled program in this process."""


def _reset_lock() -> None:
    """Replace the lock in a forked child, where no thread would release it if it was held during the fork."""
    GLOBAL_POOL._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)
