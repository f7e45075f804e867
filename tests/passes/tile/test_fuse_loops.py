"""merge: neighbouring loops over the same indices."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def kernel(body: str, params: str = "in %x: f32[9], out %y: f32[9]") -> str:
    return f"kernel @k({params}) {{ {body} }}"


def test_a_loop_and_the_reduction_behind_it() -> None:
    check_pass(
        "fuse-loops",
        before=kernel("""
          local %e: f32[9]
          for %k in 0..9 { store %x[%k] * 2.0, %e[%k] }
          %s = reduce add %r in 0..9 { yield %e[%r] }
          for %j in 0..9 { store %e[%j] + %s, %y[%j] }"""),
        after=kernel("""
          local %e: f32[9]
          %s = reduce add %r in 0..9 { %t = %x[%r] * 2.0 store %t, %e[%r] yield %t }
          for %j in 0..9 { store %e[%j] + %s, %y[%j] }"""),
        remark="fused two loops",
    )


def test_three_loops_in_a_row() -> None:
    check_pass(
        "fuse-loops",
        before=kernel("""
          for %i in 0..3 {
            local %a: f32[9]
            local %b: f32[9]
            for %k in 0..9 { store -%x[%k], %a[%k] }
            for %l in 0..9 { store %a[%l] + 1.0, %b[%l] }
            for %m in 0..9 { store %b[%m] * %b[%m], %y[%i, %m] }
          }""", "in %x: f32[9], out %y: f32[3, 9]"),
        after=kernel("""
          for %i in 0..3 {
            local %a: f32[9]
            local %b: f32[9]
            for %m in 0..9 {
              %u = -%x[%m] store %u, %a[%m]
              %v = %u + 1.0 store %v, %b[%m]
              store %v * %v, %y[%i, %m]
            }
          }""", "in %x: f32[9], out %y: f32[3, 9]"),
    )  # fmt: skip


def test_names_of_both_loops_stay_apart() -> None:
    check_pass(
        "fuse-loops",
        before=kernel("""
          local %e: f32[9]
          for %k in 0..9 { %v = %x[%k] + 1.0 %r = %v * %v store %r, %e[%k] }
          for %r in 0..9 { %v = %e[%r] * 3.0 store %v, %y[%r] }"""),
        after=kernel("""
          local %e: f32[9]
          for %r in 0..9 {
            %a = %x[%r] + 1.0 %b = %a * %a %t = %b store %t, %e[%r]
            %v = %t * 3.0 store %v, %y[%r]
          }"""),
    )


APART = {
    "another length": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      for %j in 0..8 { store %e[%j], %y[%j] }""",
    "a later element is read": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      for %j in 0..9 { store %e[8 - %j], %y[%j] }""",
    "also at another index": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      for %j in 0..9 { store %e[%j] + %e[0], %y[%j] }""",
    "stored at another index": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[8 - %k] }
      for %j in 0..9 { store %e[%j], %y[%j] }""",
    "the first reads what the second writes": """
      local %e: f32[9]
      local %f: f32[9]
      for %i in 0..9 { store %x[%i], %f[%i] store 0.0, %e[%i] }
      for %k in 0..9 { store %f[0], %e[%k] }
      for %j in 0..9 { store %e[%j] + 1.0, %f[%j] }
      for %j in 0..9 { store %f[8 - %j], %y[%j] }""",
    "the second writes the same buffer": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      for %j in 0..9 { store 1.0, %e[%j] store %e[%j], %y[%j] }""",
    "another store": """
      local %e: f32[9]
      local %f: f32[9]
      for %k in 0..9 { store 1.0, %f[8 - %k] store %x[%k], %e[%k] }
      for %j in 0..9 { store %e[%j] + %f[%j], %y[%j] }""",
    "a store in a loop inside": """
      local %e: f32[9]
      local %f: f32[9]
      for %k in 0..9 { for %l in 0..9 { store %x[%k], %f[%l] } store %x[%k], %e[%k] }
      for %j in 0..9 { store %e[%j] + %f[%j], %y[%j] }""",
    "a step that needs the last one": """
      local %e: f32[9]
      store 1.0, %e[0]
      for %k in 1..9 { store %e[%k - 1] * 2.0, %e[%k] }
      for %j in 1..9 { store %e[%j], %y[%j] }
      store 0.0, %y[0]""",
    "a result written in a reduction": """
      for %k in 0..9 { store %x[%k], %y[%k] }
      %s = reduce add %r in 0..9 { yield %y[%r] }
      local %e: f32[9]
      for %k in 0..9 { store %s, %e[%k] }""",
    "parallel": """
      parallel %k in 0..9 { store %x[%k], %y[%k] }
      parallel %j in 0..9 { store %y[%j] + 1.0, %y[%j] }""",
    "something between them": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      store 5.0, %e[3]
      for %j in 0..9 { store %e[%j], %y[%j] }""",
    "two ranges": """
      local %e: f32[9]
      for %k in 0..9 { store %x[%k], %e[%k] }
      %s = reduce add %r in 0..9, %q in 0..2 { yield %e[%r] }
      for %j in 0..3 { store %s, %y[%j] }
      for %j in 3..9 { store %s, %y[%j] }""",
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_loops_that_stay_apart(case: str) -> None:
    check_pass("fuse-loops", unchanged=kernel(APART[case]))
