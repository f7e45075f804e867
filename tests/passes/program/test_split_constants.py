"""split-constants: parts of a constant that a kernel reads side by side become constants of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.ir.graph.constant import ConstantData, LazyConstant, part_of
from compiler.ir.types import f32
from compiler.testing.checks import check_pass

ROWS = 20
"""No multiple of the 16 lanes of the tests' machine."""


def weights(rows: range) -> str:
    return f"[{', '.join(f'[{k}, {k % 7}]' for k in rows)}]"


def program(constants: str, arguments: str, params: str, first: str, second: str, rows: int = ROWS) -> str:
    """Return a program of one kernel that multiplies two sums."""
    return f"""program {{ input %x: f32[3, 2]  output %y: f32[3, {rows}]  {constants}
      kernel @gate(in %x: f32[3, 2], {params}, out %y: f32[3, {rows}]) {{
        parallel %i in 0..3 {{ parallel %j in 0..{rows} {{
          %a = reduce add %r in 0..2 {{ yield %x[%i, %r] * {first} }}
          %b = reduce add %s in 0..2 {{ yield %x[%i, %s] * {second} }}
          store %a * %b, %y[%i, %j] }} }} }}
      launch @gate(%x, {arguments}, %y) }}"""


def whole(first: str, second: str, rows: int = ROWS) -> str:
    """Return the program that reads one constant."""
    return program(
        f"constant %w: f32[{2 * ROWS}, 2] {weights(range(2 * ROWS))}",
        "%w",
        f"const %w: f32[{2 * ROWS}, 2]",
        first,
        second,
        rows,
    )


def test_halves_that_gate_each_other() -> None:
    low, high = weights(range(ROWS)), weights(range(ROWS, 2 * ROWS))
    check_pass(
        "split-constants",
        before=whole("%w[%j, %r]", f"%w[%j + {ROWS}, %s]"),
        after=program(
            f"constant %w.0: f32[{ROWS}, 2] {low}  constant %w.{ROWS}: f32[{ROWS}, 2] {high}",
            f"%w.0, %w.{ROWS}",
            f"const %w.0: f32[{ROWS}, 2], const %w.{ROWS}: f32[{ROWS}, 2]",
            "%w.0[%j, %r]",
            f"%w.{ROWS}[%j, %s]",
        ),
        remark=f"%w becomes 2 constants, from 0, {ROWS} on",
    )


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        ("%w[%j, %r]", "%w[%j + 19, %s]", ROWS),  # shares a row
        ("%w[%j, %r]", "%w[%j + 20, %s]", 8),  # shorter than a vector
        ("%w[%j, %r]", "%w[%j * 2, %s]", ROWS),  # every second row
        ("%w[%r, 0]", "%w[%s + 20, 0]", ROWS),  # along the sum
    ],
)
def test_other_constants_stay_whole(first: str, second: str, rows: int) -> None:
    check_pass("split-constants", unchanged=whole(first, second, rows))


def test_a_constant_of_two_kernels_stays_whole() -> None:
    text = whole("%w[%j, %r]", f"%w[%j + {ROWS}, %s]")
    launch = text[text.index("launch") : text.rindex("}")]
    again = launch.replace("%y", "%z")
    check_pass(
        "split-constants",
        unchanged=text.replace("output %y", f"output %z: f32[3, {ROWS}]  output %y").replace(launch, launch + again),
    )


def test_a_constant_that_is_returned_stays_whole() -> None:
    text = whole("%w[%j, %r]", f"%w[%j + {ROWS}, %s]")
    text = text.replace("output %y", f"output %copy: f32[{2 * ROWS}, 2]  output %y").replace(
        "launch", "copy %w -> %copy  launch"
    )
    check_pass("split-constants", unchanged=text)


class Gated(nn.Module):
    """Halves of a linear layer with a bias, one of which gates the other."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.both = nn.Linear(8, columns)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, -1)
        return value * torch.sigmoid(gate)


@pytest.mark.parametrize("columns", [206, 832])  # halves that end inside a vector, and inside a tile
def test_numbers(columns: int) -> None:
    """On any CPU; which constants are split depends on the vectors of the target."""
    model, x = Gated(columns).eval(), torch.randn(5, 8)
    torch.testing.assert_close(compiler.compile(model, (x,))(x), model(x))
    for_avx512 = compiler.compile(model, (x,), options={"target": "x86-64-v4"})
    assert for_avx512.print_ir("scheduled").count("const %x") == 4


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_computed_constants(dim: int) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    lazy = LazyConstant(f32, (4, 6), lambda start, stop: values[:, start:stop])
    expected = values[1:3] if dim == 0 else values[:, 1:3]
    for data in (lazy, ConstantData(f32, values)):
        part = part_of(data, dim, 1, 3)
        assert isinstance(part, ConstantData)
        assert part.shape == expected.shape
        assert (part.array == expected).all()
