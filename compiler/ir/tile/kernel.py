"""Tile IR: one kernel as a program over tiles of index space.

    kernel    ::= "kernel" @name "(" (size | param),* ")" ["parallel" "if" dim ">=" int] "{" stmt* "}"
    size      ::= "size" name "in" int ".." int "hint" int
    param     ::= ("in" | "const" | "out" | "inout") %name ":" type
    stmt      ::= %name "=" expr                                            Let
                | "store" expr "," %buffer "[" dim,* "]"                    Store
                | "local" %buffer ":" type                                  Local
                | "check" %name "in" dim ".." dim                           Check
                | "prefetch" %buffer "[" dim,* "]" ["level" int] ["reuse" int ".." [int]]
                | ("for" | "parallel") range "{" stmt* "}"                  For
                | %name "=" "reduce" op range,* "{" stmt* "yield" expr "}"  Reduce
    range     ::= %var "in" dim ".." dim ["tile" int] ["lanes" int] ["unroll" int] ["accumulators" int]
    expr      ::= the scalar expressions of compiler.ir.scalar;  %buffer "[" dim,* "]" loads an element

**The meaning of a kernel is that of a scalar program**: every loop visits its indices one by one, every expression is about one
element.  `tile`, `lanes`, `unroll` and `parallel` only say how many of these independent steps happen together, and never
change a result but for the order in which a reduction adds:

* `tile T` takes T consecutive indices at once.  Inside the loop every value that depends on %var is a tile with one more axis of
  extent T; a load becomes a block load, a store a block store, and a local buffer declared inside has one copy per index.
* `lanes L` lays that axis across vector registers of L elements, the last of them partial where L does not divide T.  At most
  one axis in scope has lanes.
* `unroll U` repeats a step U times in sequence before the loop test.
* `chains C` of a reduction has its steps take turns where the tiles around it keep few sums, so that up to C grow side by side.
* `parallel` may hand out the steps to threads; nested directly, the loops are handed out together.  With `parallel if` this is
  done only where the sizes are such; else the calling thread takes all steps.

A tile of the last step may be partial; the `peel` pass splits such loops so that every tile in them is full.

A `size` is an integer that the kernel is told when it runs, in the range given; it may stand in types, bounds and indices.
What is decided for speed alone expects it to be `like` the last number.

A buffer parameter's type carries its layout: `%w[%j, %k]` is a logical element wherever it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import is_
from typing import Any, TypeAlias, Union

from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.bounds import lower_bound
from compiler.ir.symbolic.index_atoms import has_minimum
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, size_hint, substitute, variables
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Range:
    """Consecutive indices lo..hi-1 of variable `var`, `tile` at a time across `lanes` (0: not a vector axis)."""

    var: str
    lo: Dim
    hi: Dim
    tile: int = 1
    lanes: int = 0
    unroll: int = 1
    accumulators: int = 1

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.var, self.lo, self.hi, self.tile, self.lanes, self.unroll, self.accumulators))

    @cached_property
    def extent(self) -> Dim:
        return self.hi - self.lo

    def with_(self, **changes: Any) -> Range:
        """A copy with some fields changed."""
        return replace(self, **changes)


def has_partial_tile(r: Range) -> bool:
    """Whether a loop of open length may end inside a tile of rows, or of several vectors."""
    return not isinstance(r.extent, int) and r.lanes < r.tile and r.extent % r.tile != 0


def has_partial_rows(r: Range) -> bool:
    """Whether a loop of open length without lanes may end inside a tile."""
    return not r.lanes and has_partial_tile(r)


def extent_hint(r: Range) -> int:
    """How many indices a loop is likely to visit; 1 where that is not known."""
    return dim_hint(r.extent)


def dim_hint(d: Dim, fallback: int = 1) -> int:
    """What `d` is likely to be; a remainder that is likely to be nothing counts as what it is a remainder by, if it is there at
    all.  Where `d` follows loops it is `otherwise`, or a minimum's value in their first step.
    """
    value = _at_first_iteration(size_hint(d))
    if value == 0 and isinstance(d, IndexExpr):
        below = lower_bound(-d)
        return 0 if below is None else 1 - below
    return value if isinstance(value, int) else fallback


def symbolic_hint(d: Dim) -> Dim:
    """`d` with its sizes left open; where it follows loops, as `known` has it."""
    d = _at_first_iteration(d)
    return 1 if variables(d) else d


def _at_first_iteration(d: Dim) -> Dim:
    """`d`, or if there is a minimum in it, its value in the first steps of the loops that it follows."""
    if isinstance(d, IndexExpr) and has_minimum(d):
        return substitute(d, dict.fromkeys(variables(d), 0))
    return d


def iteration_count_hint(loops: Iterable[Range]) -> int:
    """How often the body of nested loops runs; those of unknown length count once."""
    return prod(extent_hint(r) for r in loops)


@dataclass(frozen=True)
class Let:
    """Bind `name` to a value for the statements that follow in this block and inside it."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store:
    """Write one element, past the cache where `stream`, a number known when the kernel is called, is there and not negative."""

    buffer: str
    index: tuple[Dim, ...]
    value: Expr
    nontemporal: Dim | None = None


@dataclass(frozen=True)
class Local:
    """A buffer that lives as long as the block it is declared in, one copy for each index of the tiled loops around it."""

    buffer: str
    type: TensorType


@dataclass(frozen=True)
class BoundsCheck:
    """The integer bound to `name` must lie in low..high-1, else the kernel reports an index error (and goes on)."""

    name: str
    low: Dim
    high: Dim


