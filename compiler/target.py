"""Targets: what passes, code generation and the driver know of the machine that code is made for.

A target is a value.  A backend (compiler.codegen.backend) declares its targets, and says how to print and load code for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.cost.machine import Machine
from compiler.ir.tile.kernel import Kernel
from compiler.ir.types import DTYPES, DType


@dataclass(frozen=True)
class MemorySpace:
    """A memory that buffers can lie in.

    `capacity` counts the bytes of each `owner` ("thread", "block" or "device"); None has no limit that a compiler needs to know.
    """

    name: str
    capacity: int | None
    owner: str


@dataclass(frozen=True)
class MatrixShape:
    """A matrix multiply-accumulate that the target has an instruction for: (m, k) times (k, n).

    Elements of dtypes `lhs` and `rhs` are multiplied and added to elements of dtype `accumulator`, each by its name.
    """

    m: int
    n: int
    k: int
    lhs: str
    rhs: str
    accumulator: str


def find_matrix_shape(shapes: Iterable[MatrixShape], lhs: str, rhs: str, accumulator: str) -> MatrixShape | None:
    """Return the first of `shapes` that multiplies these dtypes, by name and in this order, and adds in the third; None without one."""
    return next((s for s in shapes if (s.lhs, s.rhs, s.accumulator) == (lhs, rhs, accumulator)), None)


def is_or_widens(multiplied: DType, stored: DType) -> bool:
    """Return True if an instruction that takes `multiplied` serves values of dtype `stored`: the same, or narrower integers.

    One instruction widens those; conversions to floats take several.
    """
    return multiplied == stored or (multiplied.is_integer and multiplied.includes(stored))


def find_widening_shape(
    shapes: Iterable[MatrixShape], lhs: DType, rhs: DType, accumulator: DType
) -> tuple[MatrixShape, tuple[DType, DType]] | None:
    """Return how to multiply these dtypes, in either order, widened as little as possible, and the dtypes that both become."""
    fitting = [
        (s, dtypes)
        for s in shapes
        for dtypes in ((DTYPES[s.lhs], DTYPES[s.rhs]), (DTYPES[s.rhs], DTYPES[s.lhs]))
        if s.accumulator == accumulator.name and all(map(is_or_widens, dtypes, (lhs, rhs)))
    ]
    return min(fitting, key=lambda f: sum(d.bits for d in f[1]), default=None)


MATRIX_DTYPES = (
    ("f16", "f32"), ("bf16", "f32"), ("f8e4m3fn", "f32"), ("f8e5m2", "f32"), ("f32", "f32"), ("f64", "f64"), ("i8", "i32"),
)  # fmt: skip
"""Operand and accumulator dtypes of block matrix products on GPUs: what Triton's `tl.dot` takes."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A machine that code can be made for; backends derive from it for what their compilers must be told.

    `native_dtypes` are the dtypes it computes with, by name; others are stored, and computed in a wider one.  `memory` goes from
    the fastest space to the largest, in which parameters lie.  `async_copies` has the pairs (from, to) of spaces between which
    it copies while it computes.  `native_primitives` are those that expansions make use of only where they are one instruction.
    `machine` describes it to the cost model; None takes the model's default.
    """

    name: str
    backend: str
    native_dtypes: tuple[str, ...]
    memory: tuple[MemorySpace, ...]
    matrix_shapes: tuple[MatrixShape, ...] = ()
    async_copies: tuple[tuple[str, str], ...] = ()
    native_primitives: tuple[str, ...] = ()
    machine: Machine | None = None

    def kernel_problem(self, kernel: Kernel) -> str:
        """Return why a lowered kernel cannot become code for the target, as far as is known before; "" if it can."""
        return ""

    def row_problem(self, kernel: Kernel) -> str:
        """Return which rows of a lowered kernel's local buffers no block holds, unless they are divided; "" if there are none."""
        return ""

    def reduction_seconds(self, kernel: Kernel) -> float:
        """Return the seconds that the reductions of a lowered kernel take at least however it is scheduled, as far as is known; else 0."""
        return 0.0

    @property
    def device_type(self) -> str:
        """PyTorch's name of the devices that arguments lie on."""
        return "cpu"

    def missing_features(self) -> str:
        """Return what this machine lacks to run code for the target, in words; empty if it can run it."""
        return ""
