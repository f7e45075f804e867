"""CPUs as targets of LLVM, and this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from compiler.cost.host import host_machine
from compiler.cost.machine import AVX2, AVX512, MACHINES, NEON, SSE, Machine
from compiler.ir.types import DType, bf16x2, f32, i8, i8x4, i16x2, i32, u8, u8x4
from compiler.target import MatrixShape, MemorySpace, Target, is_or_widens

LINUX_X86 = "x86_64-unknown-linux-gnu"
LINUX_ARM = "aarch64-unknown-linux-gnu"

_SSE2 = ("cx8", "fxsr", "mmx", "sse", "sse2")
_AVX2 = (
    *_SSE2,
    "sse3",
    "ssse3",
    "sse4.1",
    "sse4.2",
    "popcnt",
    "avx",
    "avx2",
    "bmi",
    "bmi2",
    "f16c",
    "fma",
    "lzcnt",
    "movbe",
)
_NEON = ("neon", "fp-armv8")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


STACK_BYTES = 6 << 20
"""Bytes of local buffers that a kernel may place on a thread's stack: Linux gives the main thread and workers 8 MiB."""

NATIVE_DTYPES = ("f64", "f32", "i64", "i32", "i16", "i8", "u8", "bool")
"""Dtypes that scalar and vector units compute with; f16 and bf16 are widened to f32."""


_VNNI = ("avx512vnni", "avxvnni")


@dataclass(frozen=True)
class DotInstruction:
    """An instruction that computes in each lane the dot product of two packed elements, and adds it to the lane if it `accumulates`.

    Its vectors have `bits` bits.  CPUs with one of `features` have it.  `operand` is the type of the elements in LLVM.
    """

    lhs: DType
    rhs: DType
    accumulator: DType
    bits: int
    features: tuple[str, ...]
    intrinsic: str
    operand: str
    accumulates: bool = True

    def multiplies(self, lhs: DType, rhs: DType) -> bool:
        """Return True if the instruction multiplies packed elements of these dtypes, or integers that they are widened to."""
        pairs = ((self.lhs, lhs), (self.rhs, rhs))
        return all(
            own.element and x.element and own.count == x.count and is_or_widens(own.element, x.element)
            for own, x in pairs
        )


def _neon_dot(
    lhs: DType, rhs: DType, total: DType, feature: str, name: str, operand: str
) -> tuple[DotInstruction, ...]:
    """Return an instruction of AArch64 for vectors of 64 and of 128 bits."""
    sums, elements = f"{'f' if total.is_float else 'i'}32", operand.replace("bfloat", "bf16")
    return tuple(
        DotInstruction(
            lhs,
            rhs,
            total,
            bits,
            (feature,),
            f"{name}.v{bits // 32}{sums}.v{bits // 32 * lhs.count}{elements}",
            operand,
        )
        for bits in (64, 128)
    )


DOT_INSTRUCTIONS = (
    *(
        DotInstruction(bf16x2, bf16x2, f32, bits, ("avx512bf16",), f"llvm.x86.avx512bf16.dpbf16ps.{bits}", "bfloat")
        for bits in (128, 256, 512)
    ),
    *(
        DotInstruction(u8x4, i8x4, i32, bits, features, f"llvm.x86.avx512.vpdpbusd.{bits}", "i8")
        for bits, features in ((128, _VNNI), (256, _VNNI), (512, ("avx512vnni",)))
    ),
    DotInstruction(i16x2, i16x2, i32, 128, ("sse2",), "llvm.x86.sse2.pmadd.wd", "i16", accumulates=False),
    DotInstruction(i16x2, i16x2, i32, 256, ("avx2",), "llvm.x86.avx2.pmadd.wd", "i16", accumulates=False),
    DotInstruction(i16x2, i16x2, i32, 512, ("avx512bw",), "llvm.x86.avx512.pmaddw.d.512", "i16", accumulates=False),
    *_neon_dot(bf16x2, bf16x2, f32, "bf16", "llvm.aarch64.neon.bfdot", "bfloat"),
    *_neon_dot(u8x4, i8x4, i32, "i8mm", "llvm.aarch64.neon.usdot", "i8"),
    *_neon_dot(i8x4, i8x4, i32, "dotprod", "llvm.aarch64.neon.sdot", "i8"),
    *_neon_dot(u8x4, u8x4, i32, "dotprod", "llvm.aarch64.neon.udot", "i8"),
)
"""Dot products of packed elements, by preference."""


@dataclass(frozen=True)
class NarrowingInstructions:
    """Instructions that pack two vectors of `bits` bits: i32 to i16 by `to_i16`, and i16 to bytes by `to_byte`.

    What a narrower integer does not hold becomes its least or greatest value.  CPUs with `feature` have them.
    """

    dtype: DType
    bits: int
    feature: str
    to_i16: str
    to_byte: str


NARROWING_INSTRUCTIONS = tuple(
    NarrowingInstructions(dtype, bits, feature, f"llvm.x86.{name.format('ssdw')}", f"llvm.x86.{name.format(to_byte)}")
    for bits, feature, name in (
        (128, "sse2", "sse2.pack{}.128"),
        (256, "avx2", "avx2.pack{}"),
        (512, "avx512bw", "avx512.pack{}.512"),
    )
    for dtype, to_byte in ((u8, "uswb"), (i8, "sswb"))
)


