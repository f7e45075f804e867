"""Where a kernel reads and writes memory, seen from its loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from compiler.ir import scalar, tile
from compiler.ir.atoms import FloorDiv, Mod
from compiler.ir.index import Dim, Index, interval, likely, product, variables
from compiler.ir.linear import coefficient, step
from compiler.ir.scalar import Call, Expr
from compiler.ir.tile import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, in_sizes, known
from compiler.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store and the loops around it, outermost first."""

    buffer: str
    index: tuple[Dim, ...]
    loops: tuple[Range, ...]
    stmt: Stmt
    is_store: bool
    masked: bool = False

    @cached_property
    def count(self) -> int:
        """How often the scalar program performs it, loops of unknown length counted once."""
        return tile.known_steps(self.loops)

    @cached_property
    def inside(self) -> frozenset[str]:
        """The variables of the loops around it."""
        return frozenset(r.var for r in self.loops)


@dataclass(frozen=True, eq=False)
class Places:
    """Where in a buffer of some type accesses are, and by how much they move along a loop, as far as that was asked."""

    offsets: dict[Access, Dim] = field(default_factory=dict)
    steps: dict[tuple[Access, str], int | None] = field(default_factory=dict)
    linear: dict[str, bool] = field(default_factory=dict)


class Accesses:
    """Every access of a kernel, with what is needed to judge its stride along a loop."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.types: dict[str, TensorType] = {p.name: p.type for p in kernel.params}
        self.roles = {p.name: p.role for p in kernel.params}
        self.depends: dict[str, frozenset[str]] = {}
        self.private: dict[str, frozenset[str]] = {}  # loops around the declaration of a local buffer
        self.arithmetic: list[
            tuple[tuple[Range, ...], int]
        ] = []  # operations of a block or a sum, and the loops around them
        self._known: dict[tuple[str, TensorType], Places] = {}  # of every type tried
        self._places: dict[str, Places] = {}  # of the types that buffers have
        self._steps: dict[tuple[Dim, str], int | None] = {}
        self._sums: dict[str, tuple[Reduce, ...]] = {}
        self.all: list[Access] = []
        self._visit(kernel.body, ())

    def retyped(self, types: Sequence[TensorType]) -> Accesses:
        """The same accesses where the kernel's parameters have other types of the same shapes."""
        assert self.touching is not None  # found once, for all types
        assert self.free is not None
        new = copy(self)
        new.types = {**self.types, **{p.name: t for p, t in zip(self.kernel.params, types, strict=True)}}
        new._places = {}
        return new

    def _visit(self, body: Block, loops: tuple[Range, ...]) -> None:
        calls = 0
        for stmt in body:
            inner = (*loops, *own) if (own := tile.ranges(stmt)) else loops
            for r in own:
                bounds = (self.depends.get(n, frozenset()) for n in variables(r.lo) | variables(r.hi))
                self.depends[r.var] = frozenset({r.var}).union(*bounds)
            if isinstance(stmt, Local):
                self.types[stmt.buffer], self.roles[stmt.buffer] = stmt.type, "local"
                self.private[stmt.buffer] = frozenset(r.var for r in loops)
            if within := tile.blocks(stmt):
                self._visit(within, inner)
            for value in tile.values(stmt):
                if isinstance(stmt, Reduce):
                    self.arithmetic.append((inner, len(value.calls) + 1))
                else:
                    calls += len(value.calls)
                self.all += [Access(e.buffer, e.index, inner, stmt, False, e.mask is not None) for e in value.loads]
            if isinstance(stmt, Store):
                self.all.append(Access(stmt.buffer, stmt.index, inner, stmt, True))
            if isinstance(stmt, Let):
                self.depends[stmt.name] = self.dependence(stmt.value)
            if isinstance(stmt, Reduce):
                self.depends[stmt.name] = self.dependence(stmt.value) - {r.var for r in stmt.ranges}
        self.arithmetic += [(loops, calls)] if calls else []

    def dependence(self, e: Expr) -> frozenset[str]:
        """The loops that a value varies over."""
        return frozenset().union(*(self.depends[n] for n in e.names if n in self.depends))

    def step(self, a: Access, v: str) -> int | None:
        """Elements that are likely to lie between the places of successive `v`; None where they are irregular."""
        if v in self.private.get(a.buffer, ()):
            return 1  # one copy for each `v`, side by side
        steps = self._of(a).steps
        if (a, v) not in steps:
            key = (self.offset(a), v)
            if key not in self._steps:
                self._steps[key] = self._step(*key)
            steps[a, v] = self._steps[key]
        return steps[a, v]

    def _step(self, offset: Dim, v: str) -> int | None:
        total = 0
        for name in variables(offset):
            if name == v:
                c = coefficient(offset, v)
                if c is None:
                    return None
                total += c
            elif v in self.depends.get(name, frozenset()):
                return None
        return total

    def offset(self, a: Access) -> Dim:
        """Elements that are likely to lie between the start of the buffer and the place."""
        offsets = self._of(a).offsets
        if a not in offsets:
            offsets[a] = likely(self.types[a.buffer].offset(a.index))
        return offsets[a]

    def _of(self, a: Access) -> Places:
        """What is known of places in the buffer that `a` touches, as long as it has its type."""
        if a.buffer not in self._places:
            self._places[a.buffer] = self._known.setdefault((a.buffer, self.types[a.buffer]), Places())
        return self._places[a.buffer]

    def follows(self, a: Access, v: str) -> bool:
        """Whether the place depends on loop `v` at all."""
        if v in self.private.get(a.buffer, ()):
            return True
        return any(v in self.depends.get(n, frozenset({n})) for d in a.index for n in variables(d))

    @cached_property
    def alike(self) -> list[tuple[Access, int]]:
        """One access for all those that differ by a constant only, and how many they are."""
        found: dict[object, list[Access]] = {}
        for a in self.all:
            moving = tuple(without_constant(d) for d in a.index)
            found.setdefault((a.buffer, a.is_store, moving, a.loops), []).append(a)
        return [(same[0], len(same)) for same in found.values()]

    @cached_property
    def free(self) -> frozenset[str]:
        """The loops whose steps may be taken together."""
        return frozenset(v for v in self.loops if self.independent(v))

    def sums(self, v: str) -> tuple[Reduce, ...]:
        """The reductions inside loop `v`, its own among them."""
        if v not in self._sums:
            self._sums[v] = tuple(s for s in tile.walk((self.loops[v][1],)) if isinstance(s, Reduce))
        return self._sums[v]

    def linear(self, v: str) -> bool:
        """Whether every place moves by equal steps along loop `v`."""
        return all(self._linear_in(same, v) for same in self.touching.values())

    def _linear_in(self, same: Sequence[Access], v: str) -> bool:
        """The same for the accesses of one buffer."""
        known = self._of(same[0]).linear
        if v not in known:
            known[v] = all(self.step(a, v) is not None for a in same if v in a.inside)
        return known[v]

    @cached_property
    def touching(self) -> dict[str, list[Access]]:
        """The accesses of each buffer, one of those that differ by a constant only."""
        found: dict[str, list[Access]] = {}
        for a, _ in self.alike:
            found.setdefault(a.buffer, []).append(a)
        return found

    def independent(self, v: str) -> bool:
        """Whether steps of loop `v` may be taken together: each reads and writes elements of its own of what any of them writes."""
        _, stmt, _ = self.loops[v]
        if any(v in variables(x.lo) | variables(x.hi) for x, _, _ in self.loops.values()):
            return False  # a loop inside starts where this one says
        if isinstance(stmt, For) and stmt.parallel:
            return True
        inside = [a for a in self.all if v in a.inside and v not in self.private.get(a.buffer, ())]
        written = {a.buffer for a in inside if a.is_store}
        places = {name: {a.index for a in inside if a.buffer == name} for name in written}
        return all(len(found) == 1 and self._apart(next(iter(found)), v) for found in places.values())

    def held(self, v: str) -> int:
        """Bytes of local buffers that each step of loop `v` has for itself."""
        return sum(known(self.types[name].nbytes) for name, loops in self.private.items() if v in loops)

    @staticmethod
    def _apart(index: tuple[Dim, ...], v: str) -> bool:
        """Whether steps of `v` lead to different places, whatever else the index follows."""
        found = (step(d, v) for d in index)
        return any(s if isinstance(s, int) else s and (interval(s, {}) or (0, 0))[0] > 0 for s in found)

    @cached_property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The lowest and highest value of each loop variable, where they are known."""
        found: dict[str, tuple[int, int]] = {}
        for v, (r, _, _) in self.loops.items():
            low, high = interval(r.lo, found), interval(r.hi, found)
            if low and high:
                found[v] = low[0], high[1] - 1
        return found

    @cached_property
    def loops(self) -> dict[str, tuple[Range, Stmt, tuple[Range, ...]]]:
        """Each loop variable's range, statement, and the loops around it."""
        found: dict[str, tuple[Range, Stmt, tuple[Range, ...]]] = {}

        def visit(body: Block, around: tuple[Range, ...]) -> None:
            for stmt in body:
                rs = tile.ranges(stmt)
                for k, r in enumerate(rs):
                    found[r.var] = (r, stmt, (*around, *rs[:k]))
                visit(tile.blocks(stmt), (*around, *rs))

        visit(self.kernel.body, ())
        return found


