"""How long kernels take on their own, one against the other."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil

import numpy as np
import torch

from compiler.codegen.llvm.program_entry import FIRST_SLOT
from compiler.codegen.target import Target
from compiler.ir.graph.constant import to_storage
from compiler.ir.interpret.random_inputs import Array
from compiler.ir.tile.kernel import Kernel, Param
from compiler.runtime import threads
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.constants import aligned_empty
from compiler.runtime.loader import link_objects

BURST_SECONDS, MIN_BURSTS, MAX_BURSTS, TIME_BUDGET, PAUSE_SECONDS = 2e-4, 8, 24, 0.1, 5e-4
"""Kernels run in bursts of BURST seconds or one call, each of them LEAST to MOST times and in about BUDGET seconds altogether.

The fastest burst of each counts, as all that disturbs it adds time.  Bursts are short and come after a PAUSE, so that the scheduler
is likely to let them through at once; their order changes, so that nothing periodic meets always the same.
"""

MAX_CONSTANT_COPIES = 64
"""How many copies of the constants are made at most: small ones matter little wherever they are."""

PRUNE_FACTOR = 3
"""How many times slower than the fastest a kernel is that is not called again."""


class KernelTimer:
    """`watch(kernels)` is the seconds of one call of each, all of them ways to compute the same from the same buffers.

    With `spread`, each call meets another copy of the constants until that many bytes have passed by: in a large network they have
    left the caches when their turn comes again.

    They are called on random floats; integers are 0, which is a valid index.  Each distinct kernel is compiled once.  One thread
    is timed by its own clock, which stands still while other programs run; several need the clock on the wall.
    """

    def __init__(self, target: Target) -> None:
        self.build = Build(target, ObjectCache(None))
        self.clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def __call__(self, kernels: Sequence[Kernel], cold_bytes: int = 0) -> list[float]:
        symbols = [self._compile(k) for k in kernels]
        library = link_objects([self.build.objects[s] for s in dict.fromkeys(symbols)], list(dict.fromkeys(symbols)))
        params = [max(ways, key=param_bytes) for ways in zip(*(k.params for k in kernels), strict=True)]
        constants = sum(param_bytes(p) for p in params if p.role == "const")
        copies = min(1 + cold_bytes // constants, MAX_CONSTANT_COPIES) if constants else 1
        memory = [[random_buffer(p) for _ in range(copies if p.role == "const" else 1)] for p in params]
        frame = (ctypes.c_uint64 * FIRST_SLOT)()
        threads.sync_thread_count()
        return self._min_seconds([
            self._bind_call(library[s], [[m.ctypes.data for m in some] for some in memory], ctypes.addressof(frame))
            for s in symbols
        ])  # fmt: skip

    @staticmethod
    def _bind_call(function: int, addresses: Sequence[Sequence[int]], frame: int) -> Callable[[], object]:
        """A function that calls the one at an address, each time with the next of the places of each argument."""
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(addresses) + 1))(function)
        turns = zip(*map(cycle, addresses), strict=True)
        return lambda: call(*next(turns), frame)

    def _compile(self, kernel: Kernel) -> str:
        self.build.add_kernels([kernel])
        return self.build.symbols[kernel.name]

    def _min_seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of each call in its fastest burst."""
        best = [min(self._burst_seconds(call, 1) for _ in range(2)) for call in calls]
        hopeful = [k for k, seconds in enumerate(best) if seconds < PRUNE_FACTOR * min(best)]
        counts = {k: ceil(BURST_SECONDS / best[k]) for k in hopeful}
        rounds = min(MAX_BURSTS, max(MIN_BURSTS, int(TIME_BUDGET / max(best[k] * counts[k] for k in hopeful))))
        for _ in range(rounds):
            random.shuffle(hopeful)
            for k in hopeful:
                best[k] = min(best[k], self._burst_seconds(calls[k], counts[k]))
        return best

    def _burst_seconds(self, call: Callable[[], object], times: int) -> float:
        """Mean seconds of a call when it is made `times` times; the first of several only fills the caches."""
        time.sleep(PAUSE_SECONDS)
        if times > 1:
            call()
        start = self.clock()
        for _ in range(times):
            call()
        return max(self.clock() - start, 1e-9) / times


def param_bytes(param: Param) -> int:
    """Bytes of a parameter."""
    assert isinstance(param.type.nbytes, int)
    return param.type.nbytes


def random_buffer(param: Param) -> Array:
    """Memory for a parameter, as bytes."""
    memory, dtype = aligned_empty((param_bytes(param),), np.dtype(np.uint8)), param.type.dtype
    memory[:] = 0
    if dtype.is_float:
        memory[:] = np.resize(
            to_storage(np.random.default_rng(0).uniform(-1, 1, 4096), dtype).view(np.uint8), len(memory)
        )
    return memory
