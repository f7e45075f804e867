"""Each rule of Tile IR refuses what it is for, and says so; valid kernels pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.errors import VerifyError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.ir.verify.kernel import verify_kernel

MATMUL = """
kernel @matmul(in %x: f32[8, 16], in %w: f32[32, 16], out %y: f32[8, 32]) {
  parallel %i in 0..8 tile 4 {
    parallel %j in 0..32 tile 16 lanes 16 {
      local %row: f32[4]
      for %m in 0..4 {
        store 0.0, %row[%m]
      }
      %acc = reduce add %k in 0..16 unroll 4 {
        yield %x[%i, %k] * %w[%j, %k]
      }
      store %acc + %row[0], %y[%i, %j]
    }
  }
}
"""


def test_a_valid_kernel_passes() -> None:
    verify_kernel(parse_kernel(MATMUL))


def kernel(body: str, params: str = "in %x: f32[8], out %y: f32[8]") -> str:
    return f"kernel @k({params}) {{ {body} }}"


BROKEN = {
    "rebinding": (kernel("%a = 1.0:f32 %a = 2.0:f32"), r"%a = \.\.\.: %a is already defined"),
    "hiding a loop": (kernel("for %i in 0..8 { for %i in 0..8 { store %x[%i], %y[%i] } }"), "%i is already defined"),
    "storing to an in parameter": (kernel("for %i in 0..8 { store %y[%i], %x[%i] }"), "%x is an in parameter"),
    "too few indices": (kernel("store %x[], %y[0]"), r"%x: f32\[8\] is indexed with 0 indices"),
    "reading past the end": (kernel("for %i in 0..8 { store %x[%i + 1], %y[%i] }"), r"%x: index 0, i \+ 1, ranges over 1..8, but"),
    "reading before the start": (kernel("for %i in 0..8 { store %x[%i - 1], %y[%i] }"), "ranges over -1..6, but the extent is 8"),
    "storing past the end": (kernel("for %i in 0..9 tile 4 { store 1.0, %y[%i] }"), "ranges over 0..8, but the extent is 8"),
    "odd lanes": (kernel("for %i in 0..8 tile 6 lanes 3 { store %x[%i], %y[%i] }"), "3 lanes"),
    "no tile": (kernel("for %i in 0..8 tile 0 { store %x[%i], %y[%i] }"), "all must be at least 1"),
    "accumulators of a loop": (kernel("for %i in 0..8 accumulators 2 { store %x[%i], %y[%i] }"), "%i has 2 accumulators"),
    "accumulators of a tile": (kernel("%s = reduce add %k in 0..8 tile 4 accumulators 2 { yield %x[%k] } store %s, %y[0]"), "%k has 2 accumulators"),
    "accumulators around a loop": (kernel("%s = reduce add %k in 0..8 accumulators 2 {\n for %j in 0..2 { %v = 1.0:f32 }\n yield %x[%k] } store %s, %y[0]"), "%k has 2 accumulators"),
    "no accumulator": (kernel("%s = reduce add %k in 0..8 accumulators 0 { yield %x[%k] } store %s, %y[0]"), "%k has 0 accumulators"),
    "a fourth cache": (kernel("for %i in 0..8 { prefetch %x[%i + 8] level 4 store %x[%i], %y[%i] }"), "no cache level 4"),
    "a prefetch for no tile": (kernel("for %i in 0..8 { prefetch %x[%i + 8] reuse 4..4 store %x[%i], %y[%i] }"), r"invalid reuse range 4\.\.4"),
    "prefetching at what is no integer": (kernel("for %i in 0..8 { %a = %x[%i] prefetch %y[%a] store %a, %y[%i] }"), "%a is f32"),
    "two axes with lanes": (
        kernel("for %i in 0..8 tile 8 lanes 8 { %s = reduce add %k in 0..8 tile 8 lanes 8 { yield %x[%k] } store %s, %y[%i] }"),
        "both %i and %k have lanes",
    ),
    "parallel in serial": (
        kernel("for %i in 0..1 { parallel %j in 0..8 { store %x[%j], %y[%j] } }"), "parallel loop inside the serial loop over %i",
    ),
    "a loop with the name of a size": (
        kernel("for %n in 0..n { store 1.0, %y[%n] }", "size n in 0..9 hint 5, out %y: f32[n]"), "%n has the name of a size: for %n",
    ),
    "a value with the name of a size": (
        kernel("%n = 1.0:f32 for %i in 0..n { store %n, %y[%i] }", "size n in 0..9 hint 5, out %y: f32[n]"), "%n has the name of a size",
    ),
    "storing inside a reduction": (
        kernel("%s = reduce add %k in 0..8 { store %x[%k], %t[%k] yield %x[%k] } store %s, %y[0]", "in %x: f32[8], inout %t: f32[8], out %y: f32[8]"),
        "inside a reduction",
    ),
    "scratch shared by iterations": (
        kernel("parallel %i in 0..8 { store %x[%i], %t[%i] store %t[7 - %i], %y[%i] }", "in %x: f32[8], scratch %t: f32[8], out %y: f32[8]"),
        "%t is scratch, but has no dimension indexed only by %i: for %i",
    ),
    "threads that collide": (kernel("parallel %i in 0..8 { store %x[%i], %y[0] }"), "iterations of %i may write the same"),
    "lanes that collide": (kernel("for %i in 0..8 tile 8 { store %x[%i], %y[0] }"), "iterations of %i may write the same"),
    "a length that varies": (kernel("parallel %b in 0..2 { parallel %i in %b..8 { store %x[%i], %y[%i] } }"), "an extent that is not loop-invariant"),
    "a start that varies in a tile": (
        kernel("for %b in 0..2 tile 2 { for %i in %b*4..%b*4 + 4 { store %x[%i], %y[%i] } }"),
        "a bound with %b, which is not an enclosing loop with tile 1",
    ),
    "a start by table": (
        kernel("%n = %t[0] for %i in %n..%n + 4 { store 1.0, %y[%i] }", "in %t: i64[1], out %y: f32[8]"), "a bound with %n, which is not an enclosing loop",
    ),
    "past the end in the last block": (
        kernel("for %b in 0..3 { for %i in %b*4..%b*4 + 4 { store %x[%i], %y[%i] } }"), r"index 0, i, ranges over 0\.\.11",
    ),
    "backwards": (kernel("for %i in 8..0 { store 1.0, %y[%i] }"), "negative extent"),
    "sum of bools": (
        kernel("%s = reduce add %k in 0..8 { yield %x[%k] } store %s, %y[]", "in %x: bool[8], out %y: bool[]"), "add of bool",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_kernels_are_refused(case: str) -> None:
    text, message = BROKEN[case]
    with pytest.raises(VerifyError, match=message):
        verify_kernel(parse_kernel(text))


FINE = {
    "a store that varies through a value": kernel(
        "parallel %i in 0..8 tile 4 { %n = %x[%i] store 1.0, %y[%n] }", "in %x: i64[8], out %y: f32[8]"
    ),
    "a serial loop that overwrites": kernel("for %i in 0..8 { store %x[%i], %y[0] }"),
    "a mask that guards the ends": kernel("for %i in 0..8 { store load(%x[%i - 1], index(%i) >= 1, 0.0), %y[%i] }"),
    "a loop that never runs": kernel("for %i in 0..0 { store %x[%i + 100], %y[%i] }"),
    "siblings of one name": kernel("for %i in 0..4 { store 1.0, %y[%i] } for %i in 4..8 { store 2.0, %y[%i] }"),
    "a partial register": kernel("for %i in 0..8 tile 4 lanes 8 { store %x[%i], %y[%i] }"),
    "a prefetch past the end": kernel("for %i in 0..8 { prefetch %x[%i + 8] store %x[%i], %y[%i] }"),
    "a start that follows another loop": kernel(
        "parallel %b in 0..2 { parallel %i in %b*4..%b*4 + 4 tile 2 { store %x[%i - %b*4], %y[%i] } }"
    ),
    "a local per step": kernel("for %i in 0..8 tile 8 { local %t: f32[1] store %x[%i], %t[0] store %t[0], %y[%i] }"),
}


@pytest.mark.parametrize("case", FINE)
def test_unusual_kernels_pass(case: str) -> None:
    verify_kernel(parse_kernel(FINE[case]))


def test_every_problem_is_listed() -> None:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(parse_kernel(kernel("store %x[9], %y[8] store %x[0], %x[1]")))
    assert str(caught.value).count("\n") == 3


def test_parameters_have_distinct_names_and_known_roles() -> None:
    x = parse_kernel(MATMUL).params[0]
    with pytest.raises(VerifyError, match="two parameters have the name %x"):
        verify_kernel(Kernel("k", (x, x), ()))
    with pytest.raises(VerifyError, match="%x has role odd; roles are in"):
        verify_kernel(Kernel("k", (replace(x, role="odd"),), ()))
