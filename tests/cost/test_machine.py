"""Descriptions of machines: every field says what it is, and files say what was measured."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from compiler.codegen.backend import target_by_name
from compiler.cost import machine as machine_module
from compiler.cost.machine import AVX2, AVX512, FIELDS, ORIGINS, Machine, read_machine, shipped_machine, write_machine
from compiler.errors import TargetError
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.options import Options
from compiler.passes.base import Context, pass_options
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import available_passes
from compiler.passes.tile.prefetch import Prefetch
from compiler.pipeline import lower_and_schedule
from compiler.tools.microbenchmarks import MICROBENCHMARKS

SHIPPED = sorted((Path(machine_module.__file__).parent / "machines").glob("*.toml"))


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_a_unit_a_meaning_and_an_origin(name: str) -> None:
    f = FIELDS[name].metadata
    assert f["unit"]
    assert f["meaning"].endswith(".")
    assert f["origin"] in ORIGINS or f["origin"] == name in MICROBENCHMARKS


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_description_says_where_it_comes_from(path: Path) -> None:
    header = tomllib.loads(path.read_text())
    assert header.get("cpu") or header["gpu"]
    assert header["date"]
    assert header["command"] or "Not measured" in header["note"]
    assert shipped_machine(path.stem) == read_machine(path)


def test_a_description_round_trips_through_its_file(tmp_path: Path) -> None:
    path, values = tmp_path / "m.toml", {"l2": 12345, "unaligned_cost": 1.25, "has_embedded_broadcast": True}
    write_machine(path, "avx2", values, {"cpu": "x", "note": "y"})
    machine = read_machine(path)
    assert {n: getattr(machine, n) for n in values} == values
    assert machine.registers == AVX2.registers
    assert target_by_name("x86-64-v3", str(path)).machine == machine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[machine]\nfma_latencey = 4", "no field 'fma_latencey'; did you mean 'fma_latency'"),
        ('base = "avx3"', "no description is called 'avx3'; there are a100, avx2, avx512"),
        ("[machine]\nl2 = 1.5", "l2 takes a positive int, not 1.5"),
        ("[machine]\nl2 = 0", "l2 takes a positive int, not 0"),
        ("[machine]\nfrequency = true", "frequency takes a positive float, not True"),
        ("[machine", "cannot read a machine's description"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(TargetError, match=message):
        read_machine(path)
    with pytest.raises(TargetError, match="cannot read"):
        read_machine(tmp_path / "absent.toml")


def test_passes_of_a_compilation_ask_the_described_machine(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    write_machine(path, "avx512", {"launch_seconds": 7e-9}, {})
    graph = parse_graph("graph(%x: f32[8]) { %y = relu %x  return %y }")
    assert lower_and_schedule(graph, Options(machine=str(path))).context.machine.launch_seconds == 7e-9


def test_options_of_passes_name_fields_of_the_machine() -> None:
    declared = [f for make in available_passes().values() for f in pass_options(make) if "machine" in f.metadata]
    assert declared
    assert all(hasattr(Machine(), f.metadata["machine"]) and f.default is None for f in declared)


def test_an_option_that_is_given_overrides_the_machine() -> None:
    text = """kernel @k(in %x: f32[8, 6], out %y: f32[8]) {
      for %i in 0..8 { %s = reduce add %r in 0..6 { yield %x[%i, %r] }  store %s, %y[%i] } }"""

    def unrolled(passes: str, most: int) -> bool:
        context = Context(Machine(max_unrolled_steps=most))
        return "unroll 6" in print_kernel(run_pipeline(parse_kernel(text), passes, context))

    assert [unrolled("unroll", 6), unrolled("unroll", 5)] == [True, False]
    assert [unrolled("unroll{max-steps=5}", 6), unrolled("unroll{max-steps=6}", 5)] == [False, True]


def test_alternatives_leave_the_machine_its_options() -> None:
    """So that their text has only what differs."""
    context, pass_ = Context(AVX512), Prefetch()
    context.propose(pass_, Prefetch(distance=4096).for_machine(AVX512), pass_.for_machine(AVX512), None)
    texts = [a.replacement and str(a.replacement) for a in context.alternatives]
    assert texts == ["prefetch{distance=4096}", "prefetch", None]
