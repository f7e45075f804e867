"""Directives of schedules: what each makes of a kernel, and what is refused."""

from __future__ import annotations

import pytest

from compiler.errors import ParseError, PassError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.passes.base import Context
from compiler.passes.schedule.schedule import parse_schedules
from compiler.testing.checks import check_pass

MATMUL = """kernel @k(in %x: f32[4, 4], const %w: f32[16, 4], out %y: f32[4, 16]) {
  parallel %i in 0..4 {
    parallel %j in 0..16 {
      %s = reduce add %k in 0..4 { yield %x[%i, %k] * %w[%j, %k] }
      store %s, %y[%i, %j]
    }
  }
}"""
NEST = "  parallel %i in 0..4 {\n    parallel %j in 0..16 {"
WINDOW = """kernel @k(in %x: f32[4, 9], out %y: f32[7]) {
  parallel %i in 0..7 { %s = reduce max %c in 0..4, %w in 0..3 { yield %x[%c, %i + %w] }   store %s, %y[%i] }
}"""
COPY = """kernel @k(size n in 1..50 hint 20, in %x: f32[n, 4], out %y: f32[n, 4]) {
  parallel %i in 0..n { parallel %j in 0..4 { store %x[%i, %j], %y[%i, %j] } }
}"""
DOUBLE = "kernel @k(in %x: f32[20], out %y: f32[20]) { parallel %i in 0..20 { store %x[%i] * 2.0, %y[%i] } }"
RUNNING_SUM = """kernel @k(in %x: f32[16], out %y: f32[16]) {
  local %t: f32[]
  store 0.0, %t[]
  for %i in 0..16 { store %t[] + %x[%i], %t[]   store %t[], %y[%i] }
}"""
ROWS = """kernel @k(in %x: f32[4, 8], out %y: f32[4, 8]) {
  parallel %i in 0..4 {
    %m = reduce max %r in 0..8 { yield %x[%i, %r] }
    for %j in 0..8 { store %x[%i, %j] - %m, %y[%i, %j] }
  }
}"""

SHARED = """kernel @k(in %x: f32[16], inout %y: f32[16]) {
  for %i in 0..16 { store %x[%i], %y[%i] }
  for %j in 0..16 { store %y[%j] + 1.0, %y[%j] }
}"""

CASES = {
    "split %i by 2 -> %o": (
        MATMUL,
        MATMUL.replace("%i in 0..4 {", "%o in 0..2 { parallel %i in %o*2..%o*2 + 2 {") + "}",
    ),
    "split %i by 8 -> %o": (
        DOUBLE,
        """kernel @k(in %x: f32[20], out %y: f32[20]) {
  parallel %o in 0..2 { parallel %i in %o*8..%o*8 + 8 { store %x[%i] * 2.0, %y[%i] } }
  parallel %i in 16..20 { store %x[%i] * 2.0, %y[%i] }
}""",
    ),
    "reorder %j, %i": (MATMUL, MATMUL.replace(NEST, "parallel %j in 0..16 { parallel %i in 0..4 {")),
    "reorder %w, %c": (WINDOW, WINDOW.replace("%c in 0..4, %w in 0..3", "%w in 0..3, %c in 0..4")),
    "collapse %i %j": (
        COPY,
        COPY.replace("0..n { parallel %j in 0..4 { store", "0..n*4 { store")
        .replace("%i, %j", "%i//4, %i%4")
        .replace("} }\n", "}\n"),
    ),
    "tile %i by 4": (MATMUL, MATMUL.replace("%i in 0..4", "%i in 0..4 tile 4")),
    "vectorize %j by 16": (MATMUL, MATMUL.replace("%j in 0..16", "%j in 0..16 tile 16 lanes 16")),
    "vectorize %k by 4": (MATMUL, MATMUL.replace("%k in 0..4", "%k in 0..4 tile 4 lanes 4")),
    "tile %j by 16 vectorize %j by 8": (MATMUL, MATMUL.replace("%j in 0..16", "%j in 0..16 tile 16 lanes 8")),
    "unroll %k by 4": (MATMUL, MATMUL.replace("%k in 0..4", "%k in 0..4 unroll 4")),
    "pack %w {0/16, 1, 0%16}": (MATMUL, MATMUL.replace("f32[16, 4]", "f32[16, 4]{0/16, 1, 0%16}")),
    "prefetch %w[%j, %k + 2] level 2 reuse 3.. at %k": (
        MATMUL,
        MATMUL.replace("{ yield", "{ prefetch %w[%j, %k + 2] level 2 reuse 3..   yield"),
    ),
    "nontemporal %y if n >= 40": (COPY, COPY.replace("%y[%i, %j]", "%y[%i, %j] nontemporal if n >= 40")),
    "parallel %i": (MATMUL, MATMUL.replace("parallel %j", "for %j")),
    "parallel %i, %j max_chunks n//3": (COPY, COPY.replace("4]) {", "4]) max_chunks n//3 {")),
    "serial": (MATMUL, MATMUL.replace("parallel", "for")),
    "serial parallel %i": (MATMUL, MATMUL.replace("parallel %j", "for %j")),
}