@dataclass(frozen=True, kw_only=True)
class CPUTarget(Target):
    """A CPU as LLVM names it.

    `features` is LLVM's list ("+avx2,-sse4a").  There are `vector_registers` of `vector_bits` each.
    """

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    def has_feature(self, feature: str) -> bool:
        """Return True if the CPU has `feature`, by LLVM's name: "fma", "avx512bf16", "avx512vnni"."""
        return f"+{feature}" in self.features.split(",")

    def dot_instruction(self, lhs: DType, rhs: DType, lanes: int) -> DotInstruction | None:
        """Return the instruction that adds dot products of packed elements in `lanes` lanes, or None."""
        own = (d for d in DOT_INSTRUCTIONS if any(map(self.has_feature, d.features)))
        return next((d for d in own if d.multiplies(lhs, rhs) and lanes * d.accumulator.bits == d.bits), None)

    def narrowing_instructions(self, dtype: DType, lanes: int) -> NarrowingInstructions | None:
        """Return the instructions that narrow vectors of `lanes` i32 to `dtype` with saturation, or None."""
        fitting = (n for n in NARROWING_INSTRUCTIONS if n.dtype == dtype and n.bits == lanes * 32)
        return next((n for n in fitting if self.has_feature(n.feature)), None)

    @property
    def byte_permutation(self) -> str:
        """LLVM's name of the instruction that permutes the bytes of a vector, or ""."""
        return "llvm.x86.avx512.permvar.qi.512" if self.has_feature("avx512vbmi") else ""

    @property
    def has_mask_registers(self) -> bool:
        """True if vectors of any width are stored under masks as fast as whole ones."""
        return self.has_feature("avx512vl") and self.has_feature("avx512bw")

    @property
    def emulated(self) -> frozenset[str]:
        """Primitives on floats for which x86 needs a feature that this CPU lacks."""
        if not self.triple.startswith("x86"):
            return frozenset()
        needed = {"fma": "fma", **dict.fromkeys(("round", "floor", "ceil", "trunc"), "sse4.1")}
        return frozenset(name for name, feature in needed.items() if not self.has_feature(feature))

    def lanes(self, bits: int) -> int:
        """Return how many elements of `bits` bits fit one vector register."""
        return self.vector_bits // bits

    def missing_features(self) -> str:
        """Return what this machine lacks to run code for the target, in words; empty if it can run it."""
        host = host_target()
        if self.triple.split("-")[0] != host.triple.split("-")[0]:
            return f"a {self.triple.split('-')[0]} CPU"
        return ", ".join(f[1:] for f in self.features.split(",") if f.startswith("+") and not host.has_feature(f[1:]))


def cpu_target(
    name: str, triple: str, cpu: str, features: str, bits: int, registers: int, machine: Machine
) -> CPUTarget:
    """Return a CPU with what its features say that it multiplies."""
    memory = (
        MemorySpace("registers", registers * bits // 8, "thread"),
        MemorySpace("stack", STACK_BYTES, "thread"),
        MemorySpace("memory", None, "device"),
    )
    dots = [d for d in DOT_INSTRUCTIONS if d.bits <= bits and any(f"+{f}" in features.split(",") for f in d.features)]
    return CPUTarget(
        name=name,
        backend="llvm",
        native_dtypes=NATIVE_DTYPES,
        memory=memory,
        matrix_shapes=tuple(
            dict.fromkeys(
                MatrixShape(
                    1,
                    bits // d.accumulator.bits,
                    d.lhs.count,
                    f"{d.lhs.element}",
                    f"{d.rhs.element}",
                    f"{d.accumulator}",
                )
                for d in dots
            )
        ),
        native_primitives=("scale",) if {"+avx512f", "+avx512vl"} <= {*features.split(",")} else (),
        machine=machine,
        triple=triple,
        cpu=cpu,
        features=features,
        vector_bits=bits,
        vector_registers=registers,
    )


def _features(present: tuple[str, ...], absent: tuple[str, ...] = ()) -> str:
    return ",".join([*(f"+{f}" for f in present), *(f"-{f}" for f in absent)])


CPU_TARGETS: dict[str, CPUTarget] = {
    t.name: t
    for t in (
        cpu_target("x86-64", LINUX_X86, "x86-64", _features(_SSE2), 128, 16, SSE),
        cpu_target("x86-64-v3", LINUX_X86, "x86-64-v3", _features(_AVX2), 256, 16, AVX2),
        cpu_target(
            "x86-64-v4", LINUX_X86, "x86-64-v4", _features(_AVX512, absent=("prefer-256-bit",)), 512, 32, AVX512
        ),
        cpu_target("aarch64", LINUX_ARM, "generic", _features(_NEON), 128, 32, NEON),
        cpu_target("armv8.6-a", LINUX_ARM, "generic", _features((*_NEON, "dotprod", "i8mm", "bf16")), 128, 32, NEON),
    )
}
"""CPUs by name; any machine can make code for them."""


@cache
def host_target() -> CPUTarget:
    """Return this machine as a target, with the widest vectors it has."""
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    has = llvm.get_host_cpu_features()
    features = has.flatten()
    if all(has.get(f) for f in _AVX512):
        # LLVM replaces vpdpwssd by two instructions for their latency, which tiles hide
        bits, registers, features = 512, 32, f"{features},-prefer-256-bit,+fast-dpwssd"
    else:
        bits = 256 if has.get("avx2") and has.get("fma") else 128
        registers = 16 if triple.startswith("x86") else 32
    return cpu_target("host", triple, cpu, features, bits, registers, host_machine(cpu, bits, registers))


def machine_here(target: CPUTarget) -> Machine:
    """Return the description of this machine as it runs code for `target`, which describes a kind of CPU or has a description given."""
    if target.machine not in MACHINES.values():
        return target.machine or Machine()
    return host_machine(llvm.get_host_cpu_name(), target.vector_bits, target.vector_registers)
