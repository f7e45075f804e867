"""Threads of kernels: a team of native worker threads, shared by all programs of the process.

The protocol is in thread_team.ll: workers share the chunks of a kernel with the thread that calls it.  Which calls are shared
beside other processes is decided in call_history.ll, and by whose workers in openmp_workers.ll.  This module links the three,
starts and stops the workers, and says how many threads a call may use.  A forked child starts workers of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.options import Options
from compiler.runtime.cache import object_cache_for, object_key
from compiler.runtime.cpu_limits import available_cpus
from compiler.runtime.loader import host_module, link_objects, symbol_address
from compiler.runtime.openmp import openmp_functions, openmp_workers

MAX_THREADS = 255
"""Most threads of a team: the protocol numbers parts with 8 bits."""

CHECK_SECONDS = 0.1
"""Seconds after which affinity and quota are looked up again."""

KERNEL_FUNCTIONS = ("tilewright_parallel", "tilewright_next_chunk", "tilewright_begin_call", "tilewright_end_call")
"""Functions of the team that generated code calls."""

CONTROL_FUNCTIONS = (
    "tilewright_team", "tilewright_worker", "tilewright_stop_workers", "tilewright_reset_team", "tilewright_ticks",
)  # fmt: skip

BLOCKED_SIGNALS = set(signal.Signals) - {signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Signals that workers do not handle: Python handles signals in its main thread."""


@dataclass(frozen=True)
class SharingPolicy:
    """Parameters of the protocol, in the order of its table; times in microseconds, chosen with `python -m benchmarks contention`.

    `chunks_per_thread`: parts of one thread's work that others may take over.
    `longest_spin`, `shortest_spin`: time that an idle worker watches for work before it sleeps.
    `preempted`: a thread that finds that so much time has passed between two looks was put aside by the system.
    `window`: time over which calls with and without the team are compared.
    `shortest_interval`, `longest_interval`: time between two trials of what took longer; doubles while it still does.  Trials
    alone wait for so much time of calls, trials of the team for so much time of the clock.
    `openmp_spin`: nanoseconds of CPU time for which OpenMP's workers watch for work, at most.
    `longest_run`: time of calls with OpenMP's workers until it is tried whether these fall asleep.
    """

    chunks_per_thread: int = 4
    longest_spin: float = 200
    shortest_spin: float = 5
    preempted: float = 100
    window: float = 50_000
    shortest_interval: float = 400_000
    longest_interval: float = 3_200_000
    openmp_spin: int = 20_000_000
    longest_run: float = 1_000_000


POLICY = SharingPolicy()


class ThreadTeam:
    """The workers of this process, and the table of parameters that the native code reads."""

    def __init__(self) -> None:
        self.library = link_objects(
            [team_object(CLOCKS[architecture()], openmp_workers())],
            [*KERNEL_FUNCTIONS, *CONTROL_FUNCTIONS],
            system_functions(),
        )
        self.table = (ctypes.c_int64 * (1 + len(fields(SharingPolicy)))).from_address(self.library["tilewright_team"])
        self.workers: list[ctypes.c_void_p] = []
        self.requested, self.next_check = 0, 0.0
        self._lock, self._stopped = threading.Lock(), False
        self._process = ctypes.CDLL(None)
        self.set_policy(POLICY)
        os.register_at_fork(after_in_child=self._forget_workers)
        atexit.register(self.stop)

    def set_policy(self, policy: SharingPolicy) -> None:
        """Let the protocol use `policy` from now on."""
        ticks = self.ticks_per_microsecond()
        for k, parameter in enumerate(fields(policy), 1):
            value = getattr(policy, parameter.name)
            self.table[k] = value if parameter.type == "int" else round(value * ticks)

    def ticks_per_microsecond(self) -> float:
        """Measure the clock of the protocol, in about a millisecond."""
        read = ctypes.CFUNCTYPE(ctypes.c_int64)(self.library["tilewright_ticks"])
        begin, first = time.perf_counter(), read()
        while time.perf_counter() < begin + 1e-3:
            pass
        return float(read() - first) / (time.perf_counter() - begin) / 1e6

    @property
    def threads(self) -> int:
        """Number of threads that may share a kernel, with the calling one."""
        return self.table[0]

    @property
    def _can_start_workers(self) -> bool:
        return os.name == "posix" and not self._stopped

    def resize(self, requested: int) -> None:
        """Let at most `requested` threads share a kernel, and no more than there are CPUs to use; start missing workers."""
        with self._lock:
            self.requested, self.next_check = requested, time.monotonic() + CHECK_SECONDS
            threads = min(requested, available_cpus(), MAX_THREADS) if self._can_start_workers else 1
            while len(self.workers) < threads - 1 and self._start_worker(len(self.workers) + 1):
                pass
            self.table[0] = min(threads, len(self.workers) + 1)

    def stop(self) -> None:
        """Stop the workers, for good, and wait until they have returned; later calls run on the calling thread."""
        with self._lock:
            self.table[0], self._stopped = 1, True
            self._call("tilewright_stop_workers")
            for worker in self.workers:
                self._process.pthread_join(worker, None)
            self.workers.clear()

    def _start_worker(self, index: int) -> bool:
        """Start worker `index`; return False if the system refuses."""
        worker = ctypes.c_void_p()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
        try:
            main = ctypes.c_void_p(self.library["tilewright_worker"])
            failed = self._process.pthread_create(ctypes.byref(worker), None, main, ctypes.c_void_p(index))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not failed:
            self.workers.append(worker)
        return not failed

    def _forget_workers(self) -> None:
        """Start again in a forked child, which has no workers and where nobody else holds the lock."""
        self._lock = threading.Lock()
        self.workers.clear()
        self.table[0], self.requested = 1, 0
        self._call("tilewright_reset_team")

    def _call(self, function: str) -> None:
        ctypes.CFUNCTYPE(None)(self.library[function])()


