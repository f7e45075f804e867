"""The tables of docs/number-formats.md are what the compiler does; `pytest --bless` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiler.codegen.backend import targets
from compiler.errors import TilewrightError, UnsupportedOpError
from compiler.frontend.conversions.table import conversions
from compiler.frontend.export import import_module
from compiler.ir.graph.graph import Graph
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES, DType
from compiler.options import Options
from compiler.pipeline import lower_and_schedule
from compiler.target import Target
from compiler.testing import checks
from tests.frontend.frontend_kit import FunctionModule

PAGE = Path(__file__).parent.parent / "docs" / "number-formats.md"

NATIVE, EMULATED, IN_PYTORCH = "native", "emulated", "PyTorch"

ARITHMETIC = "`x * y`"
OPERATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    ARITHMETIC: lambda x: x * x,
    "`x @ w`": lambda x: x @ x,
    "`_int_mm(x, w)`": lambda x: torch._int_mm(x, x),
}
"""Operations by their text in the table; each takes a square matrix."""

OPERATORS = (
    "quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.quantize_per_channel.default", "quantized_decomposed.dequantize_per_channel.default",
    "quantized_decomposed.choose_qparams.tensor", "quantized_decomposed.quantize_per_token.default",
    "quantized_decomposed.dequantize_per_token.default", "torchao.choose_qparams_affine.default",
    "torchao.quantize_affine.default", "torchao.dequantize_affine.default", "aten._int_mm.default",
    "aten._weight_int8pack_mm.default", "aten._weight_int4pack_mm_for_cpu.default", "aten._scaled_mm.default",
    "aten.quantize_per_tensor.default",
)  # fmt: skip
"""Operators of quantized models."""

Cells = tuple[str, ...]


def imported(function: Callable[[Tensor], Tensor], matrix: Tensor) -> Graph | str:
    """Return the graph of a function, or why there is none; "" if PyTorch has no such operator."""
    try:
        function(matrix)
    except RuntimeError:
        return ""
    try:
        return import_module(FunctionModule(function), (matrix,), fallback="strict").graph
    except UnsupportedOpError as error:
        reason = error.unsupported_ops[0].reason
        return IN_PYTORCH if reason.startswith("runs in PyTorch") else f"refused: {reason}"


def format_cell(operation: str, dtype: DType, graph: Graph | str, target: Target) -> str:
    """Say how code for a target carries out an operation, whose kernels must compile."""
    if isinstance(graph, str):
        return graph
    try:
        lower_and_schedule(graph, Options(target=target.name))
    except TilewrightError as error:
        return f"refused: {str(error).splitlines()[0]}"
    (result,) = graph.outputs
    is_wider = result.dtype != dtype or dtype.compute != dtype
    if not is_wider and dtype.name in target.native_dtypes:
        return NATIVE
    operands = {shape.operand for shape in target.matrix_shapes} if operation != ARITHMETIC else ()
    return NATIVE if dtype.name in operands else EMULATED


def operation_cells(dtype: DType) -> tuple[tuple[str, Cells], ...]:
    """Return each operation that PyTorch has for a format, with its cells, one for each target."""
    matrix = torch.zeros(32, 32 * dtype.bytes, dtype=torch.uint8).view(to_torch(dtype))
    graphs = {name: imported(f, matrix) for name, f in OPERATIONS.items()}
    return tuple(
        (name, tuple(format_cell(name, dtype, g, t) for t in targets().values())) for name, g in graphs.items() if g
    )


def format_table() -> str:
    """Return the table of formats; formats, operations and targets that do not differ share rows and columns."""
    names: dict[tuple[tuple[str, Cells], ...], list[str]] = {}
    for dtype in DTYPES.values():
        names.setdefault(operation_cells(dtype), []).append(dtype.name)
    rows = [
        (", ".join(formats), ", ".join(operation for operation, _ in group), cells)
        for operations, formats in names.items()
        for cells, group in groupby(operations, key=lambda pair: pair[1])
    ]
    columns: dict[Cells, list[str]] = {}
    for k, name in enumerate(targets()):
        columns.setdefault(tuple(cells[k] for _, _, cells in rows), []).append(name)
    body = [[formats, operation, *column] for (formats, operation, _), column in zip(rows, zip(*columns))]
    return markdown(["format", "operation", *map(", ".join, columns.values())], body)


def operator_table() -> str:
    """Return the table of operators of quantized models."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name in OPERATORS:
        names[name in conversions()].append(f"`{name}`")
    rows = [
        [label, ", ".join(names[known])] for known, label in ((True, "converted"), (False, "refused: no conversion"))
    ]
    return markdown(["in a compiled program", "operators"], rows)


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch has some formats as a trial
@pytest.mark.parametrize("make", [format_table, operator_table])
def test_the_page_says_what_the_compiler_does(make: Callable[[], str]) -> None:
    table, page = make(), PAGE.read_text(encoding="utf-8")
    head = re.escape(table.split(" |")[0])
    (old,) = re.findall(rf"^{head} \|.*?(?=\n\n|\n?\Z)", page, re.M | re.S)
    if checks.BLESS:
        PAGE.write_text(page.replace(old, table), encoding="utf-8")
    else:
        assert old == table, f"{PAGE.name} says something else; to accept the new table: pytest --bless"


def test_a_matrix_instruction_makes_products_native() -> None:
    i8, bf16 = DTYPES["i8"], DTYPES["bf16"]
    matrix = torch.zeros(32, 32, dtype=torch.int8)
    integer, product = (
        imported(OPERATIONS[n], m) for n, m in (("`_int_mm(x, w)`", matrix), ("`x @ w`", matrix.bfloat16()))
    )
    for target, want in (("x86-64-v4", EMULATED), ("sm90", NATIVE)):
        assert format_cell("`_int_mm(x, w)`", i8, integer, targets()[target]) == want
        assert format_cell("`x @ w`", bf16, product, targets()[target]) == want
        assert format_cell(ARITHMETIC, bf16, product, targets()[target]) == EMULATED
