"""Timer of kernels in isolation, to compare alternatives for the same computation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from math import ceil
from typing import Any

import numpy as np
import torch

from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import to_storage
from compiler.ir.tile.kernel import Kernel, Param, dim_hint
from compiler.runtime.constants import aligned_empty
from compiler.runtime.native_kernel import KernelLinker, RunKernel, kernel_frame

BURST_SECONDS, MIN_BURSTS, MAX_BURSTS, TIME_BUDGET, PAUSE_SECONDS = 2e-4, 8, 24, 0.1, 5e-4
"""Each kernel runs MIN_BURSTS to MAX_BURSTS bursts, in about TIME_BUDGET seconds for all kernels; chosen empirically.

A burst takes about BURST_SECONDS, at least one call.  The fastest burst counts, because disturbances only add time.  Bursts
are short and follow a pause, so that the scheduler rarely interrupts them.  Their order is shuffled, so that periodic
disturbances do not always hit the same kernel.
"""

MAX_CONSTANT_COPIES = 64
"""Most copies of the constants that are made: a few small ones more would not change the time."""

PRUNE_FACTOR = 3
"""Kernels slower than the fastest by this factor in the first two calls are not called again; chosen empirically."""


class KernelTimer:
    """`timer(kernels)` returns the seconds of one call of each of some kernels with the same parameters.

    If `cold_bytes` is given, calls cycle through copies of the constants that take at least that many bytes in all, as in a
    large network, where constants have left the caches before they are read again.

    Dynamic sizes have their hints.  Inputs are random floats; integers are 0, which is a valid index.  Each distinct kernel
    is compiled once.  With one thread, its CPU time is measured, which excludes other processes; with several, wall-clock time.
    """

    def __init__(self, target: CPUTarget) -> None:
        self.linker = KernelLinker(target)
        self.clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def __call__(self, kernels: Sequence[Kernel], cold_bytes: int = 0) -> list[float]:
        params = [max(versions, key=param_bytes) for versions in zip(*(k.params for k in kernels), strict=True)]
        constants = sum(param_bytes(p) for p in params if p.role == "const")
        copies = min(1 + cold_bytes // constants, MAX_CONSTANT_COPIES) if constants else 1
        memory = [[random_buffer(p) for _ in range(copies if p.role == "const" else 1)] for p in params]
        addresses, frame = [[b.ctypes.data for b in buffers] for buffers in memory], kernel_frame()
        calls = [self.linker.bind(k) for k in kernels]
        return self._min_seconds([partial(self._call_next, call, zip(*map(cycle, addresses)), frame) for call in calls])

    @staticmethod
    def _call_next(call: RunKernel, arguments: Iterator[Sequence[int]], frame: Any) -> None:
        """Call a kernel on its next arguments."""
        call(next(arguments), frame)

    def _min_seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Return the seconds of each call in its fastest burst."""
        best = [min(self._burst_seconds(call, 1) for _ in range(2)) for call in calls]
        candidates = [k for k, seconds in enumerate(best) if seconds < PRUNE_FACTOR * min(best)]
        counts = {k: ceil(BURST_SECONDS / best[k]) for k in candidates}
        rounds = min(MAX_BURSTS, max(MIN_BURSTS, int(TIME_BUDGET / max(best[k] * counts[k] for k in candidates))))
        for _ in range(rounds):
            random.shuffle(candidates)
            for k in candidates:
                best[k] = min(best[k], self._burst_seconds(calls[k], counts[k]))
        return best

    def _burst_seconds(self, call: Callable[[], object], times: int) -> float:
        """Return the mean seconds of a call in a burst of `times`; bursts of several start with a warm-up call."""
        time.sleep(PAUSE_SECONDS)
        if times > 1:
            call()
        start = self.clock()
        for _ in range(times):
            call()
        return max(self.clock() - start, 1e-9) / times


def param_bytes(param: Param) -> int:
    """Return the size of a parameter in bytes, under the hints of its dynamic sizes."""
    return dim_hint(param.type.nbytes)


def random_buffer(param: Param) -> Array:
    """Return the bytes of a buffer for a parameter: floats in -1..1, which repeat every 4096 elements; integers 0."""
    memory, dtype = aligned_empty((param_bytes(param),), np.dtype(np.uint8)), param.type.dtype
    memory[:] = 0
    if dtype.is_float:
        values = to_storage(np.random.default_rng(0).uniform(-1, 1, 4096), dtype)
        memory[:] = np.resize(values.view(np.uint8), len(memory))
    return memory
