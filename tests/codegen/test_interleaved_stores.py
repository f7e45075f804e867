"""Short rows close together: a vector is stored for several, and what lies between them keeps its values."""

from __future__ import annotations

import pytest
from native import check_kernel

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.cost.shuffles import is_interleaved, is_spread
from compiler.ir.text.tile_parser import parse_kernel


def kernel(columns: int, stride: int, rows: int, lanes: int, dtype: str) -> str:
    """Store `columns` of `stride` columns, over a result that is filled with ones."""
    return f"""kernel @k(in %x: {dtype}[{columns}, {rows}], out %y: {dtype}[{rows}, {stride}]) {{
      for %i in 0..{rows} {{ for %j in 0..{stride} {{ store 1, %y[%i, %j] }} }}
      for %c in 0..{columns} tile {columns} {{
        for %i in 0..{rows} tile {lanes} lanes {lanes} {{ store %x[%c, %i], %y[%i, %c] }}
      }}
    }}""".replace("store 1,", "store 1.0," if dtype.startswith(("f", "bf")) else "store 1,")


@pytest.mark.parametrize("dtype", ["f32", "u8", "bf16"])
@pytest.mark.parametrize(("columns", "stride"), [(3, 4), (2, 2), (2, 3), (3, 3), (5, 8), (4, 5), (1, 2), (1, 5)])
@pytest.mark.parametrize("rows", [16, 21])
def test_columns_of_longer_rows(columns: int, stride: int, rows: int, dtype: str, target: str) -> None:
    check_kernel(kernel(columns, stride, rows, 16, dtype), target)


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("stride", [2, 3, 4, 7, 12])
def test_rows_close_together_need_no_scatter(columns: int, stride: int) -> None:
    """As the passes count on."""
    if columns <= stride:
        text = emit_kernel(parse_kernel(kernel(columns, stride, 32, 16, "u8")), target_by_name("x86-64-v4"))
        transposed = is_interleaved(columns, stride, 16) or columns >= 4 or is_spread(stride, 16)
        assert ("scatter" not in text) == transposed
        assert is_interleaved(columns, stride, 16) == (stride < 2 * columns and stride <= 8)
