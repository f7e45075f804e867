"""Values that join a kernel with the one that alone uses them."""

from __future__ import annotations

from itertools import pairwise

from compiler.cost.machine import AVX512
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.graph.fuse import Fuse
from compiler.passes.manager import run_pipeline


def test_a_chain_is_lowered_as_often_as_a_link() -> None:
    """Whether it joins is asked once: the first value alone, the others together, and all."""
    chain = " ".join(f"%{y}: f32[64, 64] = exp %{x}" for x, y in pairwise("xabcdef"))
    context = Context(AVX512)
    run_pipeline(parse_graph(f"graph(%x: f32[64, 64]) {{ {chain} return %f }}"), (Fuse(),), context)
    assert len(context.lowered_kernels) == 3


def test_views_between_elementwise_ops_join_with_them() -> None:
    text = """
    graph @g(%x: f32[64, 64]) {
      %a: f32[64, 64] = exp %x
      %b: f32[64, 64] = permute %a {dims=[1, 0]}
      %c: f32[4096] = reshape %b {shape=[4096]}
      %d: f32[4096] = tanh %c
      %e: f32[64, 64] = reshape %d {shape=[64, 64]}
      %y: f32[64, 64] = abs %e
      return %y
    }
    """
    context = Context(AVX512)
    fused = run_pipeline(parse_graph(text), (Fuse(),), context)
    assert [n.op.name for n in fused.nodes if n.operands] == ["fused"]
    assert len(context.lowered_kernels) == 3
