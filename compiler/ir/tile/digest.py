"""Structural digest of a kernel: equal for kernels that differ only in names.

Layers of a model, and the graphs that Dynamo breaks it into, often lower to the same kernel up to names.  The digest is the
key of the code cache, so such a kernel is compiled once, also across processes.  Names of dynamic sizes do not count either,
because a kernel takes sizes as numbers, in the order of their names.
"""

from __future__ import annotations

import hashlib

from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import free_symbols
from compiler.ir.symbolic.index_expr import Dim, substitute, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, BoundsCheck, For, Kernel, Let, Local, Prefetch, Range, Reduce, Store
from compiler.ir.types import TensorType


def kernel_digest(kernel: Kernel) -> str:
    """Return 32 hex digits of SHA-256 over everything in `kernel` but names."""
    writer = _DigestWriter()
    for s in kernel.dynamic_sizes:
        writer.line("size", writer.bind(s.name), s.low, s.high)
    for p in kernel.params:
        writer.line(p.role, writer.type(p.type), writer.bind(p.name), p.descriptor)
    writer.line(
        "chunks",
        writer.optional_dim(kernel.max_chunks),
        kernel.warps,
        kernel.max_registers,
        kernel.persistent,
        kernel.warp_specialized,
        kernel.subtiles,
    )
    writer.block(kernel.body)
    return hashlib.sha256("\n".join(writer.lines).encode()).hexdigest()[:32]


class _DigestWriter:
    """Writer of a canonical text: names are replaced by numbers, and equal expressions get one value number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.canonical_names: dict[str, str] = {}
        self.value_numbers: dict[tuple[str, ...], str] = {}
        self.expr_numbers: dict[int, str] = {}
        self.dim_texts: dict[Dim, str] = {}
        self.count = 0

    def line(self, *parts: object) -> None:
        self.lines.append(" ".join(map(str, parts)))

    def bind(self, name: str) -> str:
        """Return a new canonical name for `name`, which refers to this binding from here on."""
        if name in self.canonical_names:
            self.expr_numbers.clear()
            self.dim_texts.clear()
        self.count += 1
        self.canonical_names[name] = f"v{self.count}"
        return self.canonical_names[name]

    def dim(self, d: Dim) -> str:
        if d not in self.dim_texts:
            self.dim_texts[d] = str(substitute(d, {s.name: var(self.canonical_names[s.name]) for s in free_symbols(d)}))
        return self.dim_texts[d]

    def optional_dim(self, d: Dim | None) -> str:
        return "none" if d is None else self.dim(d)

    def dims(self, index: tuple[Dim, ...]) -> str:
        return f"[{', '.join(map(self.dim, index))}]"

    def type(self, t: TensorType) -> str:
        return str(t.specialize({name: var(number) for name, number in self.canonical_names.items()}))

    def range(self, r: Range) -> str:
        lo, hi = self.dim(r.lo), self.dim(r.hi)
        schedule = f"{r.tile} {r.lanes} {r.unroll} {r.accumulators} {r.stages} {r.balanced}"
        return f"{self.bind(r.var)} {lo} {hi} {schedule}"

    def block(self, body: Block) -> None:
        self.line("{")
        for stmt in body:
            if isinstance(stmt, Let):
                value = self.expr(stmt.value)
                self.line("let", self.bind(stmt.name), value)
            elif isinstance(stmt, Store):
                buffer, index = self.canonical_names[stmt.buffer], self.dims(stmt.index)
                self.line("store", buffer, index, self.expr(stmt.value), self.optional_dim(stmt.nontemporal))
            elif isinstance(stmt, Local):
                self.line("local", self.bind(stmt.buffer), self.type(stmt.type), stmt.space)
            elif isinstance(stmt, BoundsCheck):
                self.line("check", self.canonical_names[stmt.name], self.dim(stmt.low), self.dim(stmt.high))
            elif isinstance(stmt, Prefetch):
                buffer, index = self.canonical_names[stmt.buffer], self.dims(stmt.index)
                self.line("prefetch", buffer, index, stmt.level, stmt.reuse)
            elif isinstance(stmt, tile.AsyncCopy):
                ends = (part for name, at, _ in stmt.boxes for part in (self.canonical_names[name], self.dims(at)))
                self.line("copy_async", *ends, self.dims(stmt.sizes))
            elif isinstance(stmt, tile.Wait):
                self.line("wait", self.canonical_names[stmt.buffer], stmt.pending)
            elif isinstance(stmt, For):
                self.line("for", stmt.parallel, self.range(stmt.range))
                self.block(stmt.body)
            else:
                self.reduce(stmt)
        self.line("}")

    def reduce(self, stmt: Reduce) -> None:
        self.line("reduce", stmt.op, *(self.range(r) for r in stmt.ranges))
        self.block(stmt.body)
        value = self.expr(stmt.value)
        self.line("yield", self.bind(stmt.name), value)

    def expr(self, e: Expr) -> str:
        for node in e.subexprs:
            if id(node) not in self.expr_numbers:
                self.expr_numbers[id(node)] = self._value_number(self._key(node))
        return self.expr_numbers[id(e)]

    def _value_number(self, key: tuple[str, ...]) -> str:
        if key not in self.value_numbers:
            self.value_numbers[key] = f"e{len(self.value_numbers)}"
            self.line(self.value_numbers[key], "=", *key)
        return self.value_numbers[key]

    def _key(self, e: Expr) -> tuple[str, ...]:
        operands = tuple(self.expr_numbers[id(a)] for a in e.args)
        if isinstance(e, Const):
            return (e.dtype.name, repr(e.value))
        if isinstance(e, Ref):
            return (e.dtype.name, self.canonical_names[e.name])
        if isinstance(e, IndexValue):
            return (e.dtype.name, "index", self.dim(e.index))
        if isinstance(e, Load):
            optional = f"{'mask' if e.mask is not None else ''} {'other' if e.other is not None else ''}"
            return (e.dtype.name, "load", self.canonical_names[e.buffer], self.dims(e.index), optional, *operands)
        assert isinstance(e, PrimitiveCall)
        return (e.dtype.name, e.primitive, *operands)