ReuseRange: TypeAlias = tuple[int, Union[int, None]]
"""How often a tile uses an element: at least the first number of times, and fewer than the second if there is one."""

ANY_REUSE: ReuseRange = (1, None)


@dataclass(frozen=True)
class Prefetch:
    """Ask the caches, down to number `level`, for an element that will be read later.  Computes nothing; a place outside the
    buffer is ignored.  Only where a tile `uses` the element so often, for as many indices of the loops that its place does not
    follow.
    """

    buffer: str
    index: tuple[Dim, ...]
    level: int = 1
    reuse: ReuseRange = ANY_REUSE

    def applies_to(self, reuse_count: int) -> bool:
        """Whether it is for tiles that use the element `count` times."""
        least, end = self.reuse
        return least <= reuse_count and (end is None or reuse_count < end)

    @property
    def reuse_text(self) -> str:
        """`uses` as text."""
        least, end = self.reuse
        return f"{least}..{'' if end is None else end}"


@dataclass(frozen=True)
class For:
    """Run `body` for every index of `range`."""

    range: Range
    body: Block
    parallel: bool = False


@dataclass(frozen=True)
class Reduce:
    """Bind `name` to the combination (`op`: add, mul, max, min) of `value` over every point of `ranges`.

    `body` binds what `value` needs and may store to local buffers.
    """

    name: str
    op: str
    ranges: tuple[Range, ...]
    body: Block
    value: Expr


Stmt: TypeAlias = Union[Let, Store, Local, BoundsCheck, Prefetch, For, Reduce]
Block: TypeAlias = tuple[Stmt, ...]


ROLES = ("in", "const", "out", "inout", "scratch")
"""What a kernel may do with a buffer that it is given."""


@dataclass(frozen=True)
class Param:
    """A buffer the caller passes: `role` is "in", "out" or "inout", or "const" for one known when the program is built, or "scratch".

    A const is read like an "in"; passes may change its layout, because it is stored in it once.  What is written to a buffer for
    work counts for nothing afterwards, and each step of the outermost parallel loops reads only what it has written itself.
    """

    name: str
    type: TensorType
    role: str = "in"

    @property
    def is_written(self) -> bool:
        """Whether a kernel may store to it."""
        return self.role in ("out", "inout", "scratch")


@dataclass(frozen=True)
class Kernel:
    """A named Tile IR program over its parameters; threads share its parallel loops where `surplus` is not negative."""

    name: str
    params: tuple[Param, ...]
    body: Block
    parallel_condition: Dim = 0

    def with_body(self, body: Block) -> Kernel:
        return self if body is self.body else replace(self, body=body)

    def param(self, name: str) -> Param:
        """The parameter called `name`; KeyError where there is none."""
        for p in self.params:
            if p.name == name:
                return p
        raise KeyError(name)


def stmt_body(stmt: Stmt) -> Block:
    """The statements directly inside `stmt`."""
    return stmt.body if isinstance(stmt, (For, Reduce)) else ()


def stmt_ranges(stmt: Stmt) -> tuple[Range, ...]:
    """The loops that `stmt` opens."""
    return (stmt.range,) if isinstance(stmt, For) else stmt.ranges if isinstance(stmt, Reduce) else ()


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of `stmt` itself (not of the statements inside it)."""
    return (stmt.value,) if isinstance(stmt, (Let, Store, Reduce)) else ()


def walk(body: Block) -> Iterator[Stmt]:
    """Every statement, outermost first, in program order."""
    pending = list(reversed(body))
    while pending:
        stmt = pending.pop()
        yield stmt
        pending.extend(reversed(stmt_body(stmt)))


def map_exprs(body: Block, rule: Callable[[Expr], Expr]) -> Block:
    """Every statement's expression replaced by `rule(expression)`."""

    def one(stmt: Stmt) -> Stmt:
        if isinstance(stmt, (Let, Store)):
            return replace(stmt, value=rule(stmt.value))
        if isinstance(stmt, For):
            return replace(stmt, body=map_exprs(stmt.body, rule))
        if isinstance(stmt, Reduce):
            return replace(stmt, body=map_exprs(stmt.body, rule), value=rule(stmt.value))
        return stmt

    return tuple(one(s) for s in body)


def map_ranges(body: Block, rule: Callable[[Range, Stmt], Range]) -> Block:
    """Every loop header replaced by `rule(header, statement)`; bodies first."""

    def one(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            return replace(stmt, body=map_ranges(stmt.body, rule), range=rule(stmt.range, stmt))
        if isinstance(stmt, Reduce):
            return replace(stmt, body=map_ranges(stmt.body, rule), ranges=tuple(rule(r, stmt) for r in stmt.ranges))
        return stmt

    return tuple(one(s) for s in body)


def expand_stmts(body: Block, rule: Callable[[Stmt], Block]) -> Block:
    """Every statement replaced by the statements `rule` gives for it, bodies first; `body` itself where nothing changes."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (For, Reduce)) and (inner := expand_stmts(stmt.body, rule)) is not stmt.body:
            stmt = replace(stmt, body=inner)
        out.extend(rule(stmt))
    return body if len(out) == len(body) and all(map(is_, out, body)) else tuple(out)


def loads(body: Block) -> Iterator[Load]:
    """Every load in the program."""

    for stmt in walk(body):
        for value in stmt_exprs(stmt):
            yield from value.loads


def access_indices(body: Block, buffer: str) -> list[tuple[Dim, ...]]:
    """Every index at which the program stores to a buffer or loads from it."""
    stored = [s.index for s in walk(body) if isinstance(s, Store) and s.buffer == buffer]
    return [*stored, *(e.index for e in loads(body) if e.buffer == buffer)]
