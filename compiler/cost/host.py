"""The description of this machine: its CPU by name, its caches as Linux lists them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from compiler.cost.machine import MACHINES, Machine, shipped_machine, shipped_names

SYSFS_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Where Linux describes the caches of the first core."""


def nearest_description(cpu: str, vector_bits: int, registers: int) -> str:
    """Return the name of the shipped description of `cpu` with such registers, or of the first machine that has them.

    Code for narrower vectors leaves units idle in other ways: a description of `cpu` with 256 bits is called `cpu`-256.
    """
    own = {n: shipped_machine(n) for n in (cpu, f"{cpu}-{vector_bits}") if n in shipped_names()}
    fitting = (n for n, m in {**own, **MACHINES}.items() if (m.vector_bits, m.registers) == (vector_bits, registers))
    return next(fitting, "avx512")


@lru_cache
def host_machine(cpu: str, vector_bits: int, registers: int, cache_dir: Path = SYSFS_CACHES) -> Machine:
    """Describe this machine, whose CPU LLVM calls `cpu` and which has `registers` vector registers of `vector_bits`.

    Caches that `cache_dir` does not list keep the sizes of the nearest description.
    """
    nearest = shipped_machine(nearest_description(cpu, vector_bits, registers))
    found = {
        level: (size, ways) for level, size, ways in map(read_cache, sorted(cache_dir.glob("index*"))) if size and ways
    }
    l1, l1_ways = found.get(1, (nearest.l1, nearest.l1_ways))
    l2, l3 = (found.get(n, (size, 0))[0] for n, size in ((2, nearest.l2), (3, nearest.l3)))
    return replace(nearest, l1=l1, l1_ways=l1_ways, l2=l2, l3=l3)


def read_cache(folder: Path) -> tuple[int, int, int]:
    """Return level, bytes and ways of one cache; zeros if it holds no data or is not described."""
    try:
        kind, level, size, ways = (
            (folder / name).read_text().strip() for name in ("type", "level", "size", "ways_of_associativity")
        )
        return (0, 0, 0) if kind == "Instruction" else (int(level), int(size.removesuffix("K")) << 10, int(ways))
    except (OSError, ValueError):
        return 0, 0, 0
