"""implicit-product: convolutions as one matrix product."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

CONVOLUTION = """kernel @conv(in %x: f16[2, 2, 5, 6], in %k: f16[2, 2, 3, 3], out %y: f16[2, 2, 3, 4]) {
  OUTER
    %s = reduce add SUM { yield cast<f32>(%x[IMAGE]) * cast<f32>(%k[%o, FILTER]) }
    store cast<f16>(%s), %y[RESULT]
  CLOSE
}"""


def convolution(outer: str, **parts: str) -> str:
    text = CONVOLUTION.replace("OUTER", outer).replace("CLOSE", "}" * outer.count("{"))
    for name, part in parts.items():
        text = text.replace(name.upper(), part)
    return text


BEFORE = convolution(
    "parallel %n in 0..2 { parallel %o in 0..2 { parallel %h in 0..3 { parallel %w in 0..4 {",
    sum="%c in 0..2, %r in 0..3, %q in 0..3",
    image="%n, %c, %h + %r, %w + %q",
    filter="%c, %r, %q",
    result="%n, %o, %h, %w",
)


def test_images_and_windows_become_rows_and_depth() -> None:
    check_pass(
        "implicit-product",
        before=BEFORE,
        after=convolution(
            "parallel %o in 0..2 { parallel %n in 0..24 {",
            sum="%c in 0..18",
            image="%n//12, %c//9, (%n%12)//4 + (%c%9)//3, (%n%12)%4 + (%c%9)%3",
            filter="%c//9, (%c%9)//3, (%c%9)%3",
            result="%n//12, %o, (%n%12)//4, (%n%12)%4",
        ),
        remark="one loop over the depth",
        machine=GPU(multiprocessors=1),
    )


def test_one_loop_of_each_kind_is_a_product_already() -> None:
    check_pass("implicit-product", unchanged="""kernel @k(in %x: f16[32, 16], in %w: f16[32, 16], out %y: f32[32, 32]) {
      parallel %i in 0..32 { parallel %j in 0..32 {
        %s = reduce add %k in 0..16 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
        store %s, %y[%i, %j] } } }""")  # fmt: skip
