"""Declare a new op: it is then imported, fused, vectorised and checked like the built-in ones."""

import torch
from torch import Tensor, nn

import compiler
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.scalar import Expr, maximum, minimum
from compiler.testing.checks import check


@torch.library.custom_op("example::smoothstep", mutates_args=())
def smoothstep(x: Tensor, edge0: float, edge1: float) -> Tensor:
    """Return 0 up to `edge0`, 1 from `edge1` on, and a cubic polynomial in between."""
    t = ((x - edge0) / (edge1 - edge0)).clamp(0, 1)
    return t * t * (3 - 2 * t)


@smoothstep.register_fake
def _(x: Tensor, edge0: float, edge1: float) -> Tensor:
    return torch.empty_like(x)


def smoothstep_of_one_element(x: Expr, edge0: float, edge1: float) -> Expr:
    t = minimum(maximum((x - edge0) / (edge1 - edge0), 0), 1)
    return t * t * (3 - 2 * t)


declare_op(
    "smoothstep",
    "x: float",
    Elementwise(smoothstep_of_one_element),
    attrs={"edge0": 0.0, "edge1": 1.0},
    aten="example.smoothstep.default",
    reference=smoothstep,
    samples=[
        sample_input("f32[4, 5]", edge0=-2.0, edge1=2.0),
        sample_input("f32[0, 3]"),
        sample_input("f64[7]"),
        sample_input("bf16[3]"),
    ],
)


class Fade(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return smoothstep(x * 0.5 + 0.25, 0.0, 1.0) * x


def main() -> None:
    x = torch.linspace(-3, 3, 1000)
    print(check(Fade(), (x,)))
    compiled = compiler.compile(Fade(), (x,), options=compiler.Options(target="x86-64-v3"))
    print(compiled.print_ir("lowered"))


if __name__ == "__main__":
    main()
