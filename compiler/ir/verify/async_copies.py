"""Verifier of asynchronous copies: which are under way before each statement, and what it must not do meanwhile.

The copies into a buffer are a queue: `copy_async` appends to it, and `wait` removes the oldest.  An iteration of a loop must
leave as many as it found.  What it leaves, with the loop variable one less, is what the next one finds; at the lower bound this
must be what the loop finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from compiler.ir.symbolic.index_atoms import Mod, terms
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import AsyncCopy, Block, Box, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, Wait
from compiler.ir.tile.substitution import bound_names, substitute_indices

Queue: TypeAlias = tuple[AsyncCopy | None, ...]
"""Copies under way, oldest first; None is one of which only the number is known."""

Queues: TypeAlias = Mapping[str, Queue]
"""The copies into each buffer."""


def check_async_copies(kernel: Kernel) -> list[str]:
    """Return what conflicts with copies under way, and the copies that are not waited for."""
    if not tile.async_copies(kernel.body):
        return []
    execution = _AbstractExecution()
    left = execution.run_block(kernel.body, {}, {})
    execution.problems += [f"%{name} has copies under way at the end of the kernel" for name in left if left[name]]
    return list(dict.fromkeys(execution.problems))


class _AbstractExecution:
    """Execution of statements on queues instead of memory."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def run_block(self, body: Block, queues: Queues, bounds: Bounds) -> Queues:
        """Return the queues after a block, without those of its own buffers."""
        for stmt in body:
            queues = self.run_stmt(stmt, queues, bounds)
        own = {s.buffer for s in body if isinstance(s, Local)}
        for c in _under_way(queues):
            self.problems += [f"%{name} ends while {_text(c)} is under way" for name in own & {c.source, c.target}]
        return {name: queue for name, queue in queues.items() if name not in own}

    def run_stmt(self, stmt: Stmt, queues: Queues, bounds: Bounds) -> Queues:
        if isinstance(stmt, (For, Reduce)):
            return self.run_loops(tile.stmt_ranges(stmt), stmt, queues, bounds)
        if isinstance(stmt, Wait):
            queue = queues.get(stmt.buffer, ())
            return {**queues, stmt.buffer: queue[max(0, len(queue) - stmt.pending) :]}
        own = (stmt,) if isinstance(stmt, AsyncCopy) else ()
        for c in (*_under_way(queues), *own):
            self.problems += _conflicts(stmt, c, bounds)
        return {**queues, **{c.target: (*queues.get(c.target, ()), c) for c in own}}

    def run_loops(self, ranges: tuple[Range, ...], stmt: For | Reduce, queues: Queues, bounds: Bounds) -> Queues:
        """Return the queues after nested loops over `ranges` with the body of `stmt`."""
        if not ranges:
            value = (Let(stmt.name, stmt.value),) if isinstance(stmt, Reduce) else ()  # read at the end of the body
            return self.run_block((*stmt.body, *value), queues, bounds)
        r, *inner = ranges
        low, high = interval(r.lo, bounds), interval(r.hi, bounds)
        bounds = {**bounds, r.var: (low[0], high[1] - 1)} if low and high else bounds
        names = {
            s.target if isinstance(s, AsyncCopy) else s.buffer
            for s in tile.walk(stmt.body)
            if isinstance(s, (AsyncCopy, Wait))
        }
        found = {name: queues.get(name, ()) for name in names}
        if tile.is_parallel_loop(stmt):
            self.problems += [f"%{b} has copies under way before parallel %{r.var}" for b in sorted(names) if found[b]]
        unknown = {name: (None,) * len(queue) for name, queue in found.items()}
        left = _AbstractExecution().run_loops(tuple(inner), stmt, {**queues, **unknown}, bounds) if names else {}
        carried = {name: self.carried(name, left.get(name, ()), found[name], r, stmt) for name in sorted(names)}
        self.run_loops(tuple(inner), stmt, {**queues, **carried}, bounds)
        return {**queues, **{name: _at(queue, r, r.hi) for name, queue in carried.items()}}

    def carried(self, name: str, left: Queue, found: Queue, r: Range, stmt: For | Reduce) -> Queue:
        """Return the copies into buffer `name` that iteration `r.var` finds, given those `left` by one and `found` by the first."""
        if len(left) != len(found):
            problem = (
                f"iterations of %{r.var} begin with {len(found)} copies into %{name} under way and leave {len(left)}"
            )
            self.problems.append(problem)
            return found
        started = tuple(c for c in left if c)
        if not started:
            return found
        if local := bound_names(stmt.body) & {n for c in started for d in tile.stmt_dims(c) for n in variables(d)}:
            self.problems.append(f"%{min(local)} ends while a copy into %{name} that depends on it is under way")
        queue: Queue = ()
        for step in range(1, len(found) + 1):
            queue = (*_at(started, r, var(r.var) - step), *queue)
        queue = queue[-len(found) :]
        if any(a and b and a != b for a, b in zip(_at(queue, r, r.lo), found, strict=True)):
            self.problems.append(
                f"the copies into %{name} under way before %{r.var} are not those that its iterations leave"
            )
        return queue