def size_of(table: Accesses, a: Access) -> int:
    """Bytes of the buffer that is read."""
    return known(table.types[a.buffer].nbytes, 0)


def without_constant(d: Dim) -> Dim:
    """`d` less its constant term."""
    return Index(tuple(t for t in d.terms if t[0])) if isinstance(d, Index) else 0


def contraction(stmt: Stmt) -> bool:
    """A reduction that adds products."""
    return (
        isinstance(stmt, Reduce) and stmt.op == "add" and isinstance(stmt.value, Call) and stmt.value.primitive == "mul"
    )


MASKED_COST = 8
"""Memory operations that a load under a guard costs."""

DIVISION_COST = 8
"""Multiply-adds that a division in an address costs."""


def work(kernel: Kernel) -> int:
    """Primitive operations and memory accesses that `kernel` is likely to perform, as the cost model prices them."""
    total = work_in_sizes(kernel, known)
    assert isinstance(total, int)
    return total


def work_in_sizes(kernel: Kernel, length: Callable[[Dim], Dim] = in_sizes) -> Dim:
    """The same for every size; `length` says how many steps a loop of some extent counts for."""
    types = {p.name: p.type for p in kernel.params}
    types |= {s.buffer: s.type for s in tile.walk(kernel.body) if isinstance(s, Local)}

    def price(value: Expr) -> int:
        masked = sum(e.mask is not None for e in value.loads)
        divided = sum(divisions(types[e.buffer].offset(e.index)) for e in value.loads)
        memory = len(value.loads) + (MASKED_COST - 1) * masked + DIVISION_COST * divided
        return memory + sum(scalar.PRIMITIVES[e.primitive].cost for e in value.calls)

    def total(body: Block, repeat: Dim) -> Dim:
        sum_: Dim = 0
        once = 0  # of the statements that are no loops
        for stmt in body:
            own = sum(map(price, tile.values(stmt))) + isinstance(stmt, Reduce)
            if isinstance(stmt, Store):
                own += 1 + DIVISION_COST * divisions(types[stmt.buffer].offset(stmt.index))
            if ranges := tile.ranges(stmt):
                times = repeat * product(length(r.extent) for r in ranges)
                sum_ += times * own + total(tile.blocks(stmt), times)
            else:
                once += own
        return sum_ + repeat * once

    return total(kernel.body, 1)


@lru_cache(maxsize=4096)
def divisions(d: Dim) -> int:
    """Different divisions and remainders left in an index; those of sizes are done once."""
    atoms = {a for mono, _ in d.terms for a in mono} if isinstance(d, Index) else set()
    return sum(isinstance(a, (FloorDiv, Mod)) and bool(variables(a.num)) for a in atoms)


def nested_fors(body: Block) -> list[For]:
    """The loops of a perfect nest that starts `body`, outermost first."""
    nest: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        nest.append(body[0])
        body = body[0].body
    return nest


def in_nest(nest: Sequence[For], body: Block) -> Block:
    """`body` in the loops of `nest`, in place of what they hold."""
    for f in reversed(nest):
        body = (replace(f, body=body),)
    return body
