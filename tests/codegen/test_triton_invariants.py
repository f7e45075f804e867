"""Loads of Triton source that leave the loops that they do not vary in."""

from __future__ import annotations

from collections.abc import Collection

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.invariants import hoist_loads
from compiler.ir.text.tile_parser import parse_kernel


def hoisted(body: list[str], written: Collection[str] = ()) -> list[str]:
    """The lines around a loop over `r`, after its loads have left it."""
    lines = [("    for r in range(0, 4):", 0), *((f"        {line}", 0) for line in body)]
    return [text.removeprefix("    ") for text, _ in hoist_loads(lines, 0, set(written))]


def test_a_load_takes_its_index_along() -> None:
    assert hoisted(["q = i*16 + tl.arange(0, 16)", "x = tl.load(a + q)", "y = tl.load(a + q + r)"]) == [
        "q = i*16 + tl.arange(0, 16)",
        "x = tl.load(a + q)",
        "for r in range(0, 4):",
        "    y = tl.load(a + q + r)",
    ]


def test_descriptors_are_loaded_before_the_loop() -> None:
    assert hoisted(["x = a_boxes.load([i, 0]).reshape(16, 16)"])[0] == "x = a_boxes.load([i, 0]).reshape(16, 16)"


def test_what_varies_stays() -> None:
    for body in (
        ["k = r*2", "x = tl.load(a + k)"],  # by its index
        ["x = tl.load(a + i)", "x = x + 1"],  # assigned again
        ["v = tl.dot(p, q)", "x = tl.load(a + v)"],  # by a value that is computed in the loop
        ["if r > 0:", "    x = tl.load(a + i)"],  # under a condition
        ["i = i + 1"],  # no load
    ):
        assert hoisted(body) == ["for r in range(0, 4):", *(f"    {line}" for line in body)]


def test_parameters_that_are_stored_to_stay() -> None:
    body = ["x = tl.load(a + i)", "tl.store(a + i, x)"]
    assert hoisted(body, {"a"}) == ["for r in range(0, 4):", *(f"    {line}" for line in body)]


def test_a_bias_is_loaded_once() -> None:
    source = emit_triton(
        parse_kernel("""kernel @k(in %x: f32[8, 64], in %b: f32[64], out %y: f32[8, 64]) {
          for %i in 0..8 { for %j in 0..64 tile 64 { store %x[%i, %j] + %b[%j], %y[%i, %j] } } }""")
    )
    lines = [line.strip() for line in source.splitlines()]
    assert lines.index("b_block = tl.load(b + j)") < lines.index("for i in range(0, 8):")
