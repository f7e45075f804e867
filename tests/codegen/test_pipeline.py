"""Random kernels in scalar loops, through every tile pass, as machine code: the same answers as the loops they began as."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native import assert_same_bits, kernel_inputs, run_interpreter, run_native, runnable_targets

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.backend import TILE_PASSES
from compiler.cost.machine import Machine
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, Range, Reduce, Stmt, map_ranges, stmt_ranges, walk
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.base import Context
from compiler.passes.instrument import Verify
from compiler.passes.manager import run_pipeline

SIZES = st.sampled_from([1, 2, 3, 5, 7, 13, 16, 17, 33])
DTYPES = st.sampled_from(["f32", "f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8", "bool"])
EAGER = TILE_PASSES.replace("parallelize", "parallelize{min-seconds=0}")
RULES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def compiled(kernel: Kernel, target: str, passes: str = EAGER) -> Kernel:
    """The kernel after every tile pass, each one verified; small kernels are shared among threads too."""
    verify_kernel(kernel)
    return run_pipeline(kernel, passes, Context(machine=target_by_name(target).machine or Machine()), [Verify()])


def check_bits(text: str, target: str, passes: str = EAGER) -> None:
    """Machine code and the scalar loops give the same bits."""
    kernel = parse_kernel(text)
    inputs = kernel_inputs(kernel)
    want, got = run_interpreter(kernel, inputs), run_native(compiled(kernel, target, passes), inputs, target)
    assert want.check_failed == got.check_failed
    for name, array in want.items():
        assert_same_bits(array, got[name], f"%{name}")


def check_close(text: str, target: str, tolerance: float = 3e-5) -> None:
    """Machine code in f32 is as near to the loops in f64 as adding in any order is."""
    kernel, exact = parse_kernel(text), parse_kernel(text.replace("f32", "f64"))
    inputs = kernel_inputs(kernel)
    wide = [x.astype(float) if x.dtype == np.float32 else x for x in inputs]
    want, got = run_interpreter(exact, wide), run_native(compiled(kernel, target), inputs, target)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


TARGETS = st.sampled_from(runnable_targets())


# elementwise


@dataclass(frozen=True)
class Operand:
    """Where an elementwise kernel reads: a declaration, and the element at %i, %j."""

    type: str
    element: str


def operands(rows: int, columns: int) -> st.SearchStrategy[Operand]:
    """Dense, transposed, stretched, strided, reversed and shifted operands."""
    return st.sampled_from(
        [
            Operand(f"[{rows}, {columns}]", "{}[%i, %j]"),
            Operand(f"[{columns}, {rows}]", "{}[%j, %i]"),
            Operand(f"[{columns}]", "{}[%j]"),
            Operand(f"[{rows}]", "{}[%i]"),
            Operand("[]", "{}[]"),
            Operand(f"[{rows}, {2 * columns}]", "{}[%i, 2*%j + 1]"),
            Operand(f"[{rows}, {columns}]", "{}" + f"[%i, {columns - 1} - %j]"),
            Operand(f"[{rows * columns}]", "{}" + f"[%i*{columns} + %j]"),
            Operand(f"[{rows}, {columns}]", "load({}[%i, %j - 1], index(%j) >= 1)"),
            Operand(f"[{rows}, {columns}]", "{}[%i, %j//3]"),
        ]
    )


@st.composite
def expressions(draw: st.DrawFn, leaves: list[str], dtype: str, depth: int = 3) -> str:
    """An expression that is exact in every dtype: no division of integers by chance values, no product of halves twice."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(leaves))
    x, y = draw(expressions(leaves, dtype, depth - 1)), draw(expressions(leaves, dtype, depth - 1))
    rules = {"bool": ["({} & {})", "({} | {})", "({} ^ {})", "max({}, {})"]}.get(
        dtype,
        [
            "({} + {})",
            "({} - {})",
            "({} * {})",
            "({} / {})",
            "min({}, {})",
            "max({}, {})",
            "where({0} < {1}, {1}, -{0})",
        ],
    )
    return draw(st.sampled_from(rules)).format(x, y)


@st.composite
def elementwise(draw: st.DrawFn) -> str:
    rows, columns, dtype = draw(SIZES), draw(SIZES), draw(DTYPES)
    chosen = draw(st.lists(operands(rows, columns), min_size=1, max_size=3))
    leaves = [o.element.format(f"%x{k}") for k, o in enumerate(chosen)]
    value = draw(expressions(leaves, dtype))
    named = draw(st.booleans())
    target = draw(st.sampled_from(["[%i, %j]", "[%j, %i]"]))
    shape = f"[{rows}, {columns}]" if target == "[%i, %j]" else f"[{columns}, {rows}]"
    params = ", ".join(f"in %x{k}: {dtype}{o.type}" for k, o in enumerate(chosen))
    inner = draw(st.sampled_from(["parallel", "for"]))
    body = f"%v = {value} store max(%v, %v), %y{target}" if named else f"store {value}, %y{target}"
    return f"""kernel @elementwise({params}, out %y: {dtype}{shape}) {{
      parallel %i in 0..{rows} {{ {inner} %j in 0..{columns} {{ {body} }} }}
    }}"""


