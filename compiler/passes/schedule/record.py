"""Recording of schedules: the decisions that passes made, as directives wherever these say all that a pass did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from compiler.errors import TilewrightError
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.kernel import For, Kernel, Range, Reduce, Store, is_parallel_loop, stmt_ranges, walk
from compiler.passes.base import Context, Pass
from compiler.passes.manager import PassInstrument
from compiler.passes.schedule.directives import (
    Collapse,
    Directive,
    Nontemporal,
    Pack,
    Parallel,
    Prefetch,
    Reorder,
    Split,
    Tile,
    Unroll,
    Vectorize,
    leading_prefetches,
    nests,
)
from compiler.passes.schedule.schedule import Schedule


@dataclass
class ScheduleRecorder(PassInstrument):
    """Record the schedule of each kernel, from the last pass over the whole program on."""

    schedules: dict[str, Schedule] = field(default_factory=dict)
    _results: dict[str, Kernel] = field(default_factory=dict)

    def after_pass(self, pass_: Pass[Any], old: Any, new: Any, seconds: float, context: Context) -> None:
        if not isinstance(new, Kernel):
            self.schedules, self._results = {}, {}
            return
        is_next = self._results.get(new.name) is old
        steps = self.schedules[new.name].steps if is_next else ()
        self.schedules[new.name] = Schedule(new.name, (*steps, *directives_of(pass_, old, new, context)))
        self._results[new.name] = new

    def schedules_of(self, kernels: Mapping[str, Kernel]) -> dict[str, Schedule]:
        """Return the schedules that lead to `kernels`, without those that passes did not make."""
        return {name: s for name, s in self.schedules.items() if self._results[name] == kernels.get(name)}


def directives_of(pass_: Pass[Any], old: Kernel, new: Kernel, context: Context) -> tuple[Pass[Any], ...]:
    """Return the directives that make `new` of `old`; the pass itself where they cannot, and nothing if it did nothing."""
    if isinstance(pass_, Directive) or new == old:
        return (pass_,) if new != old else ()
    trial = context.trial()
    try:
        structure = (*collapses(old, new), *splits(old, new))
        directives = (*structure, *changes(applied(structure, old, trial), new))
        return directives if applied(directives, old, trial) == new else (pass_,)
    except TilewrightError:
        return (pass_,)


def applied(directives: Iterable[Directive], kernel: Kernel, context: Context) -> Kernel:
    """Return the kernel after the directives."""
    for directive in directives:
        kernel = directive.run(kernel, context)
    return kernel


def splits(old: Kernel, new: Kernel) -> Iterator[Split]:
    """Yield a split for each loop of `new` that has become strips of a loop of `old`."""
    before = ranges_by_name(old)
    for v, r in ranges_by_name(new).items():
        for outer in variables(r.lo) - before.keys():
            factor = coefficient(r.lo, outer)
            if v in before and factor:
                yield Split(v, factor, outer)


def collapses(old: Kernel, new: Kernel) -> Iterator[Collapse]:
    """Yield a directive for each loop of a nest of `old` that has become part of the loop around it."""
    remaining = ranges_by_name(new)
    for nest in nests(old.body):
        pairs = reversed(list(pairwise(nest)))
        yield from (Collapse(outer, inner) for outer, inner in pairs if inner not in remaining)


def changes(old: Kernel, new: Kernel) -> Iterator[Directive]:
    """Yield directives for what differs between two kernels, if they have the same loops and buffers."""
    before_nests, after_nests = list(nests(old.body)), list(nests(new.body))
    if list(map(sorted, before_nests)) != list(map(sorted, after_nests)) or len(old.params) != len(new.params):
        return
    for before, after in zip(before_nests, after_nests, strict=True):
        moved = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if moved:
            yield Reorder(tuple(after[moved[0] : moved[-1] + 1]))
    ranges = ranges_by_name(old)
    for v, r in ranges_by_name(new).items():
        tile = ranges[v].tile
        if r.lanes != ranges[v].lanes:
            yield (vectorized := Vectorize(v, r.lanes))
            tile = vectorized.header(ranges[v]).tile
        if r.tile != tile:
            yield Tile(v, r.tile)
        if r.unroll != ranges[v].unroll:
            yield Unroll(v, r.unroll)
    for p, q in zip(old.params, new.params, strict=True):
        if p.type.layout != q.type.layout and q.type.layout is not None:
            yield Pack(q.name, q.type.layout)
    known = prefetches(old)
    yield from (p for p in prefetches(new) if p not in known)
    streamed = nontemporal_stores(old)
    yield from (s for s in nontemporal_stores(new) if s not in streamed)
    parallel = parallel_loops(new)
    if (set(parallel_loops(old)), old.max_chunks) != (set(parallel), new.max_chunks):
        yield Parallel(parallel, new.max_chunks)


def ranges_by_name(kernel: Kernel) -> dict[str, Range]:
    """Return the loop headers of a kernel by variable."""
    return {r.var: r for s in walk(kernel.body) for r in stmt_ranges(s)}


def prefetches(kernel: Kernel) -> list[Prefetch]:
    """Return the prefetches at the start of loops."""
    loops = [s for s in walk(kernel.body) if isinstance(s, (For, Reduce))]
    return [Prefetch(p, stmt_ranges(s)[-1].var) for s in loops for p in leading_prefetches(s)]


def nontemporal_stores(kernel: Kernel) -> list[Nontemporal]:
    """Return the buffers that are stored past the caches, each once."""
    stores = (s for s in walk(kernel.body) if isinstance(s, Store))
    return list(dict.fromkeys(Nontemporal(s.buffer, s.nontemporal) for s in stores if s.nontemporal is not None))


def parallel_loops(kernel: Kernel) -> tuple[str, ...]:
    """Return the variables of the parallel loops, each once."""
    return tuple(dict.fromkeys(s.range.var for s in walk(kernel.body) if is_parallel_loop(s)))
