"""Accesses of a kernel: strides, counts and dependences between iterations."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import (
    Access,
    Accesses,
    buffer_bytes,
    count_divisions,
    without_constant,
)
from compiler.ir.symbolic.index_expr import dynamic_size, var
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.type_parser import parse_type
from compiler.ir.tile.kernel import walk
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest

SUM = """kernel @k(in %x: f32[8, 16], out %y: f32[8]) {
  for %i in 0..8 { %s = reduce add %r in 0..16 { yield %x[%i, %r] }  store %s, %y[%i] } }"""


def accesses(text: str) -> Accesses:
    return Accesses(parse_kernel(text))


def load(table: Accesses, buffer: str = "x") -> Access:
    """The first load of a buffer."""
    return next(a for a in table.all if a.buffer == buffer and not a.is_store)


def copy(index: str, size: str = "8") -> Accesses:
    """A loop over %i that copies element [`index`] of %x."""
    return accesses(f"""kernel @k(in %x: f32[64], out %y: f32[{size}]) {{
      for %i in 0..{size} {{ store %x[{index}], %y[%i] }} }}""")


def test_lists_loads_and_stores_with_their_loops() -> None:
    table = accesses(SUM)
    assert [(a.buffer, a.is_store, [r.var for r in a.loops]) for a in table.all] == [
        ("x", False, ["i", "r"]),
        ("y", True, ["i"]),
    ]
    assert [a.execution_count for a in table.all] == [128, 8]
    assert table.roles == {"x": "in", "y": "out"}
    assert [s.name for s in table.reductions("i")] == ["s"]
    assert table.loop_bounds == {"i": (0, 7), "r": (0, 15)}


@pytest.mark.parametrize(
    ("index", "stride"), [("%i", 1), ("%i*3 + 2", 3), ("5", 0), ("7 - %i", -1), ("%i//2", None), ("%i%4", None)]
)
def test_stride_along_loop(index: str, stride: int | None) -> None:
    table = copy(index)
    assert table.stride(load(table), "i") == stride
    assert table.has_constant_strides("i") == (stride is not None)


def test_strides_follow_the_layout_of_a_buffer() -> None:
    table = accesses(SUM)
    x = load(table)
    assert [table.stride(x, v) for v in "ir"] == [16, 1]
    columns = table.with_param_types([parse_type("f32[8, 16]{1, 0}"), parse_type("f32[8]")])
    assert [columns.stride(x, v) for v in "ir"] == [1, 8]
    assert [table.stride(x, v) for v in "ir"] == [16, 1]


def test_stride_of_dynamic_row_assumes_its_hint() -> None:
    table = accesses("""kernel @k(size n in 1..99 hint 10, in %x: f32[4, n], out %y: f32[4]) {
      for %i in 0..4 { store %x[%i, 0], %y[%i] } }""")
    assert table.stride(load(table), "i") == 10
    assert buffer_bytes(table, load(table)) == 160


def test_local_buffer_has_a_copy_for_each_iteration_around_it() -> None:
    table = accesses("""kernel @k(in %x: f32[8, 4], out %y: f32[8, 4]) {
      for %i in 0..8 { local %t: f32[4]
        for %j in 0..4 { store %x[%i, %j], %t[%j] }  for %k in 0..4 { store %t[%k], %y[%i, %k] } } }""")
    t = load(table, "t")
    assert table.stride(t, "i") == 1
    assert table.depends_on(t, "i")
    assert table.local_bytes("i") == 16
    assert table.local_bytes("k") == 0
    assert table.is_parallel("i")


def test_value_names_carry_the_loops_they_vary_with() -> None:
    table = accesses("""kernel @k(in %x: i64[8], in %t: f32[9], out %y: f32[8]) {
      for %i in 0..8 { %p = %x[%i]  store %t[%p], %y[%i] } }""")
    assert table.loops_by_name["p"] == {"i"}
    assert table.stride(load(table, "t"), "i") is None
    assert table.depends_on(load(table, "t"), "i")


PARALLEL = {
    "one element each": ("in %x: f32[9], out %y: f32[9]", "store %x[%i], %y[%i]", True),
    "one element for all": ("in %x: f32[9], out %y: f32[9]", "store %x[%i], %y[0]", False),
    "two elements share one": ("in %x: f32[9], out %y: f32[9]", "store %x[%i], %y[%i//2]", False),
    "reads its own element": ("in %x: f32[9], inout %y: f32[9]", "store %x[%i] + %y[%i], %y[%i]", True),
    "reads another element": ("in %x: f32[9], inout %y: f32[9]", "store %x[%i] + %y[8 - %i], %y[%i]", False),
}


@pytest.mark.parametrize("case", PARALLEL)
def test_loop_is_parallel_if_iterations_write_distinct_elements(case: str) -> None:
    params, body, expected = PARALLEL[case]
    table = accesses(f"kernel @k({params}) {{ for %i in 0..9 {{ {body} }} }}")
    assert table.is_parallel("i") == expected
    assert table.parallel_loops == ({"i"} if expected else set())


def test_loop_that_bounds_an_inner_loop_is_not_parallel() -> None:
    table = accesses("""kernel @k(in %x: f32[8], out %y: f32[8]) {
      for %i in 0..8 { %s = reduce add %r in 0..%i + 1 { yield %x[%r] }  store %s, %y[%i] } }""")
    assert not table.is_parallel("i")


def test_groups_accesses_that_differ_by_a_constant() -> None:
    table = accesses("""kernel @k(in %x: f32[10], out %y: f32[8]) {
      for %i in 0..8 { store %x[%i] + %x[%i + 1] + %x[%i + 2], %y[%i] } }""")
    assert [(a.buffer, count) for a, count in table.access_groups] == [("x", 3), ("y", 1)]
    i = var("i")
    assert without_constant(i * 2 + 5) == i * 2
    assert without_constant(7) == 0


def test_counts_divisions_by_loop_variables() -> None:
    i, n = var("i"), dynamic_size("n", 1, 99, 10)
    assert count_divisions(i // 3 + i % 4 + (i // 3) * 5) == 2
    assert count_divisions(n // 3) == 0
    assert count_divisions(7) == 0


def test_perfect_nest_ends_at_the_first_block_with_several_statements() -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[4, 4], out %y: f32[4, 4]) {
      for %i in 0..4 { for %j in 0..4 { %a = %x[%i, %j]  store %a, %y[%i, %j] } } }""")
    nest = perfect_nest(kernel.body)
    assert [f.range.var for f in nest] == ["i", "j"]
    (again,) = wrap_in_nest(nest, nest[-1].body)
    assert list(walk((again,))) == list(walk(kernel.body))
    assert perfect_nest(nest[-1].body) == []
