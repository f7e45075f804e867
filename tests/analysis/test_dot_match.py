"""Dot products: which contractions multiply packed neighbours, of which types, and why others do not."""

from __future__ import annotations

import pytest

from compiler.analysis.accesses import Accesses
from compiler.analysis.dot_match import (
    CannotPack,
    DotMatch,
    NoDot,
    match_dot,
    match_dots,
    match_operands,
    pack_along,
    pack_load,
    pack_rows,
    products_at_once,
    with_dots,
)
from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import Kernel, Reduce, walk
from compiler.target import MatrixShape
from compiler.testing.checks import parse_ir

SHAPES = (
    MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),
    MatrixShape(1, 16, 4, "u8", "i8", "i32"),
    MatrixShape(1, 16, 2, "i16", "i16", "i32"),
)

ROWS, COLUMNS = "cast<{t}>(%a[%i, %k]) * cast<{t}>(%w[%j, %k])", "cast<{t}>(%a[%i, %k]) * cast<{t}>(%w[%k, %j])"


def kernel(value: str, a: str, w: str, t: str = "f32", reduced: str = "%k in 0..8", more: str = "") -> Kernel:
    """A kernel that adds `value` over `reduced`; `a` and `w` are the role and type of its operands."""
    (a_role, a_type), (w_role, w_type) = a.split(" ", 1), w.split(" ", 1)
    ir = parse_ir(f"""kernel @k({a_role} %a: {a_type}, {w_role} %w: {w_type}, out %y: {t}[4, 6]) {{
      for %i in 0..4 {{ for %j in 0..6 {{
        %s = reduce add {reduced} {{ yield {value.format(t=t)} }}  {more}  store %s, %y[%i, %j] }} }} }}""")
    assert isinstance(ir, Kernel)
    return ir


def contraction(k: Kernel) -> Contraction:
    return next(c for s in walk(k.body) if (c := contraction_of(s)))


def operands(k: Kernel) -> tuple[str, str, int] | None:
    found = match_operands(Accesses(k).roles, contraction(k), SHAPES)
    return found and (found[0].buffer, found[1].buffer, found[2])


PAIR = "pack<bf16x2>(%w[%k*2, %j], %w[%k*2 + 1, %j])"

BF16 = kernel(ROWS, "in bf16[4, 8]", "in bf16[6, 8]")


@pytest.mark.parametrize(
    ("before", "dot", "types", "extent"),
    [
        (BF16, "dot<f32>(%a[%i, %k], %w[%j, %k])", ("in bf16x2[4, 4]", "in bf16x2[6, 4]", "f32"), 4),
        (
            kernel(ROWS, "in i8[4, 8]", "in u8[6, 8]", "i32"),
            "dot<i32>(%w[%j, %k], %a[%i, %k])", ("in i8x4[4, 2]", "in u8x4[6, 2]", "i32"), 2,
        ),
        (
            kernel(COLUMNS, "in bf16[4, 8]", "in bf16[8, 6]"),
            f"dot<f32>(%a[%i, %k], {PAIR})", ("in bf16x2[4, 4]", "in bf16[8, 6]", "f32"), 4,
        ),
        (
            kernel(COLUMNS, "in bf16[4, 8]", "const bf16[8, 6]"),
            "dot<f32>(%a[%i, %k], %w[%k, %j])", ("in bf16x2[4, 4]", "const bf16x2[4, 6]", "f32"), 4,
        ),
    ],
)  # fmt: skip
def test_a_contraction_over_packed_elements_replaces_it(
    before: Kernel, dot: str, types: tuple[str, str, str], extent: int
) -> None:
    after = kernel(dot, *types, reduced=f"%k in 0..{extent}")
    (found,) = match_dots(Accesses(before), SHAPES)
    assert isinstance(found, DotMatch)
    assert (found.old, found.new) == (contraction(before).reduction, contraction(after).reduction)
    shapes = {name: (t.dtype, t.shape) for name, t in found.types.items()}
    assert shapes == {p.name: (p.type.dtype, p.type.shape) for p in after.params[:2]}
    replaced = with_dots(before, [found])
    assert replaced.body == after.body
    assert {p.name: p.type for p in replaced.params[:2]} == found.types
    assert with_dots(before, []) == before


