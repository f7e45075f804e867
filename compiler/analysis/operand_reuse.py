"""Reuse of operands in loop nests: bytes that loops touch, and which loops of a contraction reread which operand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.ir.symbolic.index_expr import Dim, interval, simplify, size_hint, variables
from compiler.ir.tile.contraction import is_contraction, without_guard
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, dim_hint, extent_hint, walk
from compiler.ir.tile.loop_nest import perfect_parallel_nest


def footprint_bytes(table: Accesses, accesses: Iterable[Access], loops: Iterable[Range]) -> int:
    """Return the bytes that `accesses` touch while each of `loops` runs once from end to end, under the size hints."""
    ranges = {r.var: extent_hint(r) for r in loops}
    touched: dict[str, int] = {}
    for a in accesses:
        type_ = table.types[a.buffer]
        extents = (touched_extent(size_hint(d), dim_hint(n), ranges) for d, n in zip(a.index, type_.shape, strict=True))
        touched[a.buffer] = max(touched.get(a.buffer, 0), prod(extents) * type_.dtype.bytes)
    return sum(touched.values())


def touched_extent(d: Dim, size: int, ranges: dict[str, int]) -> int:
    """Return how many of `size` indices `d` takes at most while each variable runs from 0 to its extent in `ranges`."""
    bounds = {v: (0, ranges.get(v, 1) - 1) for v in variables(d)}
    bounds_of_index = interval(simplify(d, bounds), bounds)
    return size if bounds_of_index is None else min(size, bounds_of_index[1] - bounds_of_index[0] + 1)


@dataclass(frozen=True)
class ContractionReuse:
    """Operands of the contractions in a nest: `panels` are to stay in L1, `rows` are the others.

    `panel_loops` are the loops that panels depend on, `batch_loops` those that every row operand depends on too, and
    `row_loops` all other loops of the nest, in the order of what their iterations step over, longest first.
    """

    contractions: list[Reduce]
    panels: list[Access]
    rows: list[Access]
    panel_loops: list[For]
    row_loops: list[For]
    batch_loops: list[For]
    panel_bytes: int
    interleaves_batches: bool
    """Rows of different batches lie between each other in memory, as those of grouped channels do."""

    @property
    def has_reuse(self) -> bool:
        """True if some loop over panels rereads the rows."""
        return len(self.batch_loops) < len(self.panel_loops)


def match_contraction_reuse(table: Accesses, nest: Sequence[For], lanes: int = 1) -> ContractionReuse | None:
    """Return the reuse in a nest with contractions directly inside; None if one of them has no operand for panels.

    Panels of arguments lie along the innermost loop, but where lanes can only follow results, as in windows of a few terms, along the
    innermost one of at least `lanes` iterations.
    """
    contractions = [s for s in nest[-1].body if is_contraction(s)]
    follow_results = all(dim_hint(s.ranges[-1].extent, lanes) < lanes for s in contractions)
    long_loops = (f for f in reversed(nest) if follow_results and dim_hint(f.range.extent, lanes) >= lanes)
    columns = next(long_loops, nest[-1])
    panels = [w for s in contractions if (w := panel_operand(table, s, columns.range.var)) is not None]
    if not contractions or len(panels) < len(contractions):
        return None
    reads = [a for s in contractions for a in table.loads_of(s)]
    rows = [a for a in reads if not any(a is w for w in panels)]
    panel_loops = [f for f in nest if any(table.depends_on(w, f.range.var) for w in panels)]

    row_loops = [f for f in nest if f not in panel_loops]
    batch_loops = [f for f in panel_loops if all(table.depends_on(a, f.range.var) for a in rows)]

    def step(f: For) -> int:
        """Return the elements between what neighbouring iterations read; 0 if they are not known, or for the same ones."""
        return sum(abs(table.stride(a, f.range.var) or 0) for a in rows)

    return ContractionReuse(
        contractions=contractions,
        panels=panels,
        rows=rows,
        panel_loops=panel_loops,
        row_loops=sorted(row_loops, key=step, reverse=True),
        batch_loops=batch_loops,
        panel_bytes=sum({w.buffer: buffer_bytes(table, w) for w in panels}.values()),
        interleaves_batches=any(step(f) <= step(r) for f in batch_loops for r in row_loops),
    )


def panel_operand(table: Accesses, s: Reduce, columns: str) -> Access | None:
    """Return the operand whose panels stay in L1: a constant, else one that depends on loop `columns`, or None."""
    reads = table.loads_of(s)
    constant = next((a for a in reads if table.roles[a.buffer] == "const"), None)
    return constant or next((a for a in reads if table.depends_on(a, columns)), None)


def reread_bytes(kernel: Kernel) -> int:
    """Return the most bytes of an operand that a contraction rereads for each step of an outer parallel loop."""
    table, most = Accesses(kernel), 0
    rows = {f.range.var for f in perfect_parallel_nest(kernel.body)}
    for a in table.all:
        if a.is_store or not is_contraction(without_guard(a.consumer)) or table.roles[a.buffer] == "local":
            continue
        if any(not table.depends_on(a, v) for v in rows):
            inner = (r for r in a.loops if r.var not in rows and any(r.var in variables(d) for d in a.index))
            most = max(most, prod(dim_hint(r.extent) for r in inner) * table.types[a.buffer].dtype.bytes)
    return most


def reads_interleaved_batches(table: Accesses, min_reuse: int) -> bool:
    """Return True if a contraction reads one element of each line for a batch, at least `min_reuse` times.

    sum %k { x[%i, %k, %b] * y[%j, %k, %b] }     %b is the batch: neighbours in memory are factors of different results

    Results that interleave in the same way do not count: lanes along the batch read whole lines.
    """
    stores = [a for a in table.all if a.is_store and table.roles[a.buffer] != "local"]
    for s in filter(is_contraction, walk(table.kernel.body)):
        loads = table.loads_of(s)
        around = [r for a in loads[:1] for r in a.loops if r not in s.ranges and extent_hint(r) > 1]
        batches = [r for r in around if all(table.depends_on(a, r.var) for a in loads)]
        batches = [r for r in batches if not any(table.stride(a, r.var) == 1 for a in stores)]
        for a in (a for a in loads if table.roles[a.buffer] != "local"):
            reuse = prod(extent_hint(r) for r in a.loops if not table.depends_on(a, r.var))
            terms = prod(extent_hint(r) for r in s.ranges if table.depends_on(a, r.var))
            if reuse >= min_reuse and terms > 1 and any(table.stride(a, r.var) == 1 for r in batches):
                return True
    return False
