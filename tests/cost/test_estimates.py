"""Arithmetic and traffic, counted by hand."""

import pytest

from compiler.cost.estimates import (
    count_bytes,
    count_flops,
    count_passes,
    estimated_ops,
    symbolic_ops,
    unscheduled_seconds,
)
from compiler.cost.machine import AVX512, GPU, Machine
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.text.tile_parser import parse_kernel


def flops(body: str) -> int:
    return count_flops(parse_kernel(f"kernel @k(in %x: f32[8, 8], out %y: f32[8, 8]) {{ {body} }}"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for %i in 0..8 { store %x[%i, 0], %y[%i, 0] }", 0),
        ("for %i in 0..8 { store %x[%i, 0] * 2.0 + 1.0, %y[%i, 0] }", 16),
        ("for %i in 0..8 tile 4 lanes 4 { store exp(%x[%i, 0]), %y[%i, 0] }", 8),
        ("for %i in 0..8 { store fma(%x[%i, 0], 2.0, 1.0), %y[%i, 0] }", 16),
        ("for %i in 0..8 { %s = reduce add %k in 0..8 { yield %x[%i, %k] * %x[%i, %k] }  store %s, %y[%i, 0] }", 128),
        ("for %i in 0..8 { for %j in 0..%i { store %x[%i, %j] + 1.0, %y[%i, %j] } }", 56),
        ("for %i in 0..8 { store where(%x[%i, 0] < 0.0, 0.0, %x[%i, 0]), %y[%i, 0] }", 0),
        ("for %i in 8..8 { store %x[%i, 0] + 1.0, %y[%i, 0] }", 0),
    ],
)
def test_flops(body, expected):
    assert flops(body) == expected


def test_bytes():
    text = (
        "kernel @k(in %x: bf16[8, 8], in %w: f32[8, 5]{{1/4, 0, 1%4}}, {role} %y: f32[8, 8]) {{ store 0.0, %y[0, 0] }}"
    )
    assert count_bytes(parse_kernel(text.format(role="out"))) == 128 + 8 * 8 * 4 + 256
    assert count_bytes(parse_kernel(text.format(role="inout"))) == 128 + 8 * 8 * 4 + 512


def test_bytes_of_a_table():
    lookup = "%v = %i[%n]   for %c in 0..16 { store %table[%v, %c]{more}, %y[%n, %c] }"
    text = (
        "kernel @k(in %table: f32[1000, 16], in %i: i64[4], out %y: f32[4, 16]) { for %n in 0..4 { " + lookup + " } }"
    )
    assert count_bytes(parse_kernel(text.replace("{more}", ""))) == 4 * 16 * 4 + 4 * 8 + 4 * 16 * 4
    assert count_bytes(parse_kernel(text.replace("{more}", " + %table[%n, %c]"))) == 64000 + 4 * 8 + 4 * 16 * 4


def test_estimated_ops_of_each_iteration() -> None:
    def cost(value: str) -> int:
        return estimated_ops(
            parse_kernel(f"""kernel @k(in %x: f32[8], out %y: f32[8]) {{
          for %i in 0..8 {{ store {value}, %y[%i] }} }}"""),
            AVX512,
        )

    copied = cost("%x[%i]")
    assert copied == 8 * 2  # a load and a store
    assert cost("%x[%i] + 1.0") == copied + 8
    assert cost("%x[%i//2]") == copied + 8 * AVX512.division_ops
    assert cost("load(%x[%i], index(%i) < 8)") == copied + 8 * (AVX512.masked_load_cost - 1 + 1)  # and the comparison


def test_symbolic_ops_are_a_function_of_dynamic_sizes() -> None:
    kernel = parse_kernel("""kernel @k(size n in 1..99 hint 10, in %x: f32[n], out %y: f32[n]) {
      for %i in 0..n { store %x[%i] + 1.0, %y[%i] } }""")
    assert str(symbolic_ops(kernel, AVX512)) == "n*3"  # a load, an addition and a store
    assert estimated_ops(kernel, AVX512) == evaluate(symbolic_ops(kernel, AVX512), {"n": 10}) == 30


@pytest.mark.parametrize(("parallel_seconds", "idle"), [(1e-6, 1.0), (1e-9, 8 / 5)])
def test_seconds_of_scalar_loops(parallel_seconds: float, idle: float) -> None:
    """Operations, bytes and a launch; five iterations take four threads as long as eight, where they share them."""
    kernel = parse_kernel("""kernel @k(in %x: f32[5], out %y: f32[5]) {
      parallel %i in 0..5 { store %x[%i] + 1.0, %y[%i] } }""")
    machine = Machine(
        frequency=1e9, fma_per_cycle=1, vector_bits=32, traffic_bytes_per_cycle=2, threads=4,
        launch_seconds=7e-9, parallel_seconds=parallel_seconds,
    )  # fmt: skip
    assert unscheduled_seconds(kernel, machine) == pytest.approx(7e-9 + idle * (5 * 3 + 5 * 8 / 2) * 1e-9)


@pytest.mark.parametrize(("machine", "launches"), [(Machine(launch_seconds=1.0), 1), (GPU(launch_seconds=1.0), 2)])
def test_each_loop_nest_of_a_gpu_is_launched(machine: Machine, launches: int) -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[5], out %y: f32[5], out %z: f32[5]) {
      parallel %i in 0..5 { store %x[%i] + 1.0, %y[%i] }
      parallel %j in 0..5 { store %y[%j] + 1.0, %z[%j] } }""")
    assert unscheduled_seconds(kernel, machine) == pytest.approx(launches, rel=1e-3)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (
            "%s = reduce add %k in 0..1024 { yield %x[%i, %k] }  for %j in 0..1024 { store %x[%i, %j] / %s, %y[%i, %j] }",
            2,
        ),
        ("for %j in 0..1024 { store %x[%i, %j] + 1.0, %y[%i, %j] }", 1),
    ],
)
def test_long_rows_are_counted_for_each_loop_that_reads_them(body, passes):
    kernel = parse_kernel(
        f"kernel @k(in %x: f32[8, 1024], out %y: f32[8, 1024]) {{ parallel %i in 0..8 {{ {body} }} }}"
    )
    x, y = kernel.params
    assert count_passes(kernel, x, Machine(l2=4095)) == passes
    assert count_passes(kernel, x, Machine(l2=4096)) == count_passes(kernel, y, Machine(l2=4095)) == 1
