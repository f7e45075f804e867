"""The tables of docs/number-formats.md are what the compiler does; `pytest --bless` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiler.codegen.backend import targets
from compiler.codegen.llvm.targets import CPU_TARGETS, DOT_INSTRUCTIONS, CPUTarget, cpu_target
from compiler.cost.machine import AVX512
from compiler.errors import TilewrightError, UnsupportedOpError
from compiler.frontend.conversions.table import conversions
from compiler.frontend.export import import_module
from compiler.ir.graph.graph import Graph
from compiler.ir.text.tile_printer import print_program
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, walk
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES, DType
from compiler.options import Options
from compiler.pipeline import lower_and_schedule
from compiler.target import Target
from compiler.testing import checks
from tests.frontend.frontend_kit import FunctionModule

PAGE = Path(__file__).parent.parent / "docs" / "number-formats.md"

NATIVE, WIDENED, EMULATED, IN_PYTORCH = "native", "widened", "emulated", "PyTorch"


@dataclass(frozen=True)
class Operation:
    """An operation as the table shows it, on matrices `x` of the format and `w` of the format or of `other`.

    `dtypes` has it, () stands for all.  Matrix instructions carry it out if `is_product`.
    """

    text: str
    function: Callable[[Tensor, Tensor], Tensor]
    is_product: bool = True
    dtypes: tuple[str, ...] = ()
    other: str = ""


OPERATIONS = (
    Operation("`x * w`", lambda x, w: x * w, is_product=False),
    Operation("`x @ w.T`", lambda x, w: x @ w.T),
    Operation("`x.int() @ w.int().T`, `w` of i8", lambda x, w: x.int() @ w.int().T, dtypes=("i8", "u8"), other="i8"),
)

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


@pytest.fixture(autouse=True)
def dot_target(monkeypatch: pytest.MonkeyPatch) -> CPUTarget:
    """A CPU with every dot instruction of x86, beside the targets that there are."""
    features = list(dict.fromkeys(f for d in DOT_INSTRUCTIONS for f in d.features if f in ("avx512bf16", "avx512vnni")))
    base, name = CPU_TARGETS["x86-64-v4"], f"x86-64-v4 with {', '.join(features)}"
    wide = ",".join([base.features, *(f"+{f}" for f in features)])
    target = cpu_target(name, base.triple, base.cpu, wide, base.vector_bits, base.vector_registers, AVX512)
    monkeypatch.setitem(CPU_TARGETS, name, target)
    return target


def zeros(dtype: DType) -> Tensor:
    return torch.zeros(32, 32 * dtype.bytes, dtype=torch.uint8).view(to_torch(dtype))


def imported(operation: Operation, dtype: DType) -> Graph | str:
    """Return the graph of an operation, or why there is none; "" if PyTorch has no such operator."""
    args = zeros(dtype), zeros(DTYPES[operation.other] if operation.other else dtype)
    try:
        operation.function(*args)
    except RuntimeError:
        return ""
    if dtype.is_opaque:
        return IN_PYTORCH
    try:
        return import_module(FunctionModule(operation.function), args, fallback="strict").graph
    except UnsupportedOpError as error:
        return f"refused: {error.unsupported_ops[0].reason}"


def format_cell(operation: Operation, dtype: DType, graph: Graph | str, target: Target) -> str:
    """Say how code for a target carries out an operation, whose kernels must compile."""
    if isinstance(graph, str):
        return graph
    try:
        program = lower_and_schedule(graph, Options(target=target.name)).scheduled
    except TilewrightError as error:
        return f"refused: {str(error).splitlines()[0]}"
    (result,) = graph.outputs
    if result.dtype == dtype == dtype.compute and dtype.name in target.native_dtypes:
        return NATIVE
    pairs = {(s.lhs, s.rhs) for s in target.matrix_shapes} if operation.is_product else ()
    if (dtype.name, operation.other or dtype.name) in pairs:
        return NATIVE
    multiplied = [d for k in program.kernels.values() for d in packed_operands(k)]
    return EMULATED if not multiplied else NATIVE if dtype.bits == max(d.bits for d in multiplied) else WIDENED


def packed_operands(kernel: Kernel) -> Iterator[DType]:
    """Yield the dtypes of the values that dot products multiply."""
    contractions = (contraction_of(s) for s in walk(kernel.body))
    dtypes = (e.dtype for c in contractions if c for e in (c.lhs, c.rhs))
    return (d.element for d in dtypes if d.element)


def operation_cells(dtype: DType) -> tuple[tuple[str, Cells], ...]:
    """Return each operation that PyTorch has for a format, with its cells, one for each target."""
    wanted = [o for o in OPERATIONS if not o.dtypes or dtype.name in o.dtypes]
    graphs = [(o, g) for o in wanted if (g := imported(o, dtype))]
    return tuple((o.text, tuple(format_cell(o, dtype, g, t) for t in targets().values())) for o, g in graphs)


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


def test_a_dot_instruction_makes_products_native(dot_target: CPUTarget) -> None:
    for operation, name, without in ((OPERATIONS[1], "bf16", EMULATED), (OPERATIONS[2], "u8", WIDENED)):
        graph = imported(operation, DTYPES[name])
        assert isinstance(graph, Graph)
        assert format_cell(operation, DTYPES[name], graph, dot_target) == NATIVE
        assert format_cell(operation, DTYPES[name], graph, targets()["x86-64-v4"]) == without
        assert "dot<" in print_program(lower_and_schedule(graph, Options(target=dot_target.name)).scheduled)
