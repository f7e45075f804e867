"""This machine: its CPU by name, its caches as listed or as usual."""

from __future__ import annotations

from pathlib import Path

from compiler.cost.host import host_machine, nearest_description
from compiler.cost.machine import AVX2, AVX512, NEON, shipped_machine


def listed(folder: Path, *caches: tuple[str, str, str, str]) -> Path:
    for k, cache in enumerate(caches):
        (folder / f"index{k}").mkdir(parents=True)
        for name, text in zip(("type", "level", "size", "ways_of_associativity"), cache, strict=True):
            (folder / f"index{k}" / name).write_text(f"{text}\n")
    return folder


def test_caches_are_as_the_system_lists_them(tmp_path: Path) -> None:
    """Those that hold data; what else is known of such machines stays."""
    folder = listed(
        tmp_path,
        ("Data", "1", "32K", "8"),
        ("Instruction", "1", "64K", "4"),
        ("Unified", "2", "512K", "8"),
        ("Unified", "3", "16384K", "16"),
    )
    machine = host_machine("znver3", 256, 16, folder)
    assert (machine.l1, machine.l1_ways, machine.l2, machine.l3) == (32 << 10, 8, 512 << 10, 16 << 20)
    assert (machine.instructions_per_cycle, machine.has_embedded_broadcast) == (
        AVX2.instructions_per_cycle,
        AVX2.has_embedded_broadcast,
    )


def test_what_is_not_listed_is_as_usual(tmp_path: Path) -> None:
    assert host_machine("znver5", 512, 32, tmp_path) == AVX512
    folder = listed(tmp_path / "odd", ("Data", "1", "many", "8"), ("Unified", "2", "2048K", "0"))
    assert host_machine("znver5", 512, 32, folder) == AVX512


def test_a_description_called_as_the_cpu_is_its_description(tmp_path: Path) -> None:
    assert nearest_description("sapphirerapids", 512, 32) == "sapphirerapids"
    assert host_machine("sapphirerapids", 512, 32, tmp_path) == shipped_machine("emeraldrapids")
    assert nearest_description("sapphirerapids", 256, 16) == "avx2"
    assert nearest_description("a-cpu-to-come", 512, 32) == "avx512"


def test_a_cpu_with_narrower_units_is_known_by_name(tmp_path: Path) -> None:
    """For each width of its vectors, of which those that fit the units begin twice as often."""
    for bits, registers, name in ((512, 32, "znver4"), (256, 16, "znver4-256"), (128, 16, "znver4-128")):
        machine = host_machine("znver4", bits, registers, tmp_path)
        assert machine == shipped_machine(name)
        assert (machine.vector_bits, machine.registers) == (bits, registers)
    assert host_machine("znver4", 128, 32, tmp_path) == NEON
