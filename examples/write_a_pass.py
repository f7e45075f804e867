"""Write two passes, a rewrite rule and a class, with their tests, and run one in a pipeline."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import compiler
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.tile.kernel import Kernel, Range, Reduce, Stmt, map_ranges
from compiler.passes.base import Context, TilePass, register
from compiler.passes.pattern import Match, MatchFailure, any_value, rewrite
from compiler.testing import check_pass

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
    options = compiler.Options(graph_passes="decompose,canonicalize,form-silu,fuse")
    compiled = compiler.compile(Gate(), (torch.randn(4),), options=options)
    print(compiled.print_ir("fused"))
    for remark in compiled.remarks.select("form-silu"):
        print(remark.kind, remark.pass_, remark.message)


@register
@dataclass(frozen=True)
class SplitSums(TilePass):
    """Add into several accumulators, so that an addition need not wait for the one before.

    reduce add %k in 0..768 { ... }  ->  reduce add %k in 0..768 accumulators 4 { ... }
    """

    name = "split-sums"
    accumulators: int = 4
    min_steps: int = 64

    def run(self, ir: Kernel, context: Context) -> Kernel:
        def rule(r: Range, stmt: Stmt) -> Range:
            if not isinstance(stmt, Reduce) or stmt.body or r is not stmt.ranges[-1] or r.accumulators > 1:
                return r
            if r.tile > 1 or not isinstance(r.extent, int) or r.extent < self.min_steps:
                context.missed(self, f"%{r.var} is tiled, dynamic or short")
                return r
            message = f"{self.accumulators} accumulators for %{stmt.name}"
            return r.with_(accumulators=self.accumulators) if context.may_apply(self, message) else r

        return ir.with_body(map_ranges(ir.body, rule))


def test_split_sums() -> None:
    check_pass(
        "split-sums",
        before="""kernel @sum(in %x: f32[99], out %y: f32[]) {
          %s = reduce add %k in 0..99 { yield %x[%k] }
          store %s, %y[]
        }""",
        after="""kernel @sum(in %x: f32[99], out %y: f32[]) {
          %s = reduce add %k in 0..99 accumulators 4 { yield %x[%k] }
          store %s, %y[]
        }""",
    )


def test_short_sums_stay() -> None:
    short = "kernel @k(in %x: f32[9], out %y: f32[]) { %s = reduce add %k in 0..9 { yield %x[%k] } store %s, %y[] }"
    check_pass("split-sums", unchanged=short, remark="is tiled, dynamic or short")


if __name__ == "__main__":
    main()