def test_nothing_is_matched_without_instructions_or_contractions() -> None:
    assert match_dots(Accesses(BF16), ()) == []
    plain = kernel("cast<{t}>(%a[%i, %k]) + cast<{t}>(%w[%j, %k])", "in bf16[4, 8]", "in bf16[6, 8]")
    assert match_dots(Accesses(plain), SHAPES) == []


@pytest.mark.parametrize(
    ("a", "w", "t", "expected"),
    [
        ("in bf16[4, 8]", "in bf16[6, 8]", "f32", ("a", "w", 2)),
        ("in u8[4, 8]", "in i8[6, 8]", "i32", ("a", "w", 4)),
        ("in i8[4, 8]", "in u8[6, 8]", "i32", ("w", "a", 4)),
        ("in i16[4, 8]", "const i8[6, 8]", "i32", ("a", "w", 2)),
        ("in i16[4, 8]", "in i8[6, 8]", "i32", None),  # no constant that may be widened
        ("in f32[4, 8]", "in f32[6, 8]", "f32", None),
    ],
)
def test_operands_come_in_the_order_of_the_instruction(
    a: str, w: str, t: str, expected: tuple[str, str, int] | None
) -> None:
    assert operands(kernel(ROWS, a, w, t)) == expected


def test_a_factor_that_is_computed_is_no_operand() -> None:
    value = ROWS.replace("* cast<{t}>(%w[%j, %k])", "* cast<{t}>(exp(%w[%j, %k]))")
    assert operands(kernel(value, "in bf16[4, 8]", "in bf16[6, 8]")) is None


@pytest.mark.parametrize(
    ("k", "reason"),
    [
        (kernel(ROWS, "in bf16[4, 9]", "in bf16[6, 8]"), "%a does not consist of groups of 2 along %k"),
        (kernel(ROWS, "in bf16[4, 8]", "in bf16[6, 8]", reduced="%k in 0..7"), "the range of %k does not consist of groups of 2"),
        (kernel(ROWS, "in bf16[4, 8]", "in bf16[6, 8]", reduced="%k in 2..8"), "the range of %k does not consist of groups of 2"),
        (kernel(COLUMNS, "in bf16[4, 8]{1, 0}", "in bf16[8, 6]"), "neither operand is contiguous along %k"),
        (kernel(COLUMNS.replace("%j", "0"), "in bf16[4, 8]", "in bf16[8, 6]"), "%w is contiguous neither along %k nor across it"),
        (kernel(ROWS, "in bf16[4, 8]", "in bf16[6, 8]", more="%e = cast<f32>(%w[0, 0])"), "an operand is read in single elements too"),
        (kernel(ROWS.replace("%w[%j, %k]", "load(%w[%j, %k], %k < 5, 0.0)"), "in bf16[4, 8]", "in bf16[6, 8]"), "%w is masked along %k"),
        (kernel(COLUMNS.replace("%w", "%a"), "in bf16[8, 8]", "in bf16[1]"), "%a would be packed along two dimensions"),
    ],
)  # fmt: skip
def test_a_contraction_that_is_not_packed_has_a_reason(k: Kernel, reason: str) -> None:
    assert match_dots(Accesses(k), SHAPES) == [NoDot(contraction(k).reduction, reason)]


