"""join: which nests share a loop, and what keeps them apart."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def nest(name: str, outer: str, inner: str, place: str, image: str = "", weight: str = "%w[{i}, {k}]") -> str:
    """The sums of one part: loops %i{name} over `outer` and %j{name} over `inner`, the image read at `image`."""
    i, j, k = (f"%{v}{name}" for v in "ijk")
    product = f"%x[{k}, {(image or place).format(i=i, j=j)}] * {weight.format(i=i, j=j, k=k)}"
    return f"""parallel {i} in {outer} {{ parallel {j} in {inner} {{
      %s{name} = reduce add {k} in 0..3 {{ yield {product} }}
      store %s{name}, %y[{i}, {place.format(i=i, j=j)}] }} }}"""


def kernel(*nests: str, role: str = "const") -> str:
    return f"kernel @k(in %x: f32[3, 9], {role} %w: f32[9, 3], out %y: f32[9, 9]) {{ {' '.join(nests)} }}"


def test_parts_of_one_convolution_share_the_loop_over_its_weights() -> None:
    first, second = nest("0", "0..9", "0..4", "{j}"), nest("1", "0..9", "0..5", "{j} + 4")
    inner = nest("1", "0..9", "0..5", "{j} + 4").replace("%i1", "%i0").split("{", 1)[1].rsplit("}", 1)[0]
    check_pass(
        "fuse-siblings",
        before=kernel(first, second),
        after=kernel(first.rsplit("}", 1)[0] + inner + "}"),
        remark="sibling nest fused into %i0",
    )


ROWS = ("{i}", "%w[{j}, {k}]")
"""Image and weights where the outer loop walks rows, and the inner one columns."""


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("other steps", kernel(nest("0", "0..9", "0..4", "{j}"), nest("1", "0..8", "0..5", "{j} + 4"))),
        ("steps that store where others do", kernel(nest("0", "0..9", "0..4", "{j}"), nest("1", "0..9", "0..5", "{j} + 4").replace("%y[%i1, %j1 + 4]", "%y[%j1 + 4, %i1]"))),
        ("rows that both need", kernel(nest("0", "0..9", "0..4", "{j}", *ROWS), nest("1", "0..9", "0..5", "{j} + 4", *ROWS).replace("%w[%j1", "%w[%j1 + 4"))),
        ("no constant", kernel(nest("0", "0..9", "0..4", "{j}"), nest("1", "0..9", "0..5", "{j} + 4"), role="in")),
        ("steps that read what others store in what is around them", kernel("parallel %c in 0..9 { local %t: f32[9]", "parallel %i in 0..9 { store %x[0, %i], %t[%i] }", "parallel %j in 0..9 { %s = reduce add %k in 0..3 { yield %t[%j] * %w[%c, %k] } store %s, %y[%c, %j] } }")),
        ("serial loops", kernel(nest("0", "0..9", "0..4", "{j}"), nest("1", "0..9", "0..5", "{j} + 4")).replace("parallel", "for")),
    ],
)  # fmt: skip
def test_others_stay_apart(why: str, text: str) -> None:
    check_pass("fuse-siblings", unchanged=text)
