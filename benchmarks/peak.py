"""What this machine can do: multiply-adds from registers, and bytes copied, measured when they are needed."""

from __future__ import annotations

import ctypes
import threading
import time
from functools import lru_cache

import torch

from compiler.codegen.llvm.object import to_object
from compiler.codegen.target import Target
from compiler.measure import medians
from compiler.runtime.loader import load

CHAINS = 24
"""Independent accumulators: enough to hide the latency of a multiply-add."""


@lru_cache
def _kernel() -> tuple[ctypes._CFuncPtr, int]:
    """A function of the number of steps, each of `CHAINS` vector multiply-adds on registers; and the lanes."""
    target = Target.host()
    lanes = target.lanes(32)
    vector = f"<{lanes} x float>"
    chains = range(CHAINS)
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
  store {vector} %t{CHAINS}, ptr %out, align 4
  ret void
}}
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
attributes #0 = {{ "target-cpu"="{target.cpu}" "target-features"="{target.features}" "prefer-vector-width"="{target.vector_bits}" }}
""".replace("@fma(", f"@llvm.fma.v{lanes}f32(")
    library = load([to_object(text, target)], ["spin"])
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library["spin"])
    function.library = library  # type: ignore[attr-defined]  # the code must outlive the call
    return function, lanes


def fma_peak(threads: int, steps: int = 2_000_000) -> float:
    """Single-precision operations per second that `threads` threads reach together, the best of several tries."""
    function, lanes = _kernel()
    values = [0.5 + k / (CHAINS * lanes) / 4 for k in range(CHAINS * lanes)]
    buffers = [(ctypes.c_float * len(values))(*values) for _ in range(threads)]
    best = 0.0
    for _ in range(5):
        workers = [threading.Thread(target=function, args=(steps, b)) for b in buffers]
        start = time.perf_counter()
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        best = max(best, threads * steps * CHAINS * lanes * 2 / (time.perf_counter() - start))
    return best


def copy_rate(source: torch.Tensor) -> float:
    """Bytes read and written per second by a plain copy into a ready buffer, on PyTorch's threads."""
    target = torch.empty_like(source)
    (seconds,) = medians([lambda: target.copy_(source)])
    return 2 * source.nbytes / seconds
