"""Text of Tile IR: what is printed parses back, and what does not parse says where."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import ParseError
from compiler.ir import scalar as s
from compiler.ir.graph.constant import ConstantData
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.scalar import PRIMITIVES, Expr, IndexValue, Load, PrimitiveCall, Ref, call_primitive, const
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.text.tile_printer import print_expr, print_kernel, print_program, program_resources
from compiler.ir.text.type_parser import parse_type
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Let, Param, Range, Reduce, Store
from compiler.ir.tile.program import Launch, OpaqueCall, Program
from compiler.ir.types import KERNEL_DTYPES, DType, boolean, f32, i8, i32, i64

LINEAR_GELU = """\
kernel @linear_gelu(in %x: f32[m, 768], in %w: f32[3072, 768]{0/32, 1, 0%32}, out %y: f32[m, 3072]) {
  parallel %i in 0..m tile 8 {
    for %j in 0..3072 tile 32 lanes 16 {
      %acc = reduce add %k in 0..768 unroll 4 accumulators 8 { yield %x[%i, %k] * %w[%j, %k] }
      store 0.5 * %acc * (1.0 + erf(%acc * 0.7071067811865476)), %y[%i, %j] nontemporal
    }
  }
}"""


def kernel(value: Expr, dtype: DType = f32, out: DType | None = None) -> Kernel:
    """A kernel that stores `value`, made of %a[%i] (of `dtype`) and constants."""
    row = (Param("a", parse_type(f"{dtype}[n]")), Param("y", parse_type(f"{out or value.dtype}[n]"), "out"))
    return Kernel("k", row, (tile.For(Range("i", 0, var("n")), (Store("y", (var("i"),), value),)),))


def a(dtype: DType = f32) -> Load:
    return Load(dtype, "a", (var("i"),))


def round_trip(k: Kernel) -> str:
    text = print_kernel(k)
    again = parse_kernel(text)
    assert again == k, text
    assert print_kernel(again) == text
    return text


HEAD = "kernel @k(%a: f32[n], %b: i32[n], %c: bool[n], out %y: f32[n]) { for %i in 0..n { store "


def stored(text: str) -> Expr:
    """The expression `text` over %a (f32), %b (i32), %c (bool) and the loop index %i."""
    k = parse_kernel(f"{HEAD}{text}, %y[%i] }} }}")
    store = list(tile.walk(k.body))[-1]
    assert isinstance(store, Store)
    return store.value


def test_the_printed_form() -> None:
    assert print_kernel(parse_kernel(LINEAR_GELU)) == LINEAR_GELU


def test_a_parsed_kernel_is_what_it_says() -> None:
    k = parse_kernel(
        "kernel @k(%x: i8[4, n], out %y: i8[4]) { for %i in 0..4 { %s = reduce max %j in 0..n tile 4 lanes 2, %l in 1..2 unroll 3"
        " { %t = %x[%i, %j]*2 yield %t } store %s, %y[%i] } }"
    )
    i, j = var("i"), var("j")
    ranges = (Range("j", 0, var("n"), 4, 2), Range("l", 1, 2, 1, 0, 3))
    reduce = Reduce("s", "max", ranges, (Let("t", Load(i8, "x", (i, j)) * 2),), Ref(i8, "t"))
    loop = tile.For(Range("i", 0, 4), (reduce, Store("y", (i,), Ref(i8, "s"))))
    assert k == Kernel("k", (Param("x", parse_type("i8[4, n]")), Param("y", parse_type("i8[4]"), "out")), (loop,))


def test_statements_round_trip() -> None:
    i, m = var("i"), var("m")
    body = (
        tile.Local("tmp", parse_type("i32[4]{0}")),
        tile.Local("buf", parse_type("f32[1, 2, 4]"), "shared"),
        Let("q", Load(i64, "idx", (i // 2 + i % 2,)) - 1),
        tile.BoundsCheck("q", -1, m),
        tile.Prefetch("x", (var("q") + 1, 0)),
        tile.Prefetch("x", (var("q") + 2, 0), level=2, reuse=(3, None)),
        tile.Prefetch("x", (var("q") + 3, 0), reuse=(2, 7)),
        tile.AsyncCopy("x", (i // 2, 0), "buf", (0, i % 2, 0), (1, m)),
        tile.AsyncCopy("x", (0, 0), "buf", (0, 0, 0), (4,)),
        tile.Wait("buf", 1),
        tile.Wait("buf"),
        Let("p", (Ref(i64, "q") < 3) & (IndexValue(i64, i * 4 + m) >= Ref(i64, "i"))),
        Store("tmp", (var("q") % 4,), const(-3, i32)),
        Let("e", Load(f32, "x", (var("q"), 0), Ref(boolean, "p"), const(float("-inf"), f32))),
        Let("g", Load(f32, "x", (var("q"), 0), Ref(boolean, "p"))),
        Reduce("r", "min", (Range("l", i, i + 4),), (Store("tmp", (var("l"),), const(1, i32)),), const(1.0, f32)),
        Store("odd \"name\"", (), Ref(f32, "e") * Ref(f32, "r"), nontemporal=0),
    )  # fmt: skip
    params = (
        Param("x", parse_type("f32[m, 4]")),
        Param("idx", parse_type("i64[m]"), "inout"),
        Param('odd "name"', parse_type("f32[]"), "out"),
    )
    text = round_trip(Kernel("odd name", params, (tile.For(Range("i", 0, m), body, True),)))
    assert 'store %e * %r, %"odd \\"name\\""[] nontemporal' in text
    assert "%e = load(%x[%q, 0], %p, -inf)" in text
    assert "prefetch %x[%q + 2, 0] level 2 reuse 3..\n" in text
    assert "prefetch %x[%q + 3, 0] reuse 2..7\n" in text
    assert "copy_async %x[%i//2, 0] -> %buf[0, %i%2, 0] size 1, m\n" in text
    assert "wait %buf pending 1\n    wait %buf\n" in text


# expressions


@pytest.mark.parametrize(
    "text",
    [
        "%a[%i] + %a[%i] * %a[%i]",
        "(%a[%i] + %a[%i]) * %a[%i]",
        "%a[%i] - (%a[%i] - %a[%i])",
        "%a[%i] - %a[%i] - %a[%i]",
        "%a[%i] / (%a[%i] * 2.0)",
        "-%a[%i] * -2.0",
        "-(%a[%i] * -2.0)",
        "-(-%a[%i])",
        "-(2.0:f32)",
        "%a[%i] - -0.0",
        "(%a[%i] < 1.0) == (2.0 > %a[%i])",
        "(%a[%i] < 1.0) | %c[%i] & %c[%i]",
        "(%c[%i] ^ true) & not(%c[%i])",
        "%b[%i] << 3 & 255",
        "%b[%i] << (%b[%i] >> 1 + %b[%i])",
        "where(%c[%i], 1.0:f32, 2.0)",
        "where(true, %a[%i], nan)",
        "cast<bf16>(%b[%i])",
        "bitcast<i32>(-inf:f32)",
        "index(%i*4 + n)",
        "index<i32>(%i%3)",
        "%i",
        "load(%a[%i], %c[%i], -1.5)",
        "load(%a[%i], %c[%i])",
        "fma(%a[%i], 2.0, 1e-05)",
        "1.0:f32 + 2.0",
    ],
)
def test_expressions_print_as_they_are_written(text: str) -> None:
    value = stored(text)
    assert print_expr(value).replace("%n", "n") == text


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("add(%a[%i], mul(%a[%i], 2))", "%a[%i] + %a[%i] * 2.0"),
        ("((%a[i]))", "%a[%i]"),
        ("1 + %a[%i] + 2", "1.0 + %a[%i] + 2.0"),
        ("index(4)", "4:i64"),
        ("3", "3.0:f32"),
        ("true", "true"),
    ],
)
def test_liberal_input(text: str, again: str) -> None:
    assert print_expr(stored(text)) == again


NUMBERS = [0.0, -0.0, 1.5, -2.25, 1e-300, 0.1, float("inf"), float("-inf"), float("nan")]


def constants(dtype: DType) -> st.SearchStrategy[Expr]:
    numbers: st.SearchStrategy[float] = st.sampled_from(NUMBERS)
    if not dtype.is_float:
        numbers = st.booleans() if dtype is boolean else st.integers(0 if dtype.kind == "uint" else -128, 127)
    return numbers.map(lambda v: const(v, dtype))


def expressions(dtype: DType) -> st.SearchStrategy[Expr]:
    """Any tree of primitives over `dtype`."""
    leaves = st.one_of(constants(dtype), st.just(a(dtype)), st.just(Load(dtype, "a", (var("i") * 2 + 1,))))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        def apply(name: str) -> st.SearchStrategy[Expr]:
            rule = PRIMITIVES[name]
            if rule.result_rule == "branch":
                return st.tuples(inner, inner, inner).map(
                    lambda e: call_primitive(name, call_primitive("lt", e[0], e[1]), e[1], e[2])
                )
            if rule.result_rule == "given":
                return inner.map(lambda e: call_primitive("cast", call_primitive("cast", e, dtype=i64), dtype=dtype))
            built = st.tuples(*[inner] * rule.arity).map(lambda e: call_primitive(name, *e))
            return built if rule.result_rule == "same" else built.map(lambda e: call_primitive("cast", e, dtype=dtype))

        return st.sampled_from(sorted(PRIMITIVES)).flatmap(apply)

    return st.recursive(leaves, grow, max_leaves=12)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES.values(), ids=str)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_expression_round_trips(dtype: DType, data: st.DataObject) -> None:
    round_trip(kernel(data.draw(expressions(dtype)), dtype))


def test_a_number_that_needs_its_type_has_it() -> None:
    k = kernel(call_primitive("add", const(1, i32), const(2, i32)), out=i32)
    assert "1:i32 + 2" in round_trip(k)
    assert "store 1.0:f32 < 2.0, " in round_trip(kernel(call_primitive("lt", const(1, f32), const(2, f32))))
    assert "store 7, " in round_trip(kernel(const(7, i8)))


@pytest.mark.parametrize("depth", [12, 60])
def test_shared_parts_are_printed_once(depth: int) -> None:
    text = print_kernel(kernel(shared(depth)))
    assert len(text) < 6000
    assert "%t0 = " in text
    again = parse_kernel(text)
    assert print_kernel(again) == text
    expected = np.array(INPUT, np.float64)
    for _ in range(depth):
        expected = expected * expected - 0.5
    assert results(again) == pytest.approx(list(expected), rel=1e-5)


def test_leaves_are_not_bound() -> None:
    value: Expr = (x := a())
    for _ in range(120):
        value = call_primitive("max", value, x)
    text = print_kernel(kernel(value))
    assert "%t0 = " in text
    assert " = %a[%i]\n" not in text


def shared(depth: int) -> Expr:
    e: Expr = a()
    for _ in range(depth):
        e = e * e - 0.5
    return e


def test_a_deep_expression_is_cut_and_means_the_same() -> None:
    value: Expr = a()
    for _ in range(200):
        value = s.sin(value)
    text = print_kernel(kernel(value))
    assert text.count("sin(") == 200
    assert text.count("%t") >= 5
    again = parse_kernel(text)
    assert print_kernel(again) == text
    expected = np.array(INPUT, np.float64)
    for _ in range(200):
        expected = np.sin(expected)
    assert results(again) == pytest.approx(list(expected), rel=1e-4)


def test_fresh_names_avoid_those_in_use() -> None:
    k = kernel(shared(60))
    text = print_kernel(k.with_body((Let("t0", const(1.0, f32)), *k.body)))
    assert text.count("%t0 = ") == 1
    assert "%t1 = " in text


INPUT = [0.1, -0.3]


def results(k: Kernel) -> list[float]:
    """What `k` stores for `INPUT`."""
    params = tuple(Param(p.name, p.type.specialize({"n": 2}), p.role) for p in k.params)
    y = np.zeros(2, np.float32)
    body = tile.map_ranges(k.body, lambda r, _: r.with_(hi=2))
    run_kernel(Kernel(k.name, params, body), {"a": np.array(INPUT, np.float32), "y": y})
    return [float(v) for v in y]


# programs

PROGRAM = """\
program {
  input %x: f32[4]
  input %s: f32[2]
  output %y: f32[4]
  output %s: f32[2]
  constant %w: bf16[2]{0} [1.5, -0.0]
  constant %big: f32[20] @big
  buffer %t0: f32[4]
  kernel @k0(in %x: f32[4], out %y: f32[4]) {
    for %i in 0..4 {
      store %x[%i] + 1.0, %y[%i]
    }
  }
  kernel @nothing() {
  }
  launch @k0(%x, %t0) for "layers.0"
  launch @nothing()
  opaque @aten.sort(%t0) -> %y, %s {dim=0, descending=true} for "sort_1"
  opaque @print(%y)
  copy %t0 -> %y
}"""


def test_programs_round_trip() -> None:
    big = np.arange(20, dtype=np.float32)
    program = parse_program(PROGRAM, {"big": ConstantData(f32, big)})
    assert print_program(program) == PROGRAM
    assert program.inputs == ("x", "s")
    assert program.outputs == ("y", "s")
    assert program.constants["big"] is big
    assert program.constants["w"].tolist() == [0x3FC0, 0x8000]
    assert program.steps[0] == Launch("k0", ("x", "t0"), "layers.0")
    assert program.steps[2] == OpaqueCall(
        "aten.sort", (("dim", 0), ("descending", True)), ("t0",), ("y", "s"), "sort_1"
    )
    assert list(program_resources(program)) == ["big"]
    again = parse_program(print_program(program, full=True))
    assert np.array_equal(again.constants["big"], big)
    assert again.kernels == program.kernels
    assert again.steps == program.steps
    assert again.buffers == program.buffers


def test_a_bf16_constant_may_be_held_as_float32() -> None:
    w = parse_type("bf16[2]")
    program = Program({"w": w}, (), (), {"w": np.array([0.1, 2], np.float32)}, {}, ())
    assert parse_program(print_program(program)).constants["w"].tolist() == [0x3DCD, 0x4000]


# errors


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("1.0 + 2.0", 5, "cannot infer the dtype of 1.0; write 1.0:f32"),
        ("%a[%i] + %b[%i]", 8, "mixed types f32, i32"),
        ("%b[%i] + 1.5", 10, "1.5 is not representable in i32"),
        ("%b[%i] + 3000000000", 10, "3000000000 is not representable in i32"),
        ("exq(%a[%i])", 1, "unknown primitive `exq`; did you mean .*exp"),
        ("exp(%a[%i], 1.0)", 1, "exp takes 1 operands, not 2"),
        ("%q", 1, "unknown value `%q`"),
        ("%aa[%i]", 1, "unknown buffer `%aa`; did you mean a"),
        ("%a[%i] < 1 < 2", 12, "comparisons do not chain"),
        ("load(%a[%i], %a[%i])", 14, "expected bool, found f32"),
        ("load(%a[%i], true, %b[%i])", 20, "expected f32, found i32"),
        ("where(%a[%i], 1, 2)", 1, "cannot infer the dtype of 1"),
        ("cast<f33>(%a[%i])", 6, "unknown dtype `f33`"),
        ("cast<f32>(1)", 11, "cannot infer the dtype of 1"),
        ("%a[%i 3", 7, "expected `,`"),
        ("%a[%i//0]", 6, "division by zero"),
        ("+", 1, "expected an expression"),
    ],
)
def test_bad_expressions(text: str, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        stored(text)
    assert caught.value.column - len(HEAD) == column


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("kernel f() {}", 1, 8, "the kernel's @name"),
        ("kernel @f(%x: f32[4], %x: f32[4]) {}", 1, 23, "defined twice"),
        ("kernel @f() {\n  for %i in 0..4 { %q = %i }\n  %r = %q\n}", 3, 8, "unknown value `%q`"),
        ("kernel @f() {\n  %q = reduce plus %i in 0..4 { yield %i }\n}", 2, 15, "use add, mul, max, min"),
        ("kernel @f() {\n  %q = reduce add %i in 0..4 { }\n}", 2, 32, "expected `yield`"),
        ("kernel @f() {\n  for %i in 0 {}\n}", 2, 15, r"expected `\.\.`"),
        ("kernel @f() {\n  jump\n}", 2, 3, "expected `}`, found `jump`"),
    ],
)
def test_bad_kernels(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse_kernel(text)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("input %x: f32[4] input %x: f32[4]", "`%x` is declared twice"),
        ("input %x: f32[4] output %x: f32[5]", "`%x` is declared twice"),
        ("copy %x -> %y", "unknown buffer `%x`"),
        ("launch @k()", "unknown kernel `@k`"),
        ("kernel @k() {} kernel @k() {}", "`@k` is defined twice"),
        ("constant %w: f32[4] @w", "no contents for `@w`"),
        ("jump", "expected a declaration, a kernel or a step"),
    ],
)
def test_bad_programs(items: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_program(f"program {{ {items} }}")


@pytest.mark.parametrize("opening", ["(", "-", "exp(", "cast<f32>(", "1 + ("])
def test_nesting_without_end(opening: str) -> None:
    with pytest.raises(ParseError):
        stored(opening * 3000)


def test_calls_print_without_surprise() -> None:
    assert print_expr(PrimitiveCall(f32, "neg", (const(-1.0, f32),))) == "-(-1.0:f32)"
