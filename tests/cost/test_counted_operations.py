"""Operations that the estimate of a scheduled kernel counts: those that its code executes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.analysis.accesses import Accesses
from compiler.cost.issue import Issue, called
from compiler.cost.kernel_time import KernelCycles
from compiler.cost.machine import AVX512, Machine
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import For, Kernel


def counted(body: str, dtype: str = "f32", machine: Machine = AVX512) -> Issue:
    """Count the operations of statements on a vector of %x and of %y, the rows of %z."""
    params = f"in %x: {dtype}[16], in %y: {dtype}[16], out %z: {dtype}[4, 16]"
    kernel = parse_kernel(f"kernel @k({params}) {{ for %i in 0..16 tile 16 lanes 16 unroll 1 {{ {body} }} }}")
    return inside_loop(kernel, machine)


def inside_loop(kernel: Kernel, machine: Machine = AVX512) -> Issue:
    """Count the operations of one iteration of a kernel's loop."""
    accesses = Accesses(kernel)
    (loop,) = accesses.kernel.body
    assert isinstance(loop, For)
    return KernelCycles(accesses, machine).block(loop.body, {loop.range.var: loop.range}).straight


def test_what_is_known_of_each_iteration_costs_nothing() -> None:
    chosen = "%first = index(%j) < 2 store where(%first & (index(%j) > 0), %x[%i], %y[%i]), %z[%j, %i]"
    copied = "store %x[%i], %z[%j, %i]"
    apart = counted(f"for %j in 0..4 unroll 4 {{ {chosen} }}")
    assert apart.additions == counted(f"for %j in 0..4 unroll 4 {{ {copied} }}").additions == 0
    assert counted(f"for %j in 0..4 tile 4 {{ {chosen} }}").additions == 0
    assert counted("store where(%x[%i] > 0.0, %x[%i], %y[%i]), %z[0, %i]").additions == 2


def test_scalars_are_not_computed_in_vector_units() -> None:
    mask = "%k = %m[0] store where(%k > 2, %x[%i], %y[%i]), %z[0, %i]"
    kernel = parse_kernel(f"""kernel @k(in %m: i64[1], in %x: f32[16], in %y: f32[16], out %z: f32[1, 16]) {{
      for %i in 0..16 tile 16 lanes 16 {{ {mask} }}
    }}""")
    assert inside_loop(kernel).additions == 1  # the selection, not the comparison


def test_equal_values_are_computed_once() -> None:
    product = "%x[%i] * %y[%i]"
    twice = f"store {product}, %z[0, %i] store {product} + 1.0, %z[1, %i]"
    assert counted(twice).arithmetic == 1
    assert counted(twice).loads == counted(f"store {product}, %z[0, %i]").loads
    assert counted(f"store {product}, %z[0, %i] store %x[%i] * 2.0, %z[1, %i]").arithmetic == 2


def test_a_store_ends_what_is_known_of_its_buffer() -> None:
    first, second = "%a = %z[0, %i] + 1.0", "%b = %z[0, %i] + 1.0"
    assert counted(f"{first} {second} store %a + %b, %z[1, %i]").additions == 2
    assert counted(f"{first} store %a, %z[0, %i] {second} store %a + %b, %z[1, %i]").additions == 3


def test_integers_have_no_nan() -> None:
    assert [counted("store max(%x[%i], %y[%i]), %z[0, %i]", d).additions for d in ("i32", "f32")] == [1, 3]


@pytest.mark.parametrize(("primitive", "together"), [("add", 8), ("fma", 16)])
def test_additions_may_have_units_of_their_own(primitive: str, together: int) -> None:
    machine = replace(AVX512, fma_per_cycle=1, vector_unit_ratio=2.0, issue_width=10**6, unit_overlap_alone=64)
    work = called("mul", 8) + called(primitive, 8)
    assert work.cycles_alone(machine) == pytest.approx(16, rel=0.1)
    assert work.cycles_alone(replace(machine, adds_beside_products=True)) == pytest.approx(together, rel=0.1)


@pytest.mark.parametrize(("value", "calls"), [("fma(%x[%i], %y[%i], 1.0)", 16), ("%x[%i] * %y[%i] + 1.0", 0)])
def test_rounding_once_is_a_call_for_each_number_of_f64_without_an_instruction(value: str, calls: int) -> None:
    store = f"store {value}, %z[0, %i]"
    split = replace(AVX512, fma_instructions=3)
    assert counted(store, "f64", machine=split).stalled == calls * split.library_call_cycles
    assert counted(store).stalled == 0


def test_rounding_once_takes_f64_without_an_instruction() -> None:
    """Three conversions of a register to two, a product and a sum of either, and a conversion back."""
    work = counted("store fma(%x[%i], %y[%i], %x[%i + 1]), %z[0, %i]", machine=replace(AVX512, fma_instructions=3))
    assert (work.stalled, work.arithmetic + work.additions) == (0, 3 * 2 + 2 + 2 + 2)