@RULES
@given(elementwise(), TARGETS)
def test_elementwise(text: str, target: str) -> None:
    check_bits(text, target)


# rows: reductions, and what follows from them


@st.composite
def rows(draw: st.DrawFn) -> str:
    """Softmax and its like: a reduction of each row, a kept value, another reduction, a result for each element."""
    n, m, op = draw(SIZES), draw(SIZES), draw(st.sampled_from(["max", "min", "add"]))
    x = draw(st.sampled_from(["%x[%i, {}]", "%x[{}, %i]"]))
    shape = f"[{n}, {m}]" if x.startswith("%x[%i") else f"[{m}, {n}]"
    keep = draw(st.booleans())
    kept = f"local %e: f32[{m}] for %k in 0..{m} {{ store exp({x.format('%k')} - %a), %e[%k] }}" if keep else ""
    value = "{}" if keep else "exp({} - %a)"
    value = value.format("%e[{}]" if keep else x)
    second = draw(st.booleans())
    total = f"%s = reduce add %r in 0..{m} {{ yield {value.format('%r')} }}" if second else "%s = %a * %a + 1.0"
    place = draw(st.sampled_from([f"[{n}, {m}]", f"[{m}, {n}]"]))
    index = "[%i, %j]" if place == f"[{n}, {m}]" else "[%j, %i]"
    return f"""kernel @rows(in %x: f32{shape}, out %y: f32{place}, out %z: f32[{n}]) {{
      parallel %i in 0..{n} {{
        %a = reduce {op} %q in 0..{m} {{ yield {x.format("%q")} }}
        {kept}
        {total}
        for %j in 0..{m} {{ store {value.format("%j")} / (%s + 1.0), %y{index} }}
        store %s, %z[%i]
      }}
    }}"""


@RULES
@given(rows(), TARGETS)
def test_rows(text: str, target: str) -> None:
    exact = text.replace("f32", "f64")
    kernel, wide = parse_kernel(text), parse_kernel(exact)
    inputs = kernel_inputs(kernel)
    want = run_interpreter(wide, [x.astype(float) for x in inputs])
    got = run_native(compiled(kernel, target), inputs, target)
    for name, array in want.items():  # exp(x - a) is up to e^66 where a is a sum
        np.testing.assert_allclose(got[name], array, rtol=2e-4, atol=1e-4, err_msg=name)


@st.composite
def whole(draw: st.DrawFn) -> str:
    """A reduction of everything, over several loops."""
    a, b, c = draw(SIZES), draw(SIZES), draw(st.sampled_from([1, 4, 9]))
    op, dtype = draw(st.sampled_from(["add", "mul", "max", "min"])), draw(st.sampled_from(["i32", "i64", "u8", "i8"]))
    return f"""kernel @whole(in %x: {dtype}[{a}, {b}, {c}], out %y: {dtype}[], out %n: {dtype}[{b}]) {{
      %s = reduce {op} %i in 0..{a}, %j in 0..{b}, %k in 0..{c} {{ yield %x[%i, %j, %k] + 1 }}
      store %s, %y[]
      parallel %j in 0..{b} {{ %t = reduce {op} %i in 0..{a}, %k in 0..{c} {{ yield %x[%i, %j, %k] * %s }} store %t, %n[%j] }}
    }}"""


@RULES
@given(whole(), TARGETS)
def test_reductions_of_integers(text: str, target: str) -> None:
    check_bits(text, target)


# contractions


@st.composite
def contractions(draw: st.DrawFn) -> str:
    n, m, k = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.sampled_from([0, 0, 3]))
    b, head = ("%b, ", f"{batch}, ") if batch else ("", "")
    w, shape = draw(st.sampled_from([("%j, %k", f"{m}, {k}"), ("%k, %j", f"{k}, {m}")]))
    x, left = draw(st.sampled_from([("%i, %k", f"{n}, {k}"), ("%k, %i", f"{k}, {n}")]))
    role = draw(st.sampled_from(["const", "in"]))
    wb, whead = (b, head) if draw(st.booleans()) else ("", "")
    end = draw(st.sampled_from(["%s", "max(%s + %c[%j], 0.0)", "tanh(%s * %c[%j])"]))
    outer = f"parallel %b in 0..{batch} {{" if batch else ""
    return f"""kernel @contraction(in %x: f32[{head}{left}], {role} %w: f32[{whead}{shape}], in %c: f32[{m}], out %y: f32[{head}{n}, {m}]) {{
      {outer} parallel %i in 0..{n} {{ parallel %j in 0..{m} {{
        %s = reduce add %k in 0..{k} {{ yield %x[{b}{x}] * %w[{wb}{w}] }}
        store {end}, %y[{b}%i, %j]
      }} }} {"}" if batch else ""}
    }}"""


@RULES
@given(contractions(), TARGETS)
def test_contractions(text: str, target: str) -> None:
    check_close(text, target)


