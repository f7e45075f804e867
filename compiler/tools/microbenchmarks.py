"""Microbenchmarks: loops of a few instructions, and programs of small kernels, that measure fields of a machine's description by name."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf
from typing import Any, TypeAlias

import numpy
import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import CPUTarget
from compiler.cost.line_traffic import PAGE_BYTES
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.text.tile_parser import parse_program
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.loader import link_objects
from compiler.runtime.threads import prepare_call

Timer: TypeAlias = Callable[[Callable[[], object]], float]
"""Runs a function and returns the seconds that it takes undisturbed."""


def least_seconds(run: Callable[[], object], tries: int = 25, clock: Callable[[], float] = time.thread_time) -> float:
    """Return the least time of several calls, because disturbances only add time.

    Other processes add none to the CPU time of the thread, which is the default clock.
    """
    best = float("inf")
    for _ in range(tries):
        start = clock()
        run()
        best = min(best, clock() - start)
    return best


least_elapsed = partial(least_seconds, clock=time.perf_counter)
"""Return the least time that passes during several calls, for functions that wait for other threads."""


@dataclass(frozen=True)
class VectorLoop:
    """A loop of LLVM IR over several chains, in each of which `step` computes the next value in every iteration.

    `step` is written for chain {c} with values of type {t}: from %a{c} it computes %b{c}, with %s the value in front of the
    data, at the address %p{c}: vector {c} of the data that the iteration visits, from `offset` bytes on.  `gap` bytes lie
    between the data of two iterations.  Chains whose step has no %b{c} carry nothing.
    """

    step: str
    chains: int
    element: str = "float"
    declarations: str = ""
    offset: int = 0
    gap: int = 0

    def step_bytes(self, target: CPUTarget) -> int:
        """Return the bytes from the data of an iteration to those of the next."""
        return self.chains * target.vector_bits // 8 + self.gap

    def compile(self, target: CPUTarget) -> Callable[[int, int, int], None]:
        """Return a function of the number of iterations, the address of the data, and their bytes (a power of two) - 1."""
        lanes = target.lanes(64 if self.element == "i64" else 32)
        t, chains, carried = f"<{lanes} x {self.element}>", range(self.chains), "%b{c}" in self.step
        if self.element == "i64":
            t = "i64"
        names = {"t": t, "lanes": lanes, "e": self.element, "pairs": 2 * lanes, "bits": target.vector_bits}
        attributes = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
        lines = [
            f'target triple = "{target.triple}"',
            "define void @loop(i64 %n, ptr %data, i64 %mask) #0 {\nentry:",
            f"  %s = load {t}, ptr %data, align 8",
            *(
                f"  %q{c} = getelementptr {t}, ptr %data, i64 {c}\n  %s{c} = load {t}, ptr %q{c}, align 8"
                for c in chains
            ),
            "  br label %body\nbody:\n  %i = phi i64 [ 0, %entry ], [ %j, %body ]",
            *(f"  %a{c} = phi {t} [ %s{c}, %entry ], [ %b{c}, %body ]" for c in chains if carried),
            f"  %far = mul i64 %i, {self.step_bytes(target)}\n  %at = and i64 %far, %mask",
            f"  %near = getelementptr i8, ptr %data, i64 %at\n  %row = getelementptr i8, ptr %near, i64 {self.offset}",
            *(f"  %p{c} = getelementptr {t}, ptr %row, i64 {c}\n{self.step.format(c=c, **names)}" for c in chains),
            "  %j = add i64 %i, 1\n  %more = icmp slt i64 %j, %n\n  br i1 %more, label %body, label %done\ndone:",
            *(f"  store {t} %b{c}, ptr %q{c}, align 8" for c in chains if carried),
            f"  ret void\n}}\n{self.declarations.format(**names)}",
            f'attributes #0 = {{ {attributes} "prefer-vector-width"="{target.vector_bits}" }}',
        ]
        library = link_objects([emit_object("\n".join(lines), target)], ["loop"])
        function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(library["loop"])
        function.library = library  # type: ignore[attr-defined]  # the code must outlive the call
        return function


compiled_loop = cache(VectorLoop.compile)


@dataclass(frozen=True)
class Bench:
    """Setup of microbenchmarks: `machine` has the sizes of the caches, `steps` are the fewest iterations of a loop.

    `timer` times code on one thread, `team_timer` code on several.
    """

    target: CPUTarget
    machine: Machine
    timer: Timer = least_seconds
    team_timer: Timer = least_elapsed
    steps: int = 1 << 16

    def seconds(self, loop: VectorLoop, size: int = 4096) -> float:
        """Return the seconds of one iteration of a loop over data of `size` bytes, rounded down to a power of two."""
        size, step = 1 << (size.bit_length() - 1), loop.step_bytes(self.target)
        data, steps = aligned_data(size + 2 * step), max(self.steps, 2 * size // step)
        function = compiled_loop(loop, self.target)
        function(steps, data.ctypes.data, size - 1)
        return self.timer(lambda: function(steps, data.ctypes.data, size - 1)) / steps

    @cached_property
    def frequency(self) -> float:
        """Cycles per second: additions and exclusive ors, each of which waits a cycle for the one before."""
        pair = "  %x{c}.{k} = add i64 {old}, %s\n  %y{c}.{k} = xor i64 %x{c}.{k}, %s0\n"
        pairs = [pair.replace("{k}", str(k)).replace("{old}", f"%y{{c}}.{k - 1}" if k else "%a{c}") for k in range(8)]
        return 17 / self.seconds(VectorLoop("".join(pairs) + "  %b{c} = add i64 %y{c}.7, %s", 1, "i64"))

    def cycles(self, loop: VectorLoop, size: int = 4096) -> float:
        """Return the cycles of one iteration of a loop over data of `size` bytes."""
        return self.seconds(loop, size) * self.frequency


def aligned_data(size: int) -> numpy.ndarray[Any, Any]:
    """Return f32 numbers of `size` bytes, at the start of a cache line."""
    whole = numpy.full(size // 4 + CACHE_LINE_BYTES, 0.5, numpy.float32)
    return whole[-whole.ctypes.data % CACHE_LINE_BYTES // 4 :]


FMA = "  %b{c} = call {t} @llvm.fma.v{lanes}f32({t} %a{c}, {t} %s, {t} %s)"
FMA_DECLARATION = "declare {t} @llvm.fma.v{lanes}f32({t}, {t}, {t})"
LOAD = "  %v{c} = load {t}, ptr %p{c}, align {align}\n  %b{c} = xor {t} %a{c}, %v{c}"
ALIGNED_LOADS = VectorLoop(LOAD.replace("{align}", "16"), 8, "i32")


def frequency(b: Bench) -> float:
    """Clock rate in Hz."""
    return b.frequency


def fma_per_cycle(b: Bench) -> float:
    """Multiply-adds into three quarters of the registers."""
    chains = b.target.vector_registers * 3 // 4
    return chains / b.cycles(VectorLoop(FMA, chains, declarations=FMA_DECLARATION))


def fma_latency(b: Bench) -> float:
    """Multiply-adds into one register."""
    return b.cycles(VectorLoop(FMA, 1, declarations=FMA_DECLARATION))


LIBRARY_CALL = """  %x{c} = extractelement {t} %a{c}, i32 0
  %y{c} = call float @fmaf(float %x{c}, float %x{c}, float %x{c}) nobuiltin
  %b{c} = insertelement {t} %a{c}, float %y{c}, i32 0"""


def library_call_cycles(b: Bench) -> float:
    """Multiply-adds of single numbers, rounded once; the described cycles where there is an instruction for them."""
    if b.machine.fma_instructions == 1:
        return b.machine.library_call_cycles
    chains = 4
    return b.cycles(VectorLoop(LIBRARY_CALL, chains, declarations="declare float @fmaf(float, float, float)")) / chains


BF16_DOT = """  %x{c} = bitcast {t} %s to <{pairs} x bfloat>
  %b{c} = call {t} @llvm.x86.avx512bf16.dpbf16ps.{bits}({t} %a{c}, <{pairs} x bfloat> %x{c}, <{pairs} x bfloat> %x{c})"""
BF16_DOT_DECLARATION = "declare {t} @llvm.x86.avx512bf16.dpbf16ps.{bits}({t}, <{pairs} x bfloat>, <{pairs} x bfloat>)"


def bf16_dots_per_cycle(b: Bench) -> float:
    """Dot products of pairs into three quarters of the registers; the described rate without such an instruction."""
    if "+avx512bf16" not in b.target.features.split(","):
        return b.machine.bf16_dots_per_cycle
    chains = b.target.vector_registers * 3 // 4
    return chains / b.cycles(VectorLoop(BF16_DOT, chains, declarations=BF16_DOT_DECLARATION))


def loads_per_cycle(b: Bench) -> float:
    """Loads from the first-level cache."""
    return ALIGNED_LOADS.chains / b.cycles(ALIGNED_LOADS)


def loads_per_broadcast(b: Bench) -> float:
    """Loads of one element into all lanes, beside loads of vectors."""
    load = "  %x{c} = load {e}, ptr %p{c}, align 4\n  %y{c} = insertelement {t} undef, {e} %x{c}, i32 0\n"
    splat = "  %v{c} = shufflevector {t} %y{c}, {t} undef, <{lanes} x i32> zeroinitializer\n"
    return b.cycles(VectorLoop(load + splat + "  %b{c} = xor {t} %a{c}, %v{c}", 8, "i32")) / b.cycles(ALIGNED_LOADS)


def unaligned_cost(b: Bench) -> float:
    """Loads four bytes off, beside aligned ones."""
    return b.cycles(VectorLoop(LOAD.replace("{align}", "4"), 8, "i32", offset=4)) / b.cycles(ALIGNED_LOADS)


def stores_per_cycle(b: Bench) -> float:
    """Stores into the first-level cache."""
    return 8 / b.cycles(VectorLoop("  store {t} %s, ptr %p{c}, align 16", 8))


def rotation(b: Bench, chains: int) -> VectorLoop:
    """Return a loop that rotates the lanes of registers by one, across the halves of wide ones."""
    lanes = b.target.lanes(32)
    mask = ", ".join(f"i32 {(k + 1) % lanes}" for k in range(lanes))
    return VectorLoop(f"  %b{{c}} = shufflevector {{t}} %a{{c}}, {{t}} undef, <{lanes} x i32> <{mask}>", chains, "i32")


def shuffles_per_cycle(b: Bench) -> float:
    """Rotations of independent registers."""
    return 8 / b.cycles(rotation(b, 8))


def shuffle_latency(b: Bench) -> float:
    """Rotations of one register."""
    return b.cycles(rotation(b, 1))


def line_cycles(b: Bench, size: int) -> float:
    """Return the cycles per cache line of a loop that reads `size` bytes of data again and again."""
    lines = ALIGNED_LOADS.chains * b.target.vector_bits / 8 / CACHE_LINE_BYTES
    return b.cycles(ALIGNED_LOADS, size) / lines


def l2_line_cycles(b: Bench) -> float:
    """Reads of half of the second-level cache."""
    return line_cycles(b, b.machine.l2 // 2)


def l3_line_cycles(b: Bench) -> float:
    """Reads of half of the last cache."""
    return line_cycles(b, b.machine.l3 // 2)


def memory_line_cycles(b: Bench) -> float:
    """Reads of four times the last cache."""
    return line_cycles(b, 4 * b.machine.l3)


def scattered_line_cycles(b: Bench) -> float:
    """Reads of every second 512 bytes of four times the last cache."""
    run = 8 * CACHE_LINE_BYTES
    loop = replace(ALIGNED_LOADS, chains=run * 8 // b.target.vector_bits, gap=run)
    return b.cycles(loop, 4 * b.machine.l3) / 8


POINTER_CHASE = VectorLoop("  %x{c} = inttoptr i64 %a{c} to ptr\n  %b{c} = load i64, ptr %x{c}, align 8", 1, "i64")


def latency(b: Bench, size: int) -> float:
    """Return the cycles of a load from data of `size` bytes whose address the load before has read."""
    lines = size // CACHE_LINE_BYTES
    data = aligned_data(size + CACHE_LINE_BYTES).view(numpy.int64)
    order = numpy.random.default_rng(0).permutation(lines) + 1  # the first line has the address to go on from
    places = order * (CACHE_LINE_BYTES // 8)
    data[places] = data.ctypes.data + 8 * numpy.roll(places, -1)
    data[0] = data[places[0]]
    function, steps = compiled_loop(POINTER_CHASE, b.target), max(b.steps, lines)
    function(steps, data.ctypes.data, 0)
    return b.timer(lambda: function(steps, data.ctypes.data, 0)) / steps * b.frequency


def l3_latency(b: Bench) -> float:
    """Loads that wait for each other, from a quarter of the last cache."""
    return latency(b, b.machine.l3 // 4)


def memory_latency(b: Bench) -> float:
    """Loads that wait for each other, from four times the last cache."""
    return latency(b, 4 * b.machine.l3)


def page_walk_cycles(b: Bench) -> float:
    """Reads of one line in each of twice as many pages as the TLB keeps; these lines fit the second-level cache."""
    pages = 2 * b.machine.tlb_pages
    loop = replace(ALIGNED_LOADS, chains=CACHE_LINE_BYTES * 8 // b.target.vector_bits, gap=PAGE_BYTES)
    data = torch.ones(pages * loop.step_bytes(b.target), dtype=torch.uint8)  # NumPy asks for huge pages
    function = compiled_loop(loop, b.target)
    return b.timer(lambda: function(pages, data.data_ptr(), -1)) / pages * b.frequency


CHAIN = """program {{
  input %x: f32[{n}]
  input %w: f32[{n}, {rows}]
  output %y: f32[{n}]
  buffer %a: f32[{n}]
  kernel @step(in %x: f32[{n}], in %w: f32[{n}, {rows}], out %y: f32[{n}]) {{ {body} }}
  copy %x -> %y
  repeat %t in 0..{repeats} {{
    launch @step(%y, %w, %a)
    launch @step(%a, %w, %y)
  }}
}}"""
"""Launches a kernel twice in each of `repeats` steps, each time on what the launch before wrote."""


def step_seconds(b: Bench, n: int, rows: int, body: str) -> float:
    """Return the seconds of one launch of a kernel that computes `n` numbers of `n` others and weights [n, rows]."""
    repeats = max(1, b.steps // (64 * rows))
    program = CPUExecutable(parse_program(CHAIN.format(n=n, rows=rows, body=body, repeats=repeats)), b.target)
    inputs = [torch.zeros(n), torch.zeros(n, rows)]
    program(inputs)
    return b.timer(lambda: program(inputs)) / (2 * repeats)


def launch_seconds(b: Bench) -> float:
    """Two kernels that multiply 4 KiB of numbers once each, beside one that multiplies them twice."""
    n, lanes = 1024, b.target.lanes(32)
    loop = f"for %i in 0..{n} tile {lanes} lanes {lanes}"
    once, twice = (
        step_seconds(b, n, 1, f"{loop} {{ store {value}, %y[%i] }}") for value in ("%x[%i] * 0.5", "%x[%i] * 0.5 * 0.5")
    )
    return 2 * once - twice


def parallel_seconds(b: Bench) -> float:
    """Work that takes as long on one thread as on all: products of a matrix and a vector, whose rows threads share or not."""
    n, threads, b = 64, prepare_call(), replace(b, timer=b.team_timer)
    product = "reduce add %k in 0..64 { yield %w[%i, %k] * %x[%k] }"
    alone, shared = (
        step_seconds(b, n, n, f"{loop} %i in 0..{n} {{ %s = {product} store %s, %y[%i] }}")
        for loop in ("for", "parallel")
    )
    return (shared - alone / threads) * threads / (threads - 1) if threads > 1 else inf


MICROBENCHMARKS: dict[str, Callable[[Bench], float]] = {
    f.__name__: f
    for f in (
        frequency, fma_per_cycle, fma_latency, bf16_dots_per_cycle, library_call_cycles, loads_per_cycle, loads_per_broadcast, unaligned_cost, stores_per_cycle,
        shuffles_per_cycle, shuffle_latency, l2_line_cycles, l3_line_cycles, memory_line_cycles, scattered_line_cycles, l3_latency,
        memory_latency, page_walk_cycles, launch_seconds, parallel_seconds,
    )
}  # fmt: skip
"""Microbenchmarks by the field that they measure."""
