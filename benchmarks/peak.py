"""What this machine can do: multiply-adds from registers, bytes read and copied, measured when they are needed."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy
import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.report.measure import interleaved_medians
from compiler.runtime.loader import link_objects
from compiler.target import Target

ACCUMULATORS = host_target().vector_registers * 3 // 4
"""Independent accumulators: enough to hide the latency of a multiply-add, and room in the registers for more."""

VECTORS_PER_STEP = 8
"""Vectors that one step of the reading loop adds up side by side."""

PREFETCH_DISTANCE = 4096
"""Bytes between what is read and what is fetched."""

READ_BYTES = 64 << 20
"""Bytes read: twice a last cache of 32 MiB, as much as the weights of 4096 x 4096."""


@lru_cache
def _fma_kernel() -> tuple[Callable[[int, Any], None], int]:
    """A function of the number of steps, each of `CHAINS` vector multiply-adds on registers; and the lanes."""
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
    """The function `name(i64, ptr)` of LLVM IR, compiled."""
    library = link_objects([emit_object(text, target)], [name])
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library[name])
    function.library = library  # type: ignore[attr-defined]  # the code must outlive the call
    return function


@lru_cache
def _read_kernel() -> tuple[Callable[[int, Any], None], int]:
    """A function of the number of steps and the memory that they read, `STREAMS` vectors each; and the bytes of a step."""
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
    """Single-precision operations per second that `threads` threads reach together, the best of several tries."""
    function, lanes = _fma_kernel()
    values = [0.5 + k / (ACCUMULATORS * lanes) / 4 for k in range(ACCUMULATORS * lanes)]
    buffers = [(ctypes.c_float * len(values))(*values) for _ in range(threads)]
    return (
        threads
        * steps
        * ACCUMULATORS
        * lanes
        * 2
        / _best_parallel_seconds(function, steps, [ctypes.addressof(b) for b in buffers])
    )


def read_rate(threads: int) -> float:
    """Bytes per second that `threads` threads read together, each its part of memory twice as large as the last cache."""
    function, step = _read_kernel()
    memory = numpy.ones(READ_BYTES // 4 + 16, dtype=numpy.int32)  # on large pages, unlike PyTorch's
    start = -(-memory.ctypes.data // 64) * 64
    steps = READ_BYTES // threads // step
    seconds = _best_parallel_seconds(function, steps, [start + t * steps * step for t in range(threads)])
    return threads * steps * step / seconds


def _best_parallel_seconds(
    function: Callable[[int, Any], None], steps: int, arguments: Sequence[int], tries: int = 10
) -> float:
    """The least seconds that a call with each argument takes, each on a thread of its own."""
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


def copy_rate(source: torch.Tensor) -> float:
    """Bytes read and written per second by a plain copy into a ready buffer, on PyTorch's threads."""
    target = torch.empty_like(source)
    (seconds,) = interleaved_medians([lambda: target.copy_(source)])
    return 2 * source.nbytes / seconds