@st.composite
def convolutions(draw: st.DrawFn) -> str:
    """Two-dimensional, with a border of zeros, strides and holes."""
    c, o, kernel = draw(st.sampled_from([1, 3, 8])), draw(SIZES), draw(st.sampled_from([1, 3]))
    size, stride, border = (
        draw(st.sampled_from([5, 8, 9])),
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([0, 1])),
    )
    out = (size + 2 * border - kernel) // stride + 1
    row, column = f"%p*{stride} + %u - {border}", f"%q*{stride} + %v - {border}"
    tests = [f"(index({d}) {t})" for d in (row, column) for t in (">= 0", f"< {size}")]
    element = f"%x[%c, {row}, {column}]"
    value = f"load({element}, {' & '.join(tests)}, 0.0)" if border else element
    return f"""kernel @conv(in %x: f32[{c}, {size}, {size}], const %w: f32[{o}, {c}, {kernel}, {kernel}], out %y: f32[{o}, {out}, {out}]) {{
      parallel %o in 0..{o} {{ parallel %p in 0..{out} {{ parallel %q in 0..{out} {{
        %s = reduce add %c in 0..{c}, %u in 0..{kernel}, %v in 0..{kernel} {{ yield {value} * %w[%o, %c, %u, %v] }}
        store %s, %y[%o, %p, %q]
      }} }} }}
    }}"""


@settings(RULES, max_examples=12)
@given(convolutions(), TARGETS)
def test_convolutions(text: str, target: str) -> None:
    check_close(text, target)


# gathers


@st.composite
def gathers(draw: st.DrawFn) -> str:
    n, m, dtype = draw(SIZES), draw(SIZES), draw(DTYPES)
    table = draw(st.sampled_from(["%t[%i]", "%t[%j]"]))
    index = draw(st.sampled_from(["%row, %j", "%i, %row"]))
    length = n if table == "%t[%i]" else m
    shape = f"9, {m}" if index == "%row, %j" else f"{n}, 9"
    high = draw(st.sampled_from([8, 9]))  # 8 and below: no failure
    return f"""kernel @gather(in %x: {dtype}[{shape}], in %t: i64[{length}], out %y: {dtype}[{n}, {m}]) {{
      parallel %i in 0..{n} {{ parallel %j in 0..{m} {{
        %at = {table}
        check %at in 0..{high}
        %row = max(min(%at, 8), 0)
        store %x[{index}], %y[%i, %j]
      }} }}
    }}"""


@RULES
@given(gathers(), TARGETS)
def test_gathers(text: str, target: str) -> None:
    check_bits(text, target)


# any schedule


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Kernel, Kernel]:
    """A random kernel, and the same with random tiles, lanes and unrolling."""
    kernel = parse_kernel(draw(st.one_of(elementwise(), rows(), contractions(), gathers())))
    names = [r.var for s in walk(kernel.body) for r in stmt_ranges(s)]
    sizes = draw(st.fixed_dictionaries({n: st.sampled_from([1, 1, 2, 3, 4, 8, 11]) for n in names}))
    unroll = draw(st.fixed_dictionaries({n: st.sampled_from([1, 1, 2, 3]) for n in names}))
    lane = draw(st.sampled_from(names))
    lanes = draw(st.sampled_from([0, 2, 4, 8]))

    def rule(r: Range, _: Stmt) -> Range:
        return r.with_(tile=sizes[r.var], unroll=unroll[r.var], lanes=lanes if r.var == lane else 0)

    return kernel, kernel.with_body(map_ranges(kernel.body, rule))


@settings(RULES, max_examples=60)
@given(schedules(), TARGETS)
def test_any_schedule(kernels: tuple[Kernel, Kernel], target: str) -> None:
    kernel, scheduled = (run_pipeline(k, "expand-math") for k in kernels)
    verify_kernel(scheduled)
    inputs = kernel_inputs(kernel)
    want, got = run_interpreter(kernel, inputs), run_native(scheduled, inputs, target)
    assert want.check_failed == got.check_failed
    summed = any(isinstance(s, Reduce) for s in walk(kernel.body))
    for name, array in want.items():
        if summed:
            np.testing.assert_allclose(got[name], array, rtol=5e-4, atol=2e-4, err_msg=name)
        else:
            assert_same_bits(array, got[name], f"%{name}")


def test_asynchronous_copies_run_as_loops() -> None:
    text = """kernel @k(in %x: f32[16, 40], out %y: f32[16, 40]) {
      parallel %b in 0..2 {
        local %s: f32[2, 40]
        copy_async %x[%b*8, 0] -> %s[0, 0] size 40
        for %k in 0..7 {
          copy_async %x[%b*8 + %k + 1, 0] -> %s[(%k + 1)%2, 0] size 40
          wait %s pending 1
          for %j in 0..40 { store %s[%k%2, %j]*2.0, %y[%b*8 + %k, %j] }
        }
        wait %s
        for %j in 0..40 { store %s[1, %j]*2.0, %y[%b*8 + 7, %j] }
      }
    }"""
    for target in runnable_targets():
        check_bits(text, target, f"lower-async-copies,{EAGER}")
