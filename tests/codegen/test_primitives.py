"""Every primitive that has an instruction, on every dtype: machine code and interpreter agree to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from native import assert_same_bits, kernel_inputs, run_interpreter, run_native, runnable_targets

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS
from compiler.errors import TargetError
from compiler.ir.scalar import round_to
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.types import KERNEL_DTYPES, DType
from compiler.passes.manager import run_pipeline

COUNT = 37
LANES = 8
FORMS = {"scalars": "", "vectors": f" tile {2 * LANES} lanes {LANES}", "unrolled": " tile 3 unroll 2"}

BOTH = (
    "-{a}",
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "fma({a}, {b}, {a})",
    "{a} / {b}",
    "rem({a}, {b})",
    "abs({a})",
    "cast<bool>({a})",
)
CHOICE = (
    "min({a}, {b})",
    "max({a}, {b})",
    "where({c}, {a}, {b})",
    "where({c}, {b}, 1)",
    "where_unlikely({c}, {a}, {b})",
    "where_unlikely({c}, {b}, 1)",
    "{a}",
)
COMPARE = ("{a} < {b}", "{a} <= {b}", "{a} > {b}", "{a} >= {b}", "{a} == {b}", "{a} != {b}")
FLOAT = ("sqrt({a})", "floor({a})", "ceil({a})", "trunc({a})", "round({a})", "copysign({a}, {b})")
BITS = ("{a} & {b}", "{a} | {b}", "{a} ^ {b}", "not({a})")
SHIFTS = ("{a} << {b}", "{a} >> {b}", "lshr({a}, {b})", "{a} << 3", "{a} >> 3", "lshr({a}, 7)")


def primitives(dtype: DType) -> tuple[str, ...]:
    """Expressions on operands {a} and {b} of `dtype` and {c} of bool."""
    if dtype.kind == "bool":
        return (*(e.replace(", 1", ", true") for e in CHOICE), *COMPARE, *BITS)
    return (*BOTH, *CHOICE, *COMPARE, *(FLOAT if dtype.is_float else (*BITS, *SHIFTS)))


def elementwise(dtype: DType, exprs: tuple[str, ...], form: str) -> str:
    """A kernel that stores each expression to an output of its own."""
    names = {"a": "%a[%i]", "b": "%b[%i]", "c": "%c[%i]"}
    results = [
        "bool" if any(o in e for o in ("<b", " < ", " > ", "<=", ">=", "==", "!=")) else str(dtype) for e in exprs
    ]
    outs = ", ".join(f"out %y{k}: {r}[{COUNT}]" for k, r in enumerate(results))
    stores = "\n".join(f"store {e.format(**names)}, %y{k}[%i]" for k, e in enumerate(exprs))
    return f"""
    kernel @elementwise(in %a: {dtype}[{COUNT}], in %b: {dtype}[{COUNT}], in %c: bool[{COUNT}], {outs}) {{
      for %i in 0..{COUNT}{form} {{ {stores} }}
    }}"""


@pytest.mark.parametrize(
    ("form", "target"), [("scalars", "host"), ("unrolled", "host"), *(("vectors", t) for t in runnable_targets())]
)
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_primitives(dtype: str, form: str, target: str) -> None:
    exprs = primitives(KERNEL_DTYPES[dtype])
    kernel = parse_kernel(elementwise(KERNEL_DTYPES[dtype], exprs, FORMS[form]))
    for special in (False, True):
        inputs = kernel_inputs(kernel, special=special)
        want, got = run_interpreter(kernel, inputs), run_native(kernel, inputs, target)
        for k, e in enumerate(exprs):
            inexact = dtype == "f64" and e.startswith("fma") and not special  # NumPy rounds twice
            if inexact:
                np.testing.assert_allclose(got[f"y{k}"], want[f"y{k}"], rtol=1e-14, atol=1e-15)
            elif not (dtype == "f64" and e.startswith("fma")):
                assert_same_bits(want[f"y{k}"], got[f"y{k}"], e, zero_sign=not e.startswith(("min", "max")))


WHOLE = (-3.0, -2.5, -1.0, -0.0, 0.0, 0.4, 1.0, 2.5, 3.0, 100.0, 127.0)
WRAPPING = (-129.0, -1.5, 255.0, 300.0)


@pytest.mark.parametrize(("form", "target"), [("scalars", "host"), *(("vectors", t) for t in runnable_targets())])
@pytest.mark.parametrize("source", KERNEL_DTYPES)
def test_casts(source: str, form: str, target: str) -> None:
    exprs = tuple(f"cast<{d}>({{a}})" for d in KERNEL_DTYPES)
    outs = ", ".join(f"out %y{k}: {d}[{COUNT}]" for k, d in enumerate(KERNEL_DTYPES))
    stores = "\n".join(f"store {e.format(a='%a[%i]')}, %y{k}[%i]" for k, e in enumerate(exprs))
    kernel = parse_kernel(
        f"kernel @casts(in %a: {source}[{COUNT}], {outs}) {{ for %i in 0..{COUNT}{FORMS[form]} {{ {stores} }} }}"
    )
    dtype = KERNEL_DTYPES[source]
    values = WHOLE if dtype.is_float else (-128, -1, 0, 1, 2, 127, 200)
    (given,) = kernel_inputs(kernel)
    with np.errstate(invalid="ignore"):
        given[...] = round_to(np.resize(np.array(values), COUNT), dtype)
    want, got = run_interpreter(kernel, [given]), run_native(kernel, [given], target)
    for k, e in enumerate(exprs):
        assert_same_bits(want[f"y{k}"], got[f"y{k}"], f"{e} of {source}")


@pytest.mark.parametrize("target", runnable_targets())
def test_narrow_integers_wrap(target: str) -> None:
    text = """kernel @wrap(in %a: f32[4], out %u: u8[4], out %s: i8[4]) {
      for %i in 0..4 tile 4 lanes 4 { store cast<u8>(%a[%i]), %u[%i] store cast<i8>(%a[%i]), %s[%i] }
    }"""
    got = run_native(parse_kernel(text), [np.array(WRAPPING, "f")], target)
    assert got["u"].tolist() == [127, 255, 255, 44]
    assert got["s"].tolist() == [127, -1, -1, 44]


DIVISION = """
kernel @division(in %a: {d}[16], in %b: {d}[16], out %q: {d}[16, 16], out %r: {d}[16, 16]) {{
  for %i in 0..16 {{ for %j in 0..16 tile 16 lanes 4 {{
    store %a[%i] / %b[%j], %q[%i, %j]
    store rem(%a[%i], %b[%j]), %r[%i, %j]
  }} }}
}}"""


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("dtype", [d for d in KERNEL_DTYPES if KERNEL_DTYPES[d].is_integer])
def test_integer_division_never_traps(dtype: str, target: str) -> None:
    info = np.iinfo(KERNEL_DTYPES[dtype].numpy)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 10]
    signed = [-1, -2, -3, -7, -10, -64] if info.min else [4, 5, 6, 8, 100, 254]
    values = np.array(edges + signed, KERNEL_DTYPES[dtype].numpy)
    got = run_native(parse_kernel(DIVISION.format(d=dtype)), [values, values], target)
    for (i, j), q in np.ndenumerate(got["q"]):
        a, b = int(values[i]), int(values[j])
        want = a if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        want = info.min if want > info.max else want
        assert q == want, f"{a} / {b}"
        assert got["r"][i, j] == (0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)), f"rem({a}, {b})"


def test_literals_are_rounded_to_their_type() -> None:
    text = "kernel @k(out %y: {d}[4]) {{ for %i in 0..4 tile 4 lanes 4 {{ store 0.1, %y[%i] }} }}"
    for name in ("f64", "f32", "f16", "bf16"):
        kernel = parse_kernel(text.format(d=name))
        assert_same_bits(run_interpreter(kernel, [])["y"], run_native(kernel, [])["y"], name)


BITCASTS = """
kernel @bitcasts(in %f: f32[16], in %d: f64[16], in %h: f16[16], in %b: bf16[16],
                 out %i: i32[16], out %l: i64[16], out %s: i16[16], out %t: i16[16], out %g: f32[16], out %c: bf16[16]) {
  for %k in 0..16 tile 16 lanes 8 {
    %bits = bitcast<i32>(%f[%k])
    store %bits, %i[%k]
    store bitcast<i64>(%d[%k]), %l[%k]
    store bitcast<i16>(%h[%k]), %s[%k]
    store bitcast<i16>(%b[%k]), %t[%k]
    store bitcast<f32>(%bits ^ 7), %g[%k]
    store bitcast<bf16>(bitcast<i16>(%b[%k]) & 32767), %c[%k]
  }
}"""


@pytest.mark.parametrize("target", runnable_targets())
def test_bitcasts(target: str) -> None:
    kernel = parse_kernel(BITCASTS)
    inputs = kernel_inputs(kernel, seed=3)
    want, got = run_interpreter(kernel, inputs), run_native(kernel, inputs, target)
    for name, array in want.items():
        assert_same_bits(array, got[name], name)


@pytest.mark.parametrize("op", ["max", "min"])
def test_a_chain_of_extrema_waits_for_no_mask(op: str) -> None:
    """A term is tested for NaN before it meets the total; beside a constant one instruction serves."""
    target = CPU_TARGETS["x86-64-v3"]
    chain = f"%m = reduce {op} %k in 0..8 {{ yield %x[%k, %i] }} store %m, %y[%i]"
    bound = f"store {op}(%x[0, %i], 0.0), %y[%i]"
    for body, count, tests in ((chain, 1, 1), (bound, 1, 0)):
        text = f"kernel @k(in %x: f32[8, 8], out %y: f32[8]) {{ for %i in 0..8 tile 8 lanes 8 {{ {body} }} }}"
        code = emit_assembly(emit_kernel(parse_kernel(text), target), target)
        assert (code.count(f"v{op}ps"), code.count("vcmpunordps"), code.count("vcmpltps")) == (count, tests, 0)


ROUNDED = """kernel @rounded(in %a: f32[16], out %u: u8[16], out %i: i32[16]) {
  for %k in 0..16 tile 16 lanes 8 { store cast<u8>(round(%a[%k])), %u[%k]  store cast<i32>(round(%a[%k])), %i[%k] }
}"""


@pytest.mark.parametrize("target", runnable_targets())
def test_rounding_and_conversion_are_one_instruction(target: str) -> None:
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 254.5, 255.5, 256.5, -129.0, 8388609.0, -2147483648.0]
    kernel, given = parse_kernel(ROUNDED), np.resize(np.array([*values, np.nan, np.inf, -np.inf, 3e9], "f"), 16)
    got = run_native(kernel, [given], target)
    assert got["i"].tolist() == [0, 2, 2, 0, -2, 0, 254, 256, 256, -129, 8388609, *[-(2**31)] * 5]
    assert got["u"].tolist() == [0, 2, 2, 0, 254, 0, 254, 0, 0, 127, 1, *[0] * 5]
    code = emit_assembly(emit_kernel(kernel, CPU_TARGETS[target]), CPU_TARGETS[target])
    assert "cvtps2dq" in code
    assert not {"cvttps2dq", "roundps", "vrndscaleps"} & set(code.split())


@pytest.mark.parametrize("form", ["", " tile 6 lanes 2", " tile 8 lanes 8", " tile 37 lanes 16", " tile 32 lanes 32"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_scaling_by_powers_of_two(dtype: str, form: str) -> None:
    """Results that are subnormal, 0 and infinite among them; rounded once.  Infinite powers of NaN are these powers."""
    (target,) = [t for t in runnable_targets() if CPU_TARGETS[t].native_primitives] or [""]
    if not target:
        pytest.skip("no instruction here")
    kernel = parse_kernel(
        f"kernel @k(in %x: {dtype}[64], in %n: {dtype}[64], out %y: {dtype}[64]) {{"
        f" for %i in 0..64{form} {{ store scale(%x[%i], %n[%i]), %y[%i] }} }}"
    )
    kernel = run_pipeline(kernel, "peel")
    x = np.linspace(-1.9, 1.9, 64).astype(KERNEL_DTYPES[dtype].numpy)
    n = np.resize([0, 1, -1, 17, -126, -140, -149, -151, 127, 128, -1022, -1060, 1023, 1024, np.nan], 64).astype(
        x.dtype
    )
    x[5:15], n[6], n[7] = np.nan, np.inf, -np.inf
    want, got = run_interpreter(kernel, [x, n]), run_native(kernel, [x, n], target)
    assert_same_bits(want["y"], got["y"], "scale")
    assert got["y"][6] == np.inf
    assert got["y"][7] == 0


def test_an_instruction_that_a_target_lacks_is_an_error() -> None:
    kernel = parse_kernel(
        "kernel @k(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store scale(%x[%i], %x[%i]), %y[%i] } }"
    )
    with pytest.raises(TargetError, match="@k: aarch64 has no instruction for scale"):
        emit_kernel(kernel, CPU_TARGETS["aarch64"])
