"""The machine code is made for: what LLVM must be told and what tile passes ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm

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
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Target:
    """A CPU as LLVM names it: `features` is LLVM's list ("+avx2,-sse4a"), `registers` counts vector registers."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    def has_feature(self, feature: str) -> bool:
        """Whether the CPU has `feature`, by LLVM's name: "fma", "avx512bf16", "avx512vnni"."""
        return f"+{feature}" in self.features.split(",")

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one vector register."""
        return self.vector_bits // bits

    def missing_host_features(self) -> str:
        """What this machine lacks to run such code, in words; empty where it can."""
        host = Target.host()
        if self.triple.split("-")[0] != host.triple.split("-")[0]:
            return f"a {self.triple.split('-')[0]} CPU"
        return ", ".join(f[1:] for f in self.features.split(",") if f.startswith("+") and not host.has_feature(f[1:]))

    @staticmethod
    def host() -> Target:
        """This machine, with the widest vectors it has."""
        return _host()

    @staticmethod
    def by_name(name: str) -> Target:
        """A target by name: "host" or one of `TARGETS`; ValueError for any other."""
        if name == "host":
            return _host()
        if name not in CPU_TARGETS:
            raise ValueError(f"no target called {name!r}; choose host, {', '.join(CPU_TARGETS)}")
        return CPU_TARGETS[name]


def _features(present: tuple[str, ...], absent: tuple[str, ...] = ()) -> str:
    return ",".join([*(f"+{f}" for f in present), *(f"-{f}" for f in absent)])


CPU_TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("x86-64", LINUX_X86, "x86-64", _features(_SSE2), 128, 16),
        Target("x86-64-v3", LINUX_X86, "x86-64-v3", _features(_AVX2), 256, 16),
        Target("x86-64-v4", LINUX_X86, "x86-64-v4", _features(_AVX512, absent=("prefer-256-bit",)), 512, 32),
        Target("aarch64", LINUX_ARM, "generic", _features(("neon", "fp-armv8")), 128, 32),
    )
}
"""Targets that need no such machine to compile for."""


@lru_cache(maxsize=1)
def _host() -> Target:
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    has = llvm.get_host_cpu_features()
    features = has.flatten()
    if all(has.get(f) for f in _AVX512):
        return Target("host", triple, cpu, f"{features},-prefer-256-bit", 512, 32)
    bits = 256 if has.get("avx2") and has.get("fma") else 128
    return Target("host", triple, cpu, features, bits, 16 if triple.startswith("x86") else 32)
