"""Hardware counters of the steps of a call, through Linux's perf_event_open, where machine and system allow it.

They are read inside the call, between the steps (see hardware_counters.ll), for all threads of the process.  A thread that waits
counts too, as far as it does so in user mode.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.program_entry import MARK
from compiler.codegen.llvm.targets import host_target
from compiler.ir.tile.program import execution_counts
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.executable import Executable
from compiler.runtime.loader import host_module, link_objects, symbol_address
from compiler.runtime.threads import architecture, kernel_functions
from compiler.runtime.timeline import segment_runs

EVENTS = {"cycles": (0, 0), "instructions": (0, 1), "cache misses": (0, 3)}
"""Type and number of each event that is counted, as in linux/perf_event.h."""

CALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
"""Number of the system call perf_event_open, which libc does not wrap."""

ATTRIBUTE_BYTES, USER_MODE_ONLY = 64, 1 << 5 | 1 << 6
"""Of `struct perf_event_attr`: its first size, and flags that exclude kernel and hypervisor."""


def count_events(exe: Executable, inputs: Sequence[torch.Tensor], repeats: int) -> list[Mapping[str, int]]:
    """Return the median count of each event in each step over `repeats` calls; nothing where there are no counters.

    Steps are numbered in the order of `execution_counts`.
    """
    steps = sum(1 for _ in execution_counts(exe.program.steps))
    with open_counters() as counters:
        if not counters or not isinstance(exe, CPUExecutable):
            return [{}] * steps
        segments, functions = segment_runs(exe.program), {"read": symbol_address(ctypes.CDLL(None), "read")}
        code = emit_object(host_module("hardware_counters"), host_target())
        library = link_objects([code], ["counters", MARK], {**kernel_functions(), **functions})
        marked = exe.with_marks(ctypes.CFUNCTYPE(None)(library[MARK]), {MARK: library[MARK]})
        table, numbers = (ctypes.c_int64 * 3).from_address(library["counters"]), np.array(counters, np.int32)
        values = np.zeros(
            (sum(len(runs) + 1 for runs in segments), len(counters) // len(EVENTS), len(EVENTS)), np.int64
        )
        totals = np.zeros((repeats, steps, len(EVENTS)), np.int64)
        for total in totals:
            table[:] = [numbers.ctypes.data, len(counters), values.ctypes.data]
            marked.run(inputs)
            marks = iter(values.sum(axis=1))
            for runs in segments:
                for step, (begin, end) in zip(runs, pairwise([next(marks) for _ in range(len(runs) + 1)]), strict=True):
                    total[step] += end - begin
    return [dict(zip(EVENTS, map(int, row), strict=True)) for row in np.median(totals, axis=0)]


@contextmanager
def open_counters() -> Iterator[list[int]]:
    """Open a file for each event of each thread in turn; none where machine or system refuse one of them."""
    known = sys.platform == "linux" and architecture() in CALL_NUMBERS
    threads = map(int, os.listdir("/proc/self/task")) if known else ()
    opened = [open_counter(*event, thread) for thread in threads for event in EVENTS.values()]
    try:
        yield [] if -1 in opened else opened
    finally:
        for file in opened:
            if file >= 0:
                os.close(file)


def open_counter(kind: int, number: int, thread: int) -> int:
    """Open a counter of a thread, and return its file; -1 if there is none."""
    values = kind, ATTRIBUTE_BYTES, number, 0, 0, 0, USER_MODE_ONLY
    attributes = struct.pack("IIQQQQQ", *values).ljust(ATTRIBUTE_BYTES, b"\0")
    return int(ctypes.CDLL(None).syscall(CALL_NUMBERS[architecture()], attributes, thread, -1, -1, 0))
