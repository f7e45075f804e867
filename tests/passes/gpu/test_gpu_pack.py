"""gpu-pack: the order of constant operands in memory."""

from __future__ import annotations

from compiler.testing.checks import check_pass

LINEAR = """kernel @linear(in %x: f32[6, 8], const %w: f32[10, 8]LAYOUT, out %y: f32[6, 10]) {
  parallel %i in 0..6 {
    parallel %j in 0..10 {
      %s = reduce add %k in 0..8 { yield %x[%i, %k] * %w[%j, %k] }
      store %s, %y[%i, %j]
    }
  }
}"""

CONVOLUTION = """kernel @conv(in %x: DTYPE[12, 6, 6], const %w: DTYPE[10, 12, 3, 3]LAYOUT, out %y: f32[10, 4, 4]) {
  parallel %o in 0..10 {
    parallel %h in 0..4 {
      parallel %v in 0..4 {
        %s = reduce add %c in 0..12, %a in 0..3, %b in 0..3 { yield LHS * RHS }
        store %s, %y[%o, %h, %v]
      }
    }
  }
}"""


def linear(layout: str = "") -> str:
    return LINEAR.replace("LAYOUT", layout)


def convolution(dtype: str, layout: str = "") -> str:
    loads = {"LHS": "%x[%c, %h + %a, %v + %b]", "RHS": "%w[%o, %c, %a, %b]"}
    text = CONVOLUTION.replace("DTYPE", dtype).replace("LAYOUT", layout)
    for name, load in loads.items():
        text = text.replace(name, load if dtype == "f32" else f"cast<f32>({load})")
    return text


def test_columns_are_neighbours_where_no_matrix_unit_multiplies() -> None:
    check_pass("gpu-pack", before=linear(), after=linear("{1, 0}"), remark="%w: f32[10, 8] stored as {1, 0}")


def test_windows_come_first() -> None:
    check_pass("gpu-pack", before=convolution("f32"), after=convolution("f32", "{2, 3, 1, 0}"))


def test_matrix_units_read_along_the_sum() -> None:
    check_pass(
        "gpu-pack",
        unchanged=linear()
        .replace("f32[", "f16[")
        .replace("%x[%i, %k] * %w[%j, %k]", "cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k])")
        .replace("out %y: f16", "out %y: f32"),
    )
    check_pass("gpu-pack", before=convolution("f16"), after=convolution("f16", "{2, 3, 0, 1}"))


def test_inputs_stay_as_they_are() -> None:
    check_pass("gpu-pack", unchanged=linear().replace("const %w", "in %w"))
