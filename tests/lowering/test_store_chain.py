"""The loops of a kernel's root behind views and elementwise ops."""

from __future__ import annotations

import numpy as np

from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Reduce
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.lowering.kernel import lower_kernel

NORMALIZED = """graph(%x: f32[2, 3, 4], %w: f32[4, 5], %b: f32[2, 15]) {
  %m = matmul %x, %w  %q = mul %m, %m  %s = sum %q {dims=[2], keepdim=true}  %n = div %m, %s
  %f = reshape %n {shape=[2, 15]}
  REST
}"""


def loops(text: str) -> list[str]:
    return [str(f.range.hi) for f in perfect_nest(lower_kernel(parse_graph(text), "k").body)]


def test_rows_behind_a_flattening_view_are_reduced_once() -> None:
    """A scale and a bias of the flat result do not hide the rows."""
    text = NORMALIZED.replace("REST", "%t = add %f, %b  %y = tanh %t  return %y")
    graph = parse_graph(text)
    kernel = lower_kernel(graph, "k")
    assert [str(f.range.hi) for f in perfect_nest(kernel.body)] == ["2", "3"]
    (rows,) = (f.body for f in perfect_nest(kernel.body)[-1:])
    assert sum(isinstance(s, Reduce) for s in rows) == 1
    assert "%out0[%i0, %i1*5 + %i2]" in print_kernel(kernel)
    rng = np.random.default_rng(0)
    args = [rng.random(n.shape, np.float32) for n in graph.inputs]
    y = np.zeros(graph.outputs[0].shape, np.float32)
    run_kernel(kernel, {**dict(zip("xwb", args, strict=True)), "out0": y})
    np.testing.assert_allclose(y, interpret(graph, args)[0], rtol=1e-6)


def test_loops_of_the_root_stay() -> None:
    """Without rows that are reduced, with a second use, or with a crop, the kernel runs the loops of its root."""
    plain = "graph(%x: f32[2, 3, 5]) { %e = exp %x  %f = reshape %e {shape=[2, 15]}  %y = tanh %f  return %y }"
    assert loops(plain) == ["2", "15"]
    assert loops(NORMALIZED.replace("REST", "%t = tanh %f  %y = add %t, %f  return %y")) == ["2", "15"]
    crop = "%t = tanh %f  %c = slice %t {dim=1, start=0, size=7, step=1}  %y = exp %c  return %y"
    assert loops(NORMALIZED.replace("REST", crop)) == ["2", "7"]


def test_results_behind_a_flip_are_stored_forwards() -> None:
    """The loops run backwards through the values instead; a sum keeps reading its operands forwards."""
    flipped = "graph(%x: f32[3, 5]) { %e = exp %x  %f = flip %e {dims=[1]}  %y = permute %f {dims=[1, 0]}  return %y }"
    text = print_kernel(lower_kernel(parse_graph(flipped), "k"))
    assert "store exp(%x[%i0, -%i1 + 4]), %out0[%i1, %i0]" in text
    summed = "graph(%x: f32[3, 5]) { %s = sum %x {dims=[1]}  %y = flip %s {dims=[0]}  return %y }"
    text = print_kernel(lower_kernel(parse_graph(summed), "k"))
    assert "yield %x[%i0, %r0]" in text
    assert "%out0[-%i0 + 2]" in text
