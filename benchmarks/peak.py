"""Measured limits of this machine: multiply-add rates from registers, and memory read rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.codegen.llvm.targets import DOT_INSTRUCTIONS, CPUTarget, DotInstruction, host_target
from compiler.tools.microbenchmarks import LOAD, VectorLoop, aligned_data, compiled_loop

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


@dataclass(frozen=True)
class MultiplyAdd:
    """A vector instruction that adds `products` products of `operand` elements to each accumulator of 32 bits.

    `operand` and `accumulator` are LLVM's types.  CPUs with one of `features` have it, all if there are none.
    """

    instruction: str
    intrinsic: str
    operand: str
    products: int = 1
    accumulator: str = "float"
    features: tuple[str, ...] = ()

    def is_available(self, target: CPUTarget) -> bool:
        """Return True if the CPU has the instruction."""
        return not self.features or any(map(target.has_feature, self.features))

    def loop(self, target: CPUTarget) -> VectorLoop:
        """Return a loop into three quarters of the registers, enough to hide the latency."""
        lanes = target.lanes(32)
        intrinsic, vector = self.intrinsic.format(lanes=lanes), f"<{lanes * self.products} x {self.operand}>"
        call = f"call {{t}} @{intrinsic}({{t}} %a{{c}}, {vector} %x{{c}}, {vector} %x{{c}})"
        step = f"  %x{{c}} = bitcast {{t}} %s to {vector}\n  %b{{c}} = {call}"
        declaration = f"declare {{t}} @{intrinsic}({{t}}, {vector}, {vector})"
        return VectorLoop(step, target.vector_registers * 3 // 4, self.accumulator, declaration)


def widest_dot(target: CPUTarget, element: str) -> DotInstruction:
    """Return the instruction that adds products of `element` in whole registers: the target's, else the first of that width."""
    known = [
        d for d in DOT_INSTRUCTIONS if d.accumulates and f"{d.rhs.element}" == element and d.bits == target.vector_bits
    ]
    return next((d for d in known if any(map(target.has_feature, d.features))), known[0])


def dot_multiply_add(d: DotInstruction) -> MultiplyAdd:
    """Return a dot instruction as a multiply-add; its name is the fourth part of its intrinsic's."""
    accumulator = "i32" if d.accumulator.is_integer else "float"
    return MultiplyAdd(d.intrinsic.split(".")[3], d.intrinsic, d.operand, d.lhs.count, accumulator, d.features)


MULTIPLY_ADDS = {
    "f32": MultiplyAdd("vfmadd", "llvm.fma.v{lanes}f32", "float"),
    **{element: dot_multiply_add(widest_dot(host_target(), element)) for element in ("bf16", "i8")},
}
"""The widest multiply-add of each dtype of operands, by the dtype's name: i8 stands for u8 times i8."""


def multiply_add_peak(dtype: str, threads: int, steps: int = 500_000) -> float | None:
    """Return operations per second of `threads` threads together, the best of several tries; None without the instruction."""
    target, instruction = host_target(), MULTIPLY_ADDS[dtype]
    if not instruction.is_available(target):
        return None
    loop = instruction.loop(target)
    size = loop.chains * target.vector_bits // 8
    buffers = [aligned_data(size) for _ in range(threads)]
    seconds = _best_parallel_seconds(compiled_loop(loop, target), [(steps, b.ctypes.data, 0) for b in buffers])
    return threads * steps * size // 4 * 2 * instruction.products / seconds


def fma_peak(threads: int) -> float:
    """Return f32 operations per second of `threads` threads together."""
    return multiply_add_peak("f32", threads) or 0.0


def read_rate(threads: int) -> float:
    """Return bytes per second that `threads` threads read together, each its part of READ_BYTES."""
    target = host_target()
    step = READ_LOOP.chains * target.vector_bits // 8
    memory, steps = aligned_data(READ_BYTES), READ_BYTES // threads // step
    parts = [(steps, memory.ctypes.data + t * steps * step, (1 << 62) - 1) for t in range(threads)]
    return threads * steps * step / _best_parallel_seconds(compiled_loop(READ_LOOP, target), parts)


def _best_parallel_seconds(
    function: Callable[..., None], arguments: Sequence[tuple[Any, ...]], tries: int = 40
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
