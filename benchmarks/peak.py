"""Measured limits of this machine: multiply-add rate from registers, and memory read rate."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.runtime.loader import link_objects
from compiler.target import Target

ACCUMULATORS = host_target().vector_registers * 3 // 4
"""Independent accumulators, three quarters of the vector registers: enough to hide the latency of a multiply-add."""

VECTORS_PER_STEP = 8
"""Vectors read in one step of the read loop, each into its own accumulator."""

PREFETCH_DISTANCE = 4096
"""Prefetch distance in bytes; chosen empirically."""

READ_BYTES = 64 << 20
"""Bytes read: twice a last-level cache of 32 MiB, as many as f32 weights of 4096 x 4096."""


@lru_cache
def _fma_kernel() -> tuple[Callable[[int, Any], None], int]:
    """Return a function of a number of steps, each of ACCUMULATORS vector multiply-adds on registers; and the lanes."""
    target = host_target()
    lanes = target.lanes(32)
    vector = f"<{lanes} x float>"
    chains = range(ACCUMULATORS)
    starts = "\n".join(
        f"  %p{c} = getelementptr {vector}, ptr %out, i64 {c}\n  %s{c} = load {vector}, ptr %p{c}, align 4"
        for c in chains
    )
    phis = "\n".join(f"  %a{c} = phi {vector} [ %s{c}, %entry ], [ %b{c}, %loop ]" for c in chains)
    steps = "\n".join(f"  %b{c} = call {vector} @fma({vector} %a{c}, {vector} %s, {vector} %s)" for c in chains)
    sums = "\n".join(f"  %t{c + 1} = fadd {vector} %t{c}, %b{c}" for c in chains)
    text = f"""
target triple = "{target.triple}"
define void @spin(i64 %n, ptr %out) #0 {{
entry:
  %s = load {vector}, ptr %out, align 4
{starts}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  %t0 = fadd {vector} %s, %s
{sums}
  store {vector} %t{ACCUMULATORS}, ptr %out, align 4
  ret void
}}
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
attributes #0 = {{ "target-cpu"="{target.cpu}" "target-features"="{target.features}" "prefer-vector-width"="{target.vector_bits}" }}
""".replace("@fma(", f"@llvm.fma.v{lanes}f32(")
    return _compile_function(text, "spin", target), lanes


def _compile_function(text: str, name: str, target: Target) -> Callable[[int, Any], None]:
    """Compile LLVM IR and return its function `name(i64, ptr)`."""
    library = link_objects([emit_object(text, target)], [name])
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library[name])
    function.library = library  # type: ignore[attr-defined]  # the code must outlive the call
    return function


@lru_cache
def _read_kernel() -> tuple[Callable[[int, Any], None], int]:
    """Return a function of a number of steps and an address, that reads VECTORS_PER_STEP vectors a step; and bytes a step."""
    target = host_target()
    lanes = target.lanes(32)
    vector = f"<{lanes} x i32>"
    streams = range(VECTORS_PER_STEP)
    phis = "\n".join(f"  %a{c} = phi {vector} [ zeroinitializer, %entry ], [ %b{c}, %loop ]" for c in streams)
    steps = "\n".join(
        f"  %p{c} = getelementptr {vector}, ptr %row, i64 {c}\n  %v{c} = load {vector}, ptr %p{c}, align 64\n"
        f"  %b{c} = xor {vector} %a{c}, %v{c}\n  %q{c} = getelementptr i8, ptr %p{c}, i64 {PREFETCH_DISTANCE}\n"
        f"  call void @llvm.prefetch.p0(ptr %q{c}, i32 0, i32 2, i32 1)"
        for c in streams
    )
    sums = "\n".join(f"  %t{c + 1} = xor {vector} %t{c}, %b{c}" for c in streams)
    text = f"""
target triple = "{target.triple}"
define void @read(i64 %n, ptr %in) #0 {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
  %at = mul i64 %i, {VECTORS_PER_STEP}
  %row = getelementptr {vector}, ptr %in, i64 %at
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  %t0 = xor {vector} %b0, %b0
{sums}
  store {vector} %t{VECTORS_PER_STEP}, ptr %in, align 64
  ret void
}}
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
attributes #0 = {{ "target-cpu"="{target.cpu}" "target-features"="{target.features}" "prefer-vector-width"="{target.vector_bits}" }}
"""
    return _compile_function(text, "read", target), VECTORS_PER_STEP * lanes * 4


def fma_peak(threads: int, steps: int = 2_000_000) -> float:
    """Return f32 operations per second of `threads` threads together, the best of several tries."""
    function, lanes = _fma_kernel()
    values = [0.5 + k / (ACCUMULATORS * lanes) / 4 for k in range(ACCUMULATORS * lanes)]
    buffers = [(ctypes.c_float * len(values))(*values) for _ in range(threads)]
    seconds = _best_parallel_seconds(function, steps, [ctypes.addressof(b) for b in buffers])
    return threads * steps * ACCUMULATORS * lanes * 2 / seconds


def read_rate(threads: int) -> float:
    """Return bytes per second that `threads` threads read together, each its part of READ_BYTES."""
    function, step = _read_kernel()
    memory = numpy.ones(READ_BYTES // 4 + 16, dtype=numpy.int32)  # on large pages, unlike PyTorch's
    start = -(-memory.ctypes.data // 64) * 64
    steps = READ_BYTES // threads // step
    seconds = _best_parallel_seconds(function, steps, [start + t * steps * step for t in range(threads)])
    return threads * steps * step / seconds


def _best_parallel_seconds(
    function: Callable[[int, Any], None], steps: int, arguments: Sequence[int], tries: int = 10
) -> float:
    """Return the shortest time of calls with all arguments, each on its own thread, in seconds."""
    best = float("inf")
    for _ in range(tries):
        workers = [threading.Thread(target=function, args=(steps, a)) for a in arguments]
        start = time.perf_counter()
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        best = min(best, time.perf_counter() - start)
    return best
