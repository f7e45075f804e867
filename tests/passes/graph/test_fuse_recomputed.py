"""Fusion of values that several kernels compute again."""

from __future__ import annotations

from compiler.testing.checks import check_pass


def test_a_producer_of_a_recomputed_value_is_there_for_all_kernels() -> None:
    """Only the kernel of %y uses %z, but not only it uses %v: that of %s computes %w as well."""
    check_pass(
        "fuse",
        before="""graph(%x: f32[64, 512]) {
          %v = exp %x  %z = neg %v  %w = relu %v
          %y = mul %z, %w  %s = sum %w {dims=[1]}
          return %y, %s }""",
        after="""graph(%x: f32[64, 512]) {
          %k = fused %x {body=graph @mul(%x0: f32[64, 512]) {
            %v = exp %x0  %z = neg %v  %w = relu %v  %y = mul %z, %w  return %y, %v }}
          %y = tuple_get %k {index=0}
          %v = tuple_get %k {index=1}
          %s = fused %v {body=graph @sum(%x0: f32[64, 512]) { %w = relu %x0  %s = sum %w {dims=[1]}  return %s }}
          return %y, %s }""",
    )
