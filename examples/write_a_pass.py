"""Write a graph pass: rewrite x * sigmoid(x), with its tests and in a pipeline."""

import torch
from torch import Tensor, nn

import compiler
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.passes.pattern import Match, MatchFailure, any_value, rewrite
from compiler.testing.checks import check_pass

x = any_value("x", dtype="float")


@rewrite(ops.mul(x, ops.sigmoid(x)))
def form_silu(m: Match) -> Node | MatchFailure:
    """x * sigmoid(x) -> silu(x)"""
    if m.use_count(ops.sigmoid(x)) > 1:
        return m.fail("sigmoid has other uses")
    return ops.silu(m[x])


def test_form_silu() -> None:
    check_pass(
        "form-silu",
        before="graph(%x: f32[4]) { %s = sigmoid %x   %y = mul %s, %x   return %y }",
        after="graph(%x: f32[4]) { %y = silu %x   return %y }",
    )


def test_refuses_a_shared_sigmoid() -> None:
    shared = "graph(%x: f32[4]) { %s = sigmoid %x   %y = mul %x, %s   return %y, %s }"
    check_pass("form-silu", unchanged=shared, remark="sigmoid has other uses")


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * x + 1


def main() -> None:
    test_form_silu()
    test_refuses_a_shared_sigmoid()
    options = compiler.Options(graph_passes="decompose,canonicalize,form-silu,fuse")
    compiled = compiler.compile(Gate(), (torch.randn(4),), options=options)
    print(compiled.print_ir("fused"))
    for remark in compiled.remarks.select("form-silu"):
        print(remark.kind, remark.pass_, remark.message)


if __name__ == "__main__":
    main()
