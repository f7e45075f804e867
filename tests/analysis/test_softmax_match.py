"""Recognition of softmax rows in kernels."""

from __future__ import annotations

import pytest

from compiler.analysis.softmax_match import SoftmaxRow, is_guarded_max, last_unmasked_index, match_softmax_row
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import For, Let, Reduce, walk

MAX = "%m = reduce max %r in 0..10 { yield %s[%i, %r] }"
EXP = "%p = exp(%s[%i, %r] - %m)  store %p, %e[%r]  yield %p"
SUM = f"%t = reduce add %r in 0..10 {{ {EXP} }}"
WEIGHTED = """for %j in 0..3 { %a = reduce add %r in 0..10 { yield %e[%r] * %v[%r, %j] }  store %a / %t, %y[%i, %j] }"""


def match(*row: str) -> SoftmaxRow | None:
    """The softmax row that the statements of a row compute."""
    kernel = parse_kernel(f"""kernel @k(in %s: f32[4, 10], in %v: f32[10, 3], out %y: f32[4, 3]) {{
      parallel %i in 0..4 {{ local %e: f32[10] local %q: f32[10] {" ".join(row)} }} }}""")
    (loop,) = kernel.body
    assert isinstance(loop, For)
    return match_softmax_row(loop.body)


def test_matches_maximum_sum_and_weighted_sum() -> None:
    row = match(MAX, SUM, WEIGHTED)
    assert row is not None
    assert row.extent == 10
    assert row.max_reduction.name == "m"
    assert [r.name for r in row.reductions] == ["t"]
    assert [w.reduction.name for w in row.weighted_sums] == ["a"]
    assert set(row.row_buffers) == {"e", "q"}
    assert not row.shifts


def test_matches_guarded_maximum_as_shift() -> None:
    row = match(MAX, "%g = where(%m == -inf, 0.0, %m)", SUM.replace("- %m", "- %g"), WEIGHTED)
    assert row is not None
    (shift,) = row.shifts
    assert isinstance(shift, Let)
    assert shift.name == "g"
    assert is_guarded_max(shift.value, "m")
    assert not is_guarded_max(shift.value, "t")


def test_defers_division_by_the_sum_to_the_end() -> None:
    divide = "for %k in 0..10 { store %e[%k] / %t, %q[%k] }"
    row = match(MAX, SUM, divide, WEIGHTED.replace("%e[", "%q[").replace("%a / %t", "%a"))
    assert row is not None
    (weighted,) = row.weighted_sums
    assert weighted.divisor is not None
    assert [e.buffer for e in weighted.reduction.value.loads] == ["e", "v"]


def test_values_before_and_after_the_row() -> None:
    row = match("%c = %v[0, 0]", MAX, SUM, "%n = 1.0 / %t", WEIGHTED.replace("%a / %t", "%a * %n"))
    assert row is not None
    assert [s.name for s in row.prologue if isinstance(s, Let)] == ["c"]
    assert [s.name for s in row.epilogue if isinstance(s, Let)] == ["n"]


REFUSED = {
    "no maximum": [SUM.replace("- %m", "- 1.0"), WEIGHTED],
    "a minimum": [MAX.replace("max", "min"), SUM, WEIGHTED],
    "another extent": [MAX, SUM.replace("0..10", "0..9"), WEIGHTED],
    "no weighted sum": [MAX, SUM],
    "no sum": [MAX],
    "exp without the maximum": [MAX, SUM.replace("- %m", "- 1.0"), WEIGHTED],
    "exp of the maximum alone": [MAX, SUM.replace("%s[%i, %r] - %m", "%m"), WEIGHTED],
    "square of exp": [MAX, SUM, WEIGHTED.replace("%e[%r] *", "%e[%r] * %e[%r] *")],
    "exp plus a constant": [MAX, SUM.replace("yield %p", "yield %p + 1.0"), WEIGHTED],
    "a product of the row": [MAX, SUM.replace("reduce add", "reduce mul"), WEIGHTED],
    "stored at another index": [MAX, SUM.replace("%e[%r]", "%e[9 - %r]"), WEIGHTED],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str) -> None:
    assert match(*REFUSED[case]) is None


@pytest.mark.parametrize(
    ("condition", "last"),
    [
        ("index(%r) <= index(%i)", "i"),
        ("index(%r) < index(%i)", "i - 1"),
        ("index(%i) >= index(%r)", "i"),
        ("index(%i) > index(%r) + index(2)", "i - 3"),
        ("index(%r) >= index(%i)", None),
        ("index(%r)*2 <= index(%i)", None),
    ],
)
def test_last_unmasked_index_of_causal_mask(condition: str, last: str | None) -> None:
    kernel = parse_kernel(f"""kernel @k(in %s: f32[4, 10], out %y: f32[4]) {{ for %i in 0..4 {{
      %m = reduce max %r in 0..10 {{ %c = {condition}  yield where(%c, %s[%i, %r], -inf) }}  store %m, %y[%i] }} }}""")
    maximum = next(s for s in walk(kernel.body) if isinstance(s, Reduce))
    assert (None if last is None else str(last_unmasked_index(maximum))) == last
    assert last is not None or last_unmasked_index(maximum) is None


def test_other_masked_value_is_no_mask() -> None:
    kernel = parse_kernel("""kernel @k(in %s: f32[4, 10], out %y: f32[4]) { for %i in 0..4 {
      %m = reduce max %r in 0..10 { yield where(index(%r) <= index(%i), %s[%i, %r], 0.0) }  store %m, %y[%i] } }""")
    maximum = next(s for s in walk(kernel.body) if isinstance(s, Reduce))
    assert last_unmasked_index(maximum) is None
