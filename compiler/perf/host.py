"""This machine: its CPU by name, its caches as Linux lists them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from compiler.perf.machine import AVX512, CPUS, MACHINES, Machine

LISTED = Path("/sys/devices/system/cpu/cpu0/cache")


@lru_cache
def host_machine(cpu: str, vector_bits: int, registers: int, listed: Path = LISTED) -> Machine:
    """This machine, whose CPU is called `cpu` by LLVM and has `registers` vector registers of `vector_bits`.

    Caches that are not listed are taken as usual.
    """
    alike = (
        m
        for m in (CPUS.get(cpu, AVX512), *MACHINES.values())
        if (m.vector_bits, m.registers) == (vector_bits, registers)
    )
    usual = next(alike, AVX512)
    found = {level: (size, ways) for level, size, ways in map(cache, sorted(listed.glob("index*"))) if size and ways}
    l1, l1_ways = found.get(1, (usual.l1, usual.l1_ways))
    l2, l3 = (found.get(n, (size, 0))[0] for n, size in ((2, usual.l2), (3, usual.l3)))
    return replace(usual, l1=l1, l1_ways=l1_ways, l2=l2, l3=l3)


def cache(folder: Path) -> tuple[int, int, int]:
    """Level, bytes and ways of one cache; zeros for one that holds no data or is not described."""
    try:
        kind, level, size, ways = (
            (folder / name).read_text().strip() for name in ("type", "level", "size", "ways_of_associativity")
        )
        return (0, 0, 0) if kind == "Instruction" else (int(level), int(size.removesuffix("K")) << 10, int(ways))
    except (OSError, ValueError):
        return 0, 0, 0
