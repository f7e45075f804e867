"""Memory pool for workspaces and large outputs.

Fresh memory from the operating system costs a page fault per 4 KiB touched, several times the cost of a memory-bound kernel.
The pool keeps a tensor for each block of memory.  A block is idle while that tensor alone uses its storage, and then serves the next
request of its size class and dtype; no finalizer has to run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

PAGE, HUGE_PAGE = 4096, 2 << 20
"""Bytes of a page, and of a huge page of x86-64 and AArch64 Linux."""

POOL_LIMIT = 1 << 30
"""Most bytes that the pool knows, idle or in use; chosen empirically."""

PROBES = (-1, -2, 0, 1, 2, 3)
"""Positions tried in a queue: blocks that were handed out last may still be in a cache, those handed out first are likely idle."""


def _reinterpret_with_torch(tensor: Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    return tensor.detach().as_strided(size, stride, offset)


reinterpret: Callable[[Tensor, tuple[int, ...], tuple[int, ...], int], Tensor]
reinterpret = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", _reinterpret_with_torch)
"""Returns a new tensor over the storage of another one, as Inductor makes its own: no view, at half the cost of `as_strided`."""

storage_users: Callable[[int], int] = torch._C._storage_Use_Count
"""Returns how many tensors and other objects share the storage at an address, itself included."""

IDLE_USERS = 2
"""Users of the storage of an idle block: the pool's tensor, and `storage_users` while it counts."""


@dataclass(eq=False)
class MappedBlock:
    """Block of `size` bytes at `address`, aligned to a page, or a huge page from 2 MiB on; unmapped with `region`."""

    address: int
    size: int
    region: mmap.mmap

    @property
    def offset(self) -> int:
        """Offset of the block in `region`, in bytes."""
        return self.address - ctypes.addressof(ctypes.c_char.from_buffer(self.region))


@dataclass(eq=False, slots=True)
class PooledBlock:
    """The pool's `tensor` of a block of `size` bytes, and the address of the tensor's storage object in C++."""

    tensor: Tensor
    storage: int
    size: int
    used_at: int = 0  # ordinal of its last use

    @property
    def is_idle(self) -> bool:
        """True if no other tensor uses the block."""
        return storage_users(self.storage) == IDLE_USERS


@dataclass(eq=False)
class BlockQueue:
    """Blocks of one size class and dtype, those used last at the end; threads may allocate at the same time."""

    pool: MemoryPool
    size: int
    dtype: torch.dtype
    blocks: deque[PooledBlock] = field(default_factory=deque)

    def empty_tensor(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor of at most `size` bytes."""
        with self.pool.lock:
            idle = self._take_idle()
            block = idle or self._new_block()
            block.used_at = next(self.pool.clock)
            self.blocks.append(block)
            if idle is None:
                self.pool.trim(self.pool.limit)  # of the new block as well, if it is larger than that
            return reinterpret(block.tensor, shape, stride, 0)

    def _take_idle(self) -> PooledBlock | None:
        """Remove an idle block from the queue and return it; None if the blocks that are tried are in use."""
        blocks = self.blocks
        length = len(blocks)
        for k in PROBES:
            if k < length and -k <= length and blocks[k].is_idle:
                block = blocks[k]
                del blocks[k]
                return block
        blocks.rotate(-4)  # other ones are tried next time
        return None

    def _new_block(self) -> PooledBlock:
        """Return a block of fresh memory."""
        mapped = map_block(self.size)
        n = self.size // self.dtype.itemsize
        with torch.inference_mode(False):
            tensor = torch.frombuffer(mapped.region, dtype=self.dtype, count=n, offset=mapped.offset)
        return PooledBlock(tensor, tensor.untyped_storage()._cdata, self.size)


class MemoryPool:
    """Queues of blocks, of `limit` bytes in all."""

    def __init__(self, limit: int = POOL_LIMIT) -> None:
        self.limit = limit
        self.lock = threading.RLock()  # a finalizer that runs in between may call a compiled program
        self.clock = count()
        self._queues: dict[tuple[int, torch.dtype], BlockQueue] = {}

    def queue(self, nbytes: int, dtype: torch.dtype) -> BlockQueue:
        """Return the blocks that serve tensors of `nbytes` and `dtype`."""
        key = size_class(nbytes), dtype
        return self._queues.setdefault(key, BlockQueue(self, *key))

    @property
    def idle_bytes(self) -> int:
        """Bytes of unused blocks."""
        return sum(b.size for queue in self._queues.values() for b in queue.blocks if b.is_idle)

    def clear(self) -> None:
        """Forget every block; idle ones are unmapped, others with their last tensor."""
        with self.lock:
            self.trim(0)

    def trim(self, limit: int) -> None:
        """Forget the blocks used longest ago until at most `limit` bytes are left.  The caller holds the lock."""
        blocks = [(b, queue.blocks) for queue in self._queues.values() for b in queue.blocks]
        held = sum(b.size for b, _ in blocks)
        for block, queue in sorted(blocks, key=lambda pair: pair[0].used_at):
            if held <= limit:
                break
            queue.remove(block)
            held -= block.size


def size_class(nbytes: int) -> int:
    """Return `nbytes` rounded up to a page, then to one of eight sizes per power of two: at most 1/8 is wasted."""
    pages = max(1, -(-nbytes // PAGE))
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * PAGE


def map_block(size: int) -> MappedBlock:
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
    return MappedBlock(address, size, region)


GLOBAL_POOL = MemoryPool()
"""The pool of every compiled program in this process."""


def _reset_lock() -> None:
    """Replace the lock in a forked child, where no thread would release it if it was held during the fork."""
    GLOBAL_POOL.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)
