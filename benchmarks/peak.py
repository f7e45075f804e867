"""Measured limits of this machine: multiply-add rate from registers, and memory read rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from compiler.codegen.llvm.targets import host_target
from compiler.tools.microbenchmarks import FMA, FMA_DECLARATION, LOAD, VectorLoop, aligned_data, compiled_loop

PREFETCH = (
    "  %f{c} = getelementptr i8, ptr %p{c}, i64 4096\n  call void @llvm.prefetch.p0(ptr %f{c}, i32 0, i32 2, i32 1)\n"
)
"""Prefetch of a vector 4096 bytes ahead; the distance was chosen empirically."""

READ_LOOP = VectorLoop(
    PREFETCH + LOAD.replace("{align}", "16"), 8, "i32", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
)
"""Reads eight vectors in each step, each into its own accumulator."""

READ_BYTES = 64 << 20
"""Bytes read: twice a last-level cache of 32 MiB, as many as f32 weights of 4096 x 4096."""


def fma_peak(threads: int, steps: int = 2_000_000) -> float:
    """Return f32 operations per second of `threads` threads together, the best of several tries."""
    target = host_target()
    chains = target.vector_registers * 3 // 4  # enough to hide the latency
    size = chains * target.vector_bits // 8
    buffers = [aligned_data(size) for _ in range(threads)]
    function = compiled_loop(VectorLoop(FMA, chains, declarations=FMA_DECLARATION), target)
    seconds = _best_parallel_seconds(function, [(steps, b.ctypes.data, 0) for b in buffers])
    return threads * steps * size // 4 * 2 / seconds


def read_rate(threads: int) -> float:
    """Return bytes per second that `threads` threads read together, each its part of READ_BYTES."""
    target = host_target()
    step = READ_LOOP.chains * target.vector_bits // 8
    memory, steps = aligned_data(READ_BYTES), READ_BYTES // threads // step
    parts = [(steps, memory.ctypes.data + t * steps * step, (1 << 62) - 1) for t in range(threads)]
    return threads * steps * step / _best_parallel_seconds(compiled_loop(READ_LOOP, target), parts)


def _best_parallel_seconds(
    function: Callable[..., None], arguments: Sequence[tuple[Any, ...]], tries: int = 10
) -> float:
    """Return the shortest time of calls with all arguments, each on its own thread, in seconds."""
    best = float("inf")
    for _ in range(tries):
        workers = [threading.Thread(target=function, args=a) for a in arguments]
        start = time.perf_counter()
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        best = min(best, time.perf_counter() - start)
    return best
