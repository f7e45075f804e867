"""gpu-align: rows inside margins begin at multiples of 16 bytes."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def program(whole: str, inside: str, buffer: str, role: str = "buffer") -> str:
    """A kernel that fills the inside of an image, one that fills a margin, and one that reads both."""
    return f"""program {{ input %a: f32[6, 8]  output %c: f32[6, 8]  {role} %b: {buffer}
      kernel @inside(in %x: f32[6, 8], out %y: {inside}) {{
        parallel %i in 0..6 {{ parallel %j in 0..8 {{ store %x[%i, %j], %y[%i, %j] }} }} }}
      kernel @margin(out %y: {whole}) {{ parallel %i in 0..6 {{ for %j in 0..2 {{ store 0.0, %y[%i, %j*9] }} }} }}
      kernel @read(in %x: {whole}, out %y: f32[6, 8]) {{
        parallel %i in 0..6 {{ parallel %j in 0..8 {{ store %x[%i, %j] + %x[%i, %j + 2], %y[%i, %j] }} }} }}
      launch @inside(%a, %b)  launch @margin(%b)  launch @read(%b, %c) }}"""


BEFORE = program("f32[6, 10]", "f32[6, 8]{0, 1+1:1}", "f32[6, 10]")


def test_rows_inside_a_margin_begin_at_multiples_of_16_bytes() -> None:
    check_pass(
        "gpu-align",
        before=BEFORE,
        after=program("f32[6, 10]{0, 1+3:3}", "f32[6, 8]{0, 1+4:4}", "f32[6, 16]"),
        remark="rows of %b with 3 elements before and 3 behind",
    )


def test_what_shares_a_kernel_is_aligned_together() -> None:
    """Both buffers are passed for the same parameters."""
    second = "launch @inside(%a, %d)  launch @margin(%d)  launch @read(%d, %c)"
    two = BEFORE.replace("kernel @inside", "buffer %d: f32[6, 10]  kernel @inside").replace(
        "launch @inside", f"{second} launch @inside", 1
    )
    after = program("f32[6, 10]{0, 1+3:3}", "f32[6, 8]{0, 1+4:4}", "f32[6, 16]")
    check_pass(
        "gpu-align",
        before=two,
        after=after.replace("kernel @inside", "buffer %d: f32[6, 16]  kernel @inside").replace(
            "launch @inside", f"{second} launch @inside", 1
        ),
    )


@pytest.mark.parametrize(
    "unchanged",
    [
        program("f32[6, 10]", "f32[6, 8]{0, 1+1:1}", "f32[6, 10]", role="output"),
        BEFORE.replace("output %c: f32[6, 8]", "output %c: f32[6, 8] output %d: f32[6, 10]").replace("launch @read(%b, %c)", "launch @read(%b, %c) copy %b -> %d"),
        program("f32[6, 16]", "f32[6, 8]{0, 1+4:4}", "f32[6, 16]"),
        program("f32[8, 10]", "f32[6, 10]{0+1:1, 1}", "f32[8, 10]"),
        """program { input %a: f32[6]  buffer %b: f32[]  output %c: f32[]
          kernel @sum(in %x: f32[6], out %y: f32[]) { %s = reduce add %i in 0..6 { yield %x[%i] }  store %s, %y[] }
          kernel @root(in %x: f32[], out %y: f32[]) { store sqrt(%x[]), %y[] }
          launch @sum(%a, %b)  launch @root(%b, %c) }""",
    ],
    ids=["an output", "a copied buffer", "aligned rows", "whole rows", "a scalar"],
)  # fmt: skip
def test_other_buffers_stay(unchanged: str) -> None:
    check_pass("gpu-align", unchanged=unchanged)