@pytest.mark.parametrize("text", CASES)
def test_what_a_directive_makes(text: str) -> None:
    before, after = CASES[text]
    schedule = parse_schedules(f"schedule @k {{ {text} }}")["k"]
    assert parse_schedules(str(schedule))["k"] == schedule
    check_pass(schedule.steps, before=before, after=after, idempotent=False)


REFUSED = {
    "tile %q by 4": (MATMUL, "there is no loop %q; loops are %i, %j, %k"),
    "tile %ii by 4": (MATMUL, "there is no loop %ii; did you mean i"),
    "tile %i by 0": (MATMUL, "the factor of %i must be positive, but is 0"),
    "split %i by -4 -> %o": (MATMUL, "the factor of %i must be positive, but is -4"),
    "vectorize %j by 12": (MATMUL, "%j has 12 lanes; they must be a power of two"),
    "vectorize %j by 16 vectorize %i by 4": (MATMUL, "both %i and %j have lanes"),
    "vectorize %i by 4": (RUNNING_SUM, "the iterations of %i depend on each other"),
    "tile %i by 4": (RUNNING_SUM, "the iterations of %i depend on each other"),
    "parallel %i": (RUNNING_SUM, "the iterations of %i depend on each other"),
    "parallel %k": (MATMUL, "%k is reduced over, and threads do not share a reduction"),
    "parallel %j ": (SHARED, "statements outside of these loops write to buffers that threads would share"),
    "parallel %j": (MATMUL, "parallel loop inside the serial loop over %i"),
    "split %k by 4 -> %o": (MATMUL, "%k is reduced over: split a loop around the reduction, or unroll it"),
    "split %i by 4 -> %j": (MATMUL, "the name %j is in use"),
    "split %i by 4 -> %o tile %o by 2": (MATMUL, "the bounds of %i depend on %o"),
    "split %i by 4 -> %o reorder %i, %o": (MATMUL, "the bounds of %i depend on %o"),
    "reorder %k, %j": (MATMUL, "%k, %j are not loops of one nest with nothing between them"),
    "reorder %j, %i": (ROWS, "%j, %i are not loops of one nest with nothing between them"),
    "serial reorder %j, %i": (MATMUL, "the order of the steps of %j matters"),
    "collapse %i %j": (ROWS, "the body of %i is not the loop %j alone"),
    "pack %x {1, 0}": (MATMUL, "%x is no constant of the kernel; constants are %w"),
    "pack %w {0/16, 0%16}": (MATMUL, "does not name the 2 dimensions of %w"),
    "prefetch %v[%j, %k] at %k": (MATMUL, "%v is not a buffer in scope"),
    "prefetch %w[%j, %k] at %i": (MATMUL, "%j is not defined here"),
    "nontemporal %x": (MATMUL, "the kernel does not store to %x"),
}


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=REFUSED)
def test_illegal_directives_are_refused_with_the_reason(number: int) -> None:
    text, (kernel, reason) = list(REFUSED.items())[number]
    schedule = parse_schedules(f"schedule @k {{ {text} }}")["k"]
    with pytest.raises(PassError) as error:
        schedule.apply(parse_kernel(kernel), Context())
    assert reason in str(error.value)
    assert f"schedule of @k, `{schedule.steps[-1]}`" in str(error.value)


def test_a_schedule_of_another_kernel_is_refused() -> None:
    schedule = parse_schedules("schedule @other { serial }")["other"]
    with pytest.raises(PassError, match="this is a schedule of @other, not of @k"):
        schedule.apply(parse_kernel(MATMUL), Context())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("schedule @k { tile %i 4 }", "line 1, column 23: expected `by`, found `4`"),
        ("schedule @k {\n  vectorise %i by 4\n}", "called vectorise; did you mean vectorize"),
        ("schedule @k { fuse }", "no pass over kernels called fuse"),
        ("schedule @k { split }", "expected a %name, found `}`"),
        ("schedule @k { } schedule @k { }", "`@k` has two schedules"),
        ("schedule @k { peel{steps=3} }", "peel has no option steps"),
        ("kernel @k", "expected `schedule`, found `kernel`"),
    ],
)
def test_malformed_text(text: str, reason: str) -> None:
    with pytest.raises((ParseError, PassError)) as error:
        parse_schedules(text)
    assert reason in str(error.value)
