"""expand-math: functions without an instruction, spelt out.  Their accuracy is tested in test_elementary."""

from __future__ import annotations

import pytest

from compiler.codegen.llvm.targets import CPU_TARGETS
from compiler.ir import scalar
from compiler.ir.scalar import PRIMITIVES, PrimitiveCall
from compiler.ir.tile.kernel import Let, Reduce, Stmt, stmt_exprs, walk
from compiler.math.expansions import EXPANSIONS
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass, parse_ir


def calls(body: tuple[Stmt, ...]) -> set[str]:
    return {e.primitive for s in walk(body) for v in stmt_exprs(s) for e in v.subexprs if isinstance(e, PrimitiveCall)}


def kernel(value: str, dtype: str = "f32") -> str:
    return f"kernel @k(in %x: {dtype}[5], in %z: {dtype}[5], out %y: {dtype}[5]) {{ for %i in 0..5 {{ store {value}, %y[%i] }} }}"


def test_an_argument_has_a_name() -> None:
    after = kernel("1.0 / sqrt(%m)").replace("store", "%m = %x[%i] store")
    check_pass("expand-math", before=kernel("rsqrt(%x[%i])"), after=after, special=False)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_are_computed_in_f32(dtype: str) -> None:
    after = kernel(f"cast<{dtype}>(1.0 / sqrt(%m))", dtype).replace("store", "%m = cast<f32>(%x[%i]) store")
    check_pass("expand-math", before=kernel("rsqrt(%x[%i])", dtype), after=after, special=False)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", EXPANSIONS)
def test_every_function_goes(name: str, dtype: str) -> None:
    operands = ", ".join(("%x[%i]", "%z[%i]")[: PRIMITIVES[name].arity])
    context = Context()
    result = run_pipeline(parse_ir(kernel(f"{name}({operands})", dtype)), "expand-math", context)
    assert not calls(result.body) & set(EXPANSIONS)
    assert context.statistics[f"expand-math: {name}"] == 1


def test_names_are_new_and_arguments_are_computed_once() -> None:
    text = """kernel @k(in %x: f32[5], out %y: f32[5]) {
      for %i in 0..5 { %m = %x[%i] + 1.0 %m_1 = tanh(%m * %m) store tanh(%m_1), %y[%i] }
    }"""
    old = parse_ir(text)
    new = run_pipeline(old, "expand-math")
    check_equivalent(old, new)
    names = [s.name for s in walk(new.body) if isinstance(s, Let)]
    assert len(set(names)) == len(names)
    products = [
        e
        for s in walk(new.body)
        for v in stmt_exprs(s)
        for e in v.subexprs
        if isinstance(e, PrimitiveCall) and e.primitive == "mul"
    ]
    assert sum(all(isinstance(o, scalar.Ref) and o.name == "m" for o in e.operands) for e in products) == 1


def test_the_value_of_a_reduction_is_spelt_out_inside_it() -> None:
    old = parse_ir(
        "kernel @k(in %x: f32[5], out %y: f32[]) { %s = reduce add %i in 0..5 { yield exp(%x[%i]) } store %s, %y[] }"
    )
    new = run_pipeline(old, "expand-math")
    (sum_,) = (s for s in walk(new.body) if isinstance(s, Reduce))
    assert any(isinstance(s, Let) for s in sum_.body)
    check_equivalent(old, new)


def test_what_has_an_instruction_stays() -> None:
    check_pass("expand-math", unchanged=kernel("sqrt(%x[%i]) + fma(%x[%i], %z[%i], 2.0) - floor(%z[%i])"))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_powers_of_two_scale_in_one_instruction_where_the_target_has_it(target: str) -> None:
    context = Context.for_target(CPU_TARGETS[target])
    result = run_pipeline(parse_ir(kernel("exp(%x[%i])")), "expand-math", context)
    assert ("scale" in calls(result.body)) == (target == "x86-64-v4")
