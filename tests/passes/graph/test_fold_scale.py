"""scale-weights: factors behind a product with weights."""

from __future__ import annotations

import pytest
import torch

import compiler
from compiler.testing.checks import check_pass

HEAD = """graph(%x: f32[2, 2], %z: f32[2, 3]) {
  %w = constant f32[2, 3] [[1, 2, 3], [4, 5, 6]]
  %s = constant f32[3] [7, 8, 9]
  %c = constant f32[3] [1, 0, 1]"""


def test_a_factor_for_every_column() -> None:
    check_pass(
        "fold-scale",
        before=f"{HEAD} %p = matmul %x, %w  %y = mul %p, %s  return %y }}",
        after=f"{HEAD} %t = reshape %s {{shape=[1, 3]}}  %v = mul %w, %t  %y = matmul %x, %v  return %y }}",
        remark="factor folded into weights",
    )


def test_a_bias_between() -> None:
    check_pass(
        "fold-scale",
        before=f"{HEAD} %p = matmul %x, %w  %b = add %p, %c  %y = mul %b, %s  return %y }}",
        after=f"""{HEAD}
          %t = reshape %s {{shape=[1, 3]}}  %v = mul %w, %t  %p = matmul %x, %v
          %d = mul %c, %s  %y = add %p, %d
          return %y }}""",
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_with_groups(groups: int) -> None:
    conv = f"conv %x, %w {{stride=[1], dilation=[1], groups={groups}}}"
    weights = "[[[1], [2]], [[3], [4]]]" if groups == 1 else "[[[1]], [[3]]]"
    head = f"""graph(%x: f32[1, 2, 4]) {{
      %w = constant f32[2, {2 // groups}, 1] {weights}
      %s = constant f32[2, 1] [[5], [6]]"""
    check_pass(
        "fold-scale",
        before=f"{head} %p = {conv}  %y = mul %p, %s  return %y }}",
        after=f"""{head} %t = reshape %s {{shape=[2, 1, 1]}}  %v = mul %w, %t
          %y = {conv.replace("%w", "%v")}  return %y }}""",
    )


@pytest.mark.parametrize(
    "body",
    [
        "%p = matmul %x, %w  %y = mul %p, %s  return %y, %p }",
        "%p = matmul %x, %w  %y = mul %p, %z  return %y }",
        "%p = matmul %x, %w  %t = constant f32[2, 1] [[1], [2]]  %y = mul %p, %t  return %y }",
        "%p = matmul %x, %w  %b = add %p, %z  %y = mul %b, %s  return %y }",
        "%p = matmul %x, %z  %y = mul %p, %s  return %y }",
        "%p = matmul %x, %w  %t = constant f32[3] [1, inf, 1]  %y = mul %p, %t  return %y }",
        "%p = matmul %x, %w  %t = constant f32[3] [1, 0, 1e-30]  %y = mul %p, %t  return %y }",
    ],
    ids=[
        "read twice", "no constant", "along the rows", "a bias that is no constant", "weights that are no constant", "infinite", "tiny",
    ],
)  # fmt: skip
def test_what_stays(body: str) -> None:
    check_pass("fold-scale", unchanged=f"{HEAD} {body}")


def test_batch_norm_behind_a_convolution_leaves_one_addition() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(6)
    norm.running_mean, norm.running_var = torch.randn(6), torch.rand(6) + 0.5
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), norm).eval()
    x = torch.randn(1, 3, 8, 8)
    compiled = compiler.compile(module, (x,))
    assert "mul %" not in compiled.print_ir("fused")
    with torch.no_grad():
        exact = module.double()(x.double())
    assert (compiled(x) - exact).abs().max() < 1e-5