def _at(queue: Queue, r: Range, value: Dim) -> Queue:
    return tuple(c and substitute_indices(c, {r.var: value}) for c in queue)


def _under_way(queues: Queues) -> Iterator[AsyncCopy]:
    return (c for queue in queues.values() for c in queue if c)


def _text(c: AsyncCopy) -> str:
    return " -> ".join(f"%{name}[{', '.join(map(str, index))}]" for name, index, _ in c.boxes)


def _conflicts(stmt: Stmt, copy: AsyncCopy, bounds: Bounds) -> Iterator[str]:
    """Yield what `stmt` must not do while `copy`, or the copy that it starts itself, is under way."""
    read, written = copy.boxes
    for box in _read_boxes(stmt):
        if not _are_apart(box, written, bounds):
            yield f"%{box[0]}[{', '.join(map(str, box[1]))}] is read while {_text(copy)} is under way"
    for box in _written_boxes(stmt):
        if not _are_apart(box, read, bounds) or (stmt is not copy and not _are_apart(box, written, bounds)):
            yield f"%{box[0]}[{', '.join(map(str, box[1]))}] is written while {_text(copy)} is under way"


def _read_boxes(stmt: Stmt) -> Iterator[Box]:
    yield from ((e.buffer, e.index, (1,) * len(e.index)) for value in tile.stmt_exprs(stmt) for e in value.loads)
    if isinstance(stmt, AsyncCopy):
        yield stmt.boxes[0]


def _written_boxes(stmt: Stmt) -> Iterable[Box]:
    if isinstance(stmt, Store):
        return [(stmt.buffer, stmt.index, (1,) * len(stmt.index))]
    return [stmt.boxes[1]] if isinstance(stmt, AsyncCopy) else []


def _are_apart(a: Box, b: Box, bounds: Bounds) -> bool:
    """Return True if two boxes provably have no element in common."""
    return a[0] != b[0] or any(_is_apart(*axis, bounds) for axis in zip(a[1], a[2], b[1], b[2], strict=False))


def _is_apart(i: Dim, m: Dim, j: Dim, n: Dim, bounds: Bounds) -> bool:
    """Return True if i..i+m-1 and j..j+n-1 are disjoint: one follows the other, or i and j are different remainders."""
    gaps = interval(j - i - m, bounds), interval(i - j - n, bounds)
    if any(gap and gap[0] >= 0 for gap in gaps):
        return True
    (x, y), one = (_remainder(i), _remainder(j)), m == n == 1
    if not one or x is None or y is None or x.den != y.den:
        return False
    distance = (x.num - y.num) % y.den
    return isinstance(distance, int) and distance != 0


def _remainder(d: Dim) -> Mod | None:
    """Return the remainder that `d` is, or None."""
    (mono, factor), *others = terms(d)
    return mono[0] if not others and factor == 1 and len(mono) == 1 and isinstance(mono[0], Mod) else None
