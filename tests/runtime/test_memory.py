"""The memory plan: nothing alive is overwritten, and what can share memory does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import VerifyError
from compiler.ir.text.tile_parser import parse_program
from compiler.runtime.memory import (
    ALIGNMENT,
    Lifetime,
    assign_offsets,
    grid_in_place_pairs,
    in_place_pairs,
    plan_memory,
)

LIFETIMES = st.builds(
    lambda first, length, size: Lifetime(first, first + length, size),
    st.integers(0, 12), st.integers(0, 5), st.integers(0, 1000),
)  # fmt: skip

CHAIN = """
program {
  input %x: f32[64]
  output %y: f32[64]
  buffer %a: f32[64]
  buffer %b: f32[64]
  buffer %c: f32[64]
  kernel @inc(in %s: f32[64], out %t: f32[64]) {
    for %i in 0..64 tile 64 lanes 16 {
      store %s[%i] + 1.0, %t[%i]
    }
  }
  launch @inc(%x, %a)
  launch @inc(%a, %b)
  launch @inc(%b, %c)
  launch @inc(%c, %y)
}
"""
INSIDE = ("a", "b", "c")


@given(st.lists(LIFETIMES, max_size=30))
def test_buffers_alive_together_do_not_overlap(lives):
    named = {f"b{k}": life for k, life in enumerate(lives)}
    offsets = assign_offsets(named)
    assert set(offsets) == set(named)
    assert all(offset % ALIGNMENT == 0 for offset in offsets.values())
    for one, a in named.items():
        for other, b in named.items():
            if one < other and a.first <= b.last and b.first <= a.last:
                apart = offsets[one] + a.size <= offsets[other] or offsets[other] + b.size <= offsets[one]
                assert apart, f"{one} {a} at {offsets[one]} meets {other} {b} at {offsets[other]}"


@given(st.lists(LIFETIMES, max_size=30))
def test_no_larger_than_side_by_side(lives):
    offsets = assign_offsets({f"b{k}": life for k, life in enumerate(lives)})
    size = max((offsets[f"b{k}"] + life.size for k, life in enumerate(lives)), default=0)
    assert size <= sum(-(-life.size // ALIGNMENT) * ALIGNMENT for life in lives)


def test_a_chain_needs_two_buffers():
    plan = plan_memory(parse_program(CHAIN), INSIDE, {})
    assert (plan.size, plan.size_without_reuse) == (2 * 256, 3 * 256)
    assert plan.offsets["a"] == plan.offsets["c"] != plan.offsets["b"]


def test_in_place_it_needs_one():
    program = parse_program(CHAIN)
    assert plan_memory(program, INSIDE, in_place_pairs(program)).size == 256


def test_an_input_used_later_is_not_written_over():
    program = parse_program(CHAIN.replace("launch @inc(%c, %y)", "launch @inc(%a, %c)\n  launch @inc(%c, %y)"))
    plan = plan_memory(program, INSIDE, in_place_pairs(program))
    assert plan.offsets["a"] != plan.offsets["b"]


def test_reading_before_writing_is_refused():
    program = parse_program(CHAIN.replace("launch @inc(%x, %a)\n", ""))
    with pytest.raises(VerifyError, match="%a is read by step 0"):
        plan_memory(program, INSIDE, {})


def test_programs_of_a_grid_write_over_no_input_of_a_store_that_they_repeat():
    program = parse_program("""program {
      input %x: f32[8]  input %s: f32[]  output %y: f32[8]  output %t: f32[]
      kernel @k(in %x: f32[8], in %s: f32[], out %y: f32[8], out %t: f32[]) {
        store exp(%s[]), %t[]
        parallel %i in 0..8 { store exp(%x[%i]), %y[%i] }
      }
      launch @k(%x, %s, %y, %t)
    }""")
    assert set(in_place_pairs(program)["k"]) == {("x", "y"), ("s", "t")}
    assert grid_in_place_pairs(program)["k"] == {("x", "y")}


@pytest.mark.parametrize(
    ("columns", "loop", "in_place"),
    [
        (24, "0..24 tile 24 lanes 16", False),
        (32, "0..32 tile 32 lanes 16", True),
        (24, "0..24 tile 8 lanes 8", True),
        (152, "0..152 tile 152 lanes 16", True),  # one of ten
        (4, "0..4 tile 4", True),
        (4, "4..4 tile 4 lanes 4", True),  # nothing
    ],
)
def test_rows_that_end_inside_a_vector_are_not_written_in_place(columns: int, loop: str, in_place: bool) -> None:
    program = parse_program(f"""program {{
      input %x: f32[9, {columns}]  output %y: f32[9, {columns}]
      kernel @k(in %s: f32[9, {columns}], out %t: f32[9, {columns}]) {{
        for %i in 0..9 {{ for %j in {loop} {{ store %s[%i, %j] + 1.0, %t[%i, %j] }} }}
      }}
      launch @k(%x, %y)
    }}""")
    assert in_place_pairs(program)["k"] == ({("s", "t")} if in_place else set())
