"""Fusion of attention: both products and the softmax between them."""

from __future__ import annotations

from tests.passes.graph.test_fuse import kernels


def test_attention_is_one_kernel() -> None:
    text = """graph(%q: f32[2, 64, 16], %k: f32[2, 64, 16], %v: f32[2, 64, 16]) {
      %y = attention %q, %k, %v {scale=0.25}  return %y }"""
    assert len(kernels(text, "decompose,fuse")) == 1


def test_attention_stays_one_kernel_before_a_reduction_of_its_results() -> None:
    """The last product alone would fit the reduction, but then the weights of each row are written and read again."""
    text = """graph(%q: f32[8, 320, 64], %k: f32[8, 656, 64], %v: f32[8, 656, 64]) {
      %a = attention %q, %k, %v {scale=0.25}  %y = amax %a {dims=[0]}  return %y }"""
    rows, last = kernels(text, "decompose,fuse")
    assert rows.count("matmul") == 2
    assert last == ["amax"]
