"""What passes take sizes for that they weigh as if there were fewer."""

from __future__ import annotations

import pytest

from compiler.analysis.size_hints import capped_hints, with_capped_hints
from compiler.ir.symbolic.index_expr import dynamic_size, dynamic_sizes
from compiler.ir.text.tile_printer import print_program
from compiler.testing.checks import parse_ir

TEXT = """program {{
  size n in 1..1001 hint {n}
  size m in 70..1001 hint {m}
  input %a: f32[n, m]
  output %b: f32[m*2, n + 1]
  buffer %c: f32[n//2, m]
  kernel @k(size n in 1..1001 hint {n}, size m in 70..1001 hint {m}, in %x: f32[n, m], out %y: f32[m*2, n + 1]) max_chunks n*m//40 {{
    parallel %j in 0..n//2*2 tile 2 {{
      local %t: f32[m]
      for %i in 0..m {{ store %x[%j, %i], %t[%i] }}
      for %i in 0..m {{ store %t[%i], %y[%i*2, %j + 1] nontemporal if n*m >= 900 }}
    }}
  }}
  launch @k(%a, %b)
}}"""


@pytest.mark.parametrize(("usual", "n", "m"), [(50, 50, 70), (200, 200, 200), (300, 300, 250)])
def test_programs_are_the_same_but_for_what_is_expected(usual: int, n: int, m: int) -> None:
    made = with_capped_hints(parse_ir(TEXT.format(n=400, m=250)), usual)
    assert print_program(made) == print_program(parse_ir(TEXT.format(n=n, m=m)))
    found = {s for k in made.kernels.values() for p in k.params for d in p.type.shape for s in dynamic_sizes(d)}
    assert {s.name: s.hint for s in found} == {"n": n, "m": m}


def test_a_program_that_expects_no_more_stays() -> None:
    made = parse_ir(TEXT.format(n=400, m=250))
    assert with_capped_hints(made, 400) is made


def test_no_more_is_expected_than_was() -> None:
    (s,) = dynamic_sizes(dynamic_size("s", 5, 90, 40))
    assert [capped_hints([s], usual) for usual in (2, 20, 80)] == [{"s": 5}, {"s": 20}, {"s": 40}]