@pytest.mark.parametrize(("other", "packed"), [("0.0", True), ("1.0", False)])
def test_a_masked_operand_is_packed_if_it_is_zero_elsewhere(other: str, packed: bool) -> None:
    value = ROWS.replace("%w[%j, %k]", f"load(%w[%j, %k], %i < 2, {other})")
    (found,) = match_dots(Accesses(kernel(value, "in bf16[4, 8]", "in bf16[6, 8]")), SHAPES)
    assert packed if isinstance(found, DotMatch) else found.reason.startswith("%w is replaced by ")
    assert isinstance(found, DotMatch) == packed


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (8, 4, [8, 2]),
        (8, 3, [4, 3]),
        (7, 3, "the range of %r does not consist of groups of 2; the range of %k does not consist of groups of 2"),
    ],
)
def test_the_last_range_that_allows_it_is_packed(rows: int, columns: int, expected: list[int] | str) -> None:
    ranges, shape = f"%k in 0..{rows}, %r in 0..{columns}", f"{rows}, {columns}"
    value = ROWS.replace("%k]", "%k, %r]")
    (dot,) = match_dots(
        Accesses(kernel(value, f"in bf16[4, {shape}]", f"const bf16[6, {shape}]", reduced=ranges)), SHAPES
    )
    assert (dot.reason if isinstance(dot, NoDot) else [r.extent for r in dot.new.ranges]) == expected


def test_an_operand_is_packed_by_itself_or_refused() -> None:
    k = kernel(COLUMNS, "in bf16[4, 8]", "in bf16[8, 12]", reduced="%k in 0..8")
    table, c = Accesses(k), contraction(k)
    found = match_operands(table.roles, c, SHAPES)
    assert found is not None
    (lhs, rhs, count), r = found, c.reduction.ranges[0]
    packed, type_ = pack_load(table, lhs, r, count)
    assert isinstance(packed, Load)
    assert (str(packed.dtype), packed.index, str(type_)) == ("bf16x2", (var("i"), var("k")), "bf16x2[4, 4]")
    assert [x.index for x in pack_rows(table, rhs, r, count).loads] == [(var("k") * 2 + n, var("j")) for n in range(2)]
    assert pack_along(table, c.reduction, r, lhs, rhs, count) == match_dot(table, c.reduction, lhs, rhs, count)
    with pytest.raises(CannotPack, match="the range of %k does not consist of groups of 3"):
        pack_along(table, c.reduction, r, lhs, rhs, 3)
    with pytest.raises(CannotPack, match="%w is contiguous neither along %i nor across it"):
        pack_rows(table, Load(rhs.dtype, "w", (var("k"), var("j") * 2)), r.with_(var="i"), count)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (BF16, 2),
        (kernel(COLUMNS, "in u8[4, 8]", "in i8[8, 6]", "i32"), 4),  # in the best of layouts
        (kernel(ROWS, "in u8[4, 8]", "in u8[6, 8]", "i32"), 1),  # only constants are widened
        (kernel(ROWS, "const u8[4, 8]", "const u8[6, 8]", "i32"), 2),
        (kernel(ROWS, "in f32[4, 8]", "in f32[6, 8]"), 1),
        (kernel(ROWS, "in bf16[4, 9]", "in bf16[6, 9]", reduced="%k in 0..9"), 1),
        (kernel("cast<f32>(%a[%i, %k]) + cast<f32>(%w[%j, %k])", "in bf16[4, 8]", "in bf16[6, 8]"), 1),
    ],
)
def test_how_many_products_an_instruction_adds(given: Kernel, count: int) -> None:
    stmt = next(s for s in walk(given.body) if isinstance(s, Reduce))
    assert products_at_once(given, stmt, SHAPES) == count
    assert products_at_once(given, stmt, ()) == 1


def test_rows_computed_in_the_kernel_are_multiplied_one_at_a_time() -> None:
    ir = parse_ir("""kernel @k(in %a: f32[4, 8], in %w: bf16[6, 8], out %y: f32[4, 6]) {
      for %i in 0..4 {
        local %l: bf16[8]
        for %k in 0..8 { store cast<bf16>(%a[%i, %k]), %l[%k] }
        for %j in 0..6 {
          %s = reduce add %r in 0..8 { yield cast<f32>(%l[%r]) * cast<f32>(%w[%j, %r]) }  store %s, %y[%i, %j] } } }""")
    assert isinstance(ir, Kernel)
    stmt = next(s for s in walk(ir.body) if isinstance(s, Reduce))
    assert products_at_once(ir, stmt, SHAPES) == 1
