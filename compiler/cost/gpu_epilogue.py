"""Registers of what follows a product: the values of all results of a thread that are live at once.

Triton computes a block operation by operation.  The assembler finishes one result before it begins the next, so that a thread has
few values more than results; but not across code that branches, where all results of a thread are as far as each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_product import MatrixProduct, ProductBlock
from compiler.cost.machine import GPU
from compiler.ir.scalar import PRIMITIVES, Expr, Load, PrimitiveCall, Ref
from compiler.ir.tile.kernel import Block, Let, Reduce, Store

REGISTER_BYTES = 4
"""Bytes of a register."""


@dataclass(frozen=True)
class Step:
    """A value, None for a store, and what it is computed from."""

    value: Expr | None
    operands: tuple[Expr, ...]

    @property
    def branches(self) -> bool:
        """True if its code branches, so that all results of a thread take the step together."""
        return self.value is not None and branches(self.value)


@dataclass(frozen=True)
class Epilogue:
    """Code behind a product: bytes of the values of one result that are live at once, and whether it branches."""

    live_bytes: int
    branches: bool

    def registers(self, p: MatrixProduct, b: ProductBlock, subtiles: int, gpu: GPU) -> int:
        """Return the registers of a thread for one of the `subtiles` of a block of a product; other results wait in one each."""
        results = b.rows * b.columns / (b.warps * gpu.warp_threads)
        values = results * (1 - 1 / subtiles + self.live_bytes / REGISTER_BYTES / subtiles)
        code = gpu.epilogue_registers * p.epilogue_ops + gpu.branch_registers * self.branches
        return ceil(gpu.base_registers + code + values)


def epilogue_of(table: Accesses, result: Reduce, body: Block, loops: frozenset[str]) -> Epilogue:
    """Return the epilogue of a product whose results vary over `loops`: the statements `body` behind it."""
    values = EpilogueValues(table, result, body, loops)
    return Epilogue(values.most_bytes(), any(step.branches for step in values.steps))


class EpilogueValues:
    """The values of one result of a product."""

    def __init__(self, table: Accesses, result: Reduce, body: Block, loops: frozenset[str]) -> None:
        self.table, self.loops = table, loops
        self.product = Ref(result.value.dtype, result.name)
        self.steps = tuple(epilogue_steps(body))
        self.bound: dict[str, Expr] = {}
        for s in body:
            if isinstance(s, Let):
                self.bound[s.name] = self.stored(s.value)

    def most_bytes(self) -> int:
        """Return the most bytes that are live at a step that branches, at least those of the product."""
        last = {self.stored(e): k for k, step in enumerate(self.steps) for e in step.operands}
        live: set[Expr] = {self.product}
        most = self.size(live)
        for k, step in enumerate(self.steps):
            kept = {e for e in live if last.get(e, -1) > k}
            made = {self.stored(step.value)} if step.value is not None else set()
            if step.branches:
                later = set(map(self.sunk, kept))
                read = set(map(self.stored, step.operands))
                most = max(most, self.size(later | read), self.size(later | made))
            live = kept | made
        return most

    def size(self, values: set[Expr]) -> int:
        """Return the bytes of those values that each result has of its own."""
        return sum(e.dtype.bytes for e in values if self.is_own(e))

    def is_own(self, e: Expr) -> bool:
        """Return True if each result has a value of its own."""
        return self.loops <= self.table.varying_loops(e)

    def stored(self, e: Expr) -> Expr:
        """Return what registers hold for a value: a widened one is the narrow one."""
        if isinstance(e, Ref):
            return self.bound.get(e.name, e)
        is_widened = isinstance(e, PrimitiveCall) and e.primitive == "cast" and e.args[0].dtype.bytes < e.dtype.bytes
        return self.stored(e.args[0]) if is_widened else e

    def sunk(self, e: Expr) -> Expr:
        """Return what registers hold for a value that is needed later only: what it is computed from, if that takes no more."""
        own = [x for x in map(self.stored, e.args) if self.is_own(x)]
        if not isinstance(e, PrimitiveCall) or branches(e) or len(own) != 1 or own[0].dtype.bytes > e.dtype.bytes:
            return e
        return self.sunk(own[0])


def epilogue_steps(body: Block) -> Iterator[Step]:
    """Yield the steps of statements in order; blocks are loaded before the arithmetic of a statement."""
    done = set[Expr]()
    for s in body:
        values = (s.value,) if isinstance(s, (Let, Store)) else ()
        subexprs = [e for value in values for e in value.subexprs if isinstance(e, (Load, PrimitiveCall))]
        for e in sorted(subexprs, key=lambda e: isinstance(e, PrimitiveCall)):
            if e not in done:
                done.add(e)
                yield Step(e, e.args)
        if isinstance(s, Store):
            yield Step(None, values)


def branches(e: Expr) -> bool:
    """Return True if the code of a call branches."""
    return isinstance(e, PrimitiveCall) and PRIMITIVES[e.primitive].branches and e.dtype.is_float
