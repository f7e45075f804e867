"""online-softmax: scores with a constant factor are scaled and shifted in one step, in powers of two."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass

PASS = "online-softmax{max-untiled-length=4, column-block=4, row-block=4}"


def scaled(n: int) -> str:
    """Three rows of n scores with the factor 1/8, some of them masked."""
    return f"""
        kernel @k(in %s: f32[3, {n}], in %v: f32[{n}, 3], out %y: f32[3, 3]) {{
          parallel %i in 0..3 {{
            local %e: f32[{n}]  local %c: f32[{n}]
            %m = reduce max %r in 0..{n} {{
              %x = where(index(%i) <= index(%r) + 1, %s[%i, %r] * 0.125, -inf) store %x, %c[%r] yield %x
            }}
            %t = reduce add %r in 0..{n} {{ %p = exp(%c[%r] - %m) store %p, %e[%r] yield %p }}
            for %j in 0..3 {{
              %a = reduce add %r in 0..{n} {{ yield %e[%r] * %v[%r, %j] }}
              store %a / %t, %y[%i, %j]
            }}
          }}
        }}"""


def test_scaled_scores_are_shifted_in_base_2() -> None:
    """One multiply-add and a power of two for each score; the maximum is scaled once for each row."""
    check_pass(
        PASS,
        before=scaled(8),
        after="""kernel @k(in %s: f32[3, 8], in %v: f32[8, 3], out %y: f32[3, 3]) {
  local %max: f32[3]
  local %t.sum: f32[3]
  local %a.sum: f32[3, 3]
  for %init in 0..3 {
    store -inf, %max[%init]
    store 0.0, %t.sum[%init]
  }
  for %init_1 in 0..3 {
    for %j in 0..3 {
      store 0.0, %a.sum[%init_1, %j]
    }
  }
  for %r.block in 0..2 {
    for %i in 0..3 {
      local %e: f32[4]
      local %c: f32[4]
      %m = reduce max %r in %r.block*4..%r.block*4 + 4 {
        %x = where(index(%i) <= index(%r) + 1, %s[%i, %r], -inf)
        store %x, %c[%r - %r.block*4]
        yield %x
      }
      %old = %max[%i]
      %new = max(%old, %m * 0.1803368777036667)
      %weight = where(%old == %new, 1.0, exp2_ftz(%old - %new))
      %shift = where(%new == -inf, 0.0, %new)
      %t = reduce add %r_1 in %r.block*4..%r.block*4 + 4 {
        %p = exp2(fma(%c[-%r.block*4 + %r_1], 0.1803368777036667, -%shift))
        store %p, %e[-%r.block*4 + %r_1]
        yield %p
      }
      store fma(%t.sum[%i], %weight, %t), %t.sum[%i]
      for %j_1 in 0..3 {
        %a = reduce add %r_2 in %r.block*4..%r.block*4 + 4 { yield %e[-%r.block*4 + %r_2] * %v[%r_2, %j_1] }
        store fma(%a.sum[%i, %j_1], %weight, %a), %a.sum[%i, %j_1]
      }
      store %new, %max[%i]
    }
  }
  for %i_1 in 0..3 {
    %t_1 = %t.sum[%i_1]
    for %j_2 in 0..3 {
      %a_1 = %a.sum[%i_1, %j_2]
      store %a_1 / %t_1, %y[%i_1, %j_2]
    }
  }
}""",
    )


@pytest.mark.parametrize(
    ("change", "in_base_2"),
    [
        (("", ""), True),
        (("* 0.125", "* 0.7"), False),  # times 1 / ln 2 it might overflow
        (("* 0.125", "* -0.125"), False),  # the largest product is not that of the largest factor
        (("* 0.125", "+ 0.125"), False),
        (("yield %x", "yield %x + 0.0 * %x"), False),
        (("store %x, %c[%r]", "%z = %x + 1.0 store %z, %c[%r]"), False),
        (("store %x, %c[%r]", "%z = %s[%i, %r] + 1.0 store %z, %c[%r]"), True),  # others than those of the maximum
        (("store %a / %t", "store %a / %t + %m"), True),
    ],
)
def test_only_small_constant_factors_of_scores_are_taken_out(change: tuple[str, str], in_base_2: bool) -> None:
    source = scaled(10).replace(*change)
    changed = run_pipeline(parse_kernel(source), PASS, Context())
    assert ("exp2(fma" in print_kernel(changed)) is in_base_2
    check_equivalent(parse_kernel(source), changed, exact=False)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_powers_of_two_are_as_exact_as_exponentials(offset: float) -> None:
    """The maximum's rounding error cancels, however large it is."""
    torch.manual_seed(0)

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    args = q, k, _ = torch.randn(2, 40, 16), torch.randn(2, 900, 16) * 3, torch.randn(2, 900, 16)
    q[..., 0], k[..., 0] = 16.0, offset / 4
    compiled = compiler.compile(Attention(), args)
    assert "0.360673" in compiled.print_ir("scheduled")  # 0.25 / ln 2
    exact = Attention()(*(a.double() for a in args))
    ours, eager = (f(*args) - exact for f in (compiled, Attention()))
    assert ours.abs().max() < max(1e-6, 2 * eager.abs().max())