@cache
def team() -> ThreadTeam:
    """Return the team of this process."""
    return ThreadTeam()


def kernel_functions() -> Mapping[str, int]:
    """Return the addresses of the functions that generated code calls, by name."""
    return {name: team().library[name] for name in KERNEL_FUNCTIONS}


def prepare_call() -> int:
    """Return the number of threads for a program with parallel kernels; to be called before it.

    Applies `torch.set_num_threads`, the affinity and the CPU quota.
    """
    current, requested = team(), torch.get_num_threads()
    if requested != current.requested or time.monotonic() > current.next_check:
        current.resize(requested)
    return current.threads


CLOCKS = {
    "x86_64": """
define internal i64 @ticks() { %t = call i64 @llvm.readcyclecounter()  ret i64 %t }
define internal void @relax() { call void @llvm.x86.sse2.pause()  ret void }
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse2.pause()
""",
    "aarch64": """
define internal i64 @ticks() { %t = call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()  ret i64 %t }
define internal void @relax() { call void @llvm.aarch64.hint(i32 1)  ret void }
declare void @llvm.aarch64.hint(i32)
""",
}
"""Read a clock that all CPUs share, and tell the CPU that a thread spins: by machine."""

FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
"""Number of the Linux system call `futex`, by machine."""

FUTEX = """
define internal void @futex_wait(ptr %word, i32 %value, i32 %bits) {{
  call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 137, i32 %value, ptr null, ptr null, i32 %bits)
  ret void
}}
define internal void @futex_wake(ptr %word, i32 %bits) {{
  call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 138, i32 2147483647, ptr null, ptr null, i32 %bits)
  ret void
}}
declare i64 @syscall(i64, ...)
"""
"""Sleep while a word has a value, and wake those that sleep with one of some bits: FUTEX_WAIT_BITSET and FUTEX_WAKE_BITSET."""

POLLING = """
define internal void @futex_wait(ptr %word, i32 %value, i32 %bits) { call i32 @usleep(i32 50)  ret void }
define internal void @futex_wake(ptr %word, i32 %bits) { ret void }
declare i32 @usleep(i32)
"""
"""The same for systems without futexes: look again after 50 microseconds."""


def architecture() -> str:
    """Return the name of the host's CPU architecture as LLVM spells it, such as "x86_64"."""
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def team_object(clock: str, openmp: str) -> bytes:
    """Return the object file of the team's functions; `clock` (see `CLOCKS`) and `openmp` are LLVM IR text."""
    sleep = FUTEX.format(number=FUTEX_NUMBERS[architecture()]) if sys.platform == "linux" else POLLING
    target, cache = host_target(), object_cache_for(Options())
    text = f"{host_module('thread_team', 'call_history')}{openmp}{clock}{sleep}"
    key = object_key(text, target)
    if (code := cache.get(key)) is None:
        cache.put(key, code := emit_object(text, target))
    return code


def system_functions() -> Mapping[str, int]:
    """Return the addresses of the functions that the team calls, by name."""
    name = "syscall" if sys.platform == "linux" else "usleep"
    return {name: symbol_address(ctypes.CDLL(None), name), **openmp_functions()}
