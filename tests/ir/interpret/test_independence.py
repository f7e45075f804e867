"""Loops that the interpreter runs on many indices at once give the bits of one index after the other."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.backend import GRAPH_PASSES
from compiler.ir.interpret import tile as interpreter
from compiler.ir.interpret.independence import independent_loops
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, stmt_ranges
from compiler.ir.tile.program import Program
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import describe_difference, input_types, run_on
from compiler.testing.fuzz.generate import random_graph

PARAMS = "in %x: f32[6, 7], in %n: i64[6], inout %y: f32[6, 7], inout %z: f32[14]"

BODIES = {
    "a product": (
        "for %i in 0..6 { for %j in 0..6 { %s = reduce add %r in 0..7 { yield %x[%i, %r] * %x[%j, %r] } store %s, %y[%i, %j] } }",
        "i j r",
    ),
    "terms in order": (
        "for %i in 0..6 { %s = reduce add %r in 0..6, %a in 0..7 { yield %x[%r, %a] * %x[%i, %a] } store %s, %z[%i] }",
        "i r a",
    ),
    "a constant term": ("%s = reduce add %r in 0..6 { yield 0.1:f32 } store %s, %z[0]", "r"),
    "in place": ("for %i in 0..6 { for %j in 0..7 { store %y[%i, %j] * 2.0, %y[%i, %j] } }", "i j"),
    "two stores of one element": (
        "for %i in 0..6 { store 1.0, %y[%i, 0] store %y[%i, 0] + %x[%i, 1], %y[%i, 0] }",
        "i",
    ),
    "a store in a sum": (
        "for %i in 0..6 { %s = reduce max %r in 0..7 { store %x[%i, %r], %y[%i, %r] yield %x[%i, %r] } store %s, %z[%i] }",
        "i r",
    ),
    "blocks": (
        "for %p in 0..2 { for %j in %p*3..%p*3 + 3 { store %x[%j - %p*3, %j], %z[%j - %p*3] } }",
        "j",
    ),
    "a sum of rows before": ("for %i in 0..5 { store %y[%i, 0] + %x[%i, 1], %y[%i + 1, 0] }", ""),
    "rows that come later": ("for %i in 0..5 { store %y[%i + 1, 0] + %x[%i, 1], %y[%i, 0] }", ""),
    "the last store counts": ("for %i in 0..6 { store %x[%i, 0], %z[%i//2] }", ""),
    "overlapping diagonals": (
        "for %i in 0..6 { for %j in 0..7 { store %x[%i, %j] + %z[%i + %j], %z[%i + %j] } }",
        "j",
    ),
    "diagonals of two loops": ("for %i in 0..6 { for %j in 0..7 { store %x[%i, %j], %z[%i + %j] } }", "j"),
    "an offset that changes": (
        "for %i in 0..6 { %k = min(%n[%i], 5) store %x[%i, 1], %z[%i + %k] }",
        "",
    ),
    "twice the index": ("for %i in 0..3 { store %z[%i + 1], %z[%i*2] }", ""),
    "swapped axes": ("for %i in 0..6 { for %j in 0..6 { store %y[%i, %j] + 1.0, %y[%j, %i] } }", ""),
    "a running sum": ("for %i in 0..6 { for %j in 1..7 { store %y[%i, %j - 1] + %x[%i, %j], %y[%i, %j] } }", "i"),
    "a triangle": (
        "for %i in 0..6 { %s = reduce add %r in 0..%i + 1 { yield %x[%i, %r] } store %s, %z[%i] }",
        "r",
    ),
    "a triangle in one sum": ("%s = reduce add %r in 0..6, %a in 0..%r + 1 { yield %x[%r, %a] } store %s, %z[0]", ""),
    "as many as a value says": (
        "for %i in 0..6 { %k = min(%n[%i], 5) for %j in 0..%k { store %x[%i, %j], %y[%i, %j] } }",
        "j",
    ),
    "a local row": (
        """for %i in 0..6 { local %t: f32[7] for %j in 0..7 { store %x[%i, %j], %t[%j] }
          for %j2 in 0..7 { store %t[6 - %j2], %y[%i, %j2] } }""",
        "j j2",
    ),
    "a local element for all": (
        "local %t: f32[1] for %i in 0..6 { store %x[%i, 0], %t[0] store %t[0] * 2.0, %z[%i] }",
        "",
    ),
    "copies beside other statements": (
        """local %t: f32[6, 7] for %i in 0..6 { copy_async %x[%i, 0] -> %t[%i, 0] size 7
          wait %t store %t[%i, 3], %z[%i] }""",
        "",
    ),
    "tiles": ("for %i in 0..6 { for %j in 0..7 tile 4 { store %x[%i, %j], %y[%i, %j] } }", "i"),
}


def kernel(body: str) -> Kernel:
    return parse_kernel(f"kernel @k({PARAMS}) {{ {body} }}")


@pytest.mark.parametrize("case", BODIES)
def test_iterations_without_common_elements(case: str) -> None:
    body, independent = BODIES[case]
    loops = independent_loops(kernel(body).body)
    assert [r.var for s in loops for r in stmt_ranges(s)] == independent.split()


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("at_once", [1, 2, 5, 40, 4096])
def test_kernels_give_the_same_bits(case: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MAX_AT_ONCE", at_once)
    check_same_bits(kernel(BODIES[case][0]), monkeypatch)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_give_the_same_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(seed)
    if not graph.symbols:
        check_same_bits(lower(run_pipeline(graph, GRAPH_PASSES)), monkeypatch)


def check_same_bits(ir: Kernel | Program, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = random_inputs(input_types(ir, {}), 0, 0, 2)
    at_once = run_on(ir, inputs)
    monkeypatch.setattr(interpreter, "independent_loops", lambda body: [])
    for want, got in zip(run_on(ir, inputs), at_once, strict=True):
        assert not describe_difference(want, got)


def test_parameters_may_be_one_array() -> None:
    shift = parse_kernel(
        "kernel @shift(in %x: f32[6], out %y: f32[6]) { for %i in 0..5 { store %x[%i] + 1.0, %y[%i + 1] } }"
    )
    assert independent_loops(shift.body)
    array = np.zeros(6, "f")
    run_kernel(shift, {"x": array, "y": array})
    np.testing.assert_array_equal(array, np.arange(6))
