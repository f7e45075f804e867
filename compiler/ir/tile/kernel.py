"""Tile IR of kernels: loops over tiles of an index space, with scalar semantics.

    kernel    ::= "kernel" @name "(" (size | param),* ")" ["max_chunks" dim] ["warps" int] ["max_registers" int] ["persistent" int] ["warp_specialized"] ["subtiles" int] "{" stmt* "}"
    size      ::= "size" name "in" int ".." int "hint" int
    param     ::= ("in" | "const" | "out" | "inout" | "scratch") %name ":" type ["descriptor"]
    stmt      ::= %name "=" expr                                            Let
                | "store" expr "," %buffer "[" dim,* "]" ["nontemporal" ["if" dim ">=" int]]
                | "local" %buffer ":" type ["in" space]                     Local
                | "check" %name "in" dim ".." dim                           BoundsCheck
                | "prefetch" %buffer "[" dim,* "]" ["level" int] ["reuse" int ".." [int]]
                | "copy_async" %buffer "[" dim,* "]" "->" %buffer "[" dim,* "]" "size" dim,*   AsyncCopy
                | "wait" %buffer ["pending" int]                            Wait
                | ("for" | "parallel") range "{" stmt* "}"                  For
                | %name "=" "reduce" op range,* "{" stmt* "yield" expr "}"  Reduce
    range     ::= %var "in" dim ".." dim ["tile" int] ["lanes" int] ["unroll" int] ["accumulators" int] ["stages" int] ["balanced"]
    expr      ::= the scalar expressions of compiler.ir.scalar;  %buffer "[" dim,* "]" loads an element

**A kernel means what its scalar program means**: each loop visits its indices one by one, each expression is about one element.
`tile`, `lanes`, `unroll`, `accumulators`, `balanced` and `parallel` only schedule independent iterations.  They change no result, except by
the order of the additions in a reduction:

* `tile T` takes T consecutive indices at once.  Inside the loop, values that depend on %var are tiles with one more axis of
  extent T; loads become block loads, stores block stores, and a local buffer declared inside has one copy per index.
* `lanes L` puts that axis into vector registers of L elements; the last one is partial if L does not divide T.  At most one
  axis in scope has lanes.
* `unroll U` repeats an iteration U times in sequence before the loop test.
* `accumulators C` of a reduction distributes its iterations over up to C partial results, if the tiles around it keep fewer.
* `stages S` of a loop keeps the loads of S - 1 iterations ahead of the computation under way (software pipelining).
* `balanced` of a tiled loop of dynamic extent divides the indices of its last two tiles about evenly between them.
* `parallel` lets threads divide the iterations; directly nested parallel loops are divided together.  `max_chunks n`
  bounds the number of chunks of iterations that threads claim; with less than 2, the calling thread runs all of them.

The last tile of a loop may be partial; pass `peel` splits such loops, so that all their tiles are full.

`copy_async` copies a box of elements at some time before the `wait` that completes it; `size` is its extent along the last
dimensions of both buffers.  `wait %s pending n` completes copies into %s, oldest first, until at most n are under way.
Meanwhile nothing reads the destination and nothing writes source or destination, so no program sees when elements move.
Both statements stand outside tiled loops, and a copy is complete before its buffers end.  Double buffering:

    copy_async %x[0, 0] -> %s[0, 0] size 32
    for %k in 0..15 {
      copy_async %x[%k + 1, 0] -> %s[(%k + 1)%2, 0] size 32
      wait %s pending 1                                            row %k is complete, row %k + 1 under way
      for %j in 0..32 { store exp(%s[%k%2, %j]), %y[%k, %j] }
    }
    wait %s

On a GPU each iteration of the parallel loops over tiles is a program of `warps` warps, whose threads have at most `max_registers`
registers; without these numbers, code generation and the assembler choose.
With `persistent P` there are P programs, each of which takes every P-th iteration.  `warp_specialized` gives the loads and the matrix
instructions to warps of their own.  With `subtiles S`, what follows a product is computed in S parts of the columns of its block, one after another.  Tiles of a parameter with a `descriptor` are copied as boxes of a tensor (TMA).

A `size` is a dynamic size: an integer in the given range, passed at run time, allowed in types, bounds and indices.  Its `hint`
is the value that decisions about speed assume.

A buffer parameter's type carries its layout: `%w[%j, %k]` is a logical element, wherever it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import add, is_
from typing import Any, TypeAlias, TypeGuard, Union

from compiler.ir.scalar import Expr, IndexValue, Load, transform
from compiler.ir.symbolic.bounds import lower_bound
from compiler.ir.symbolic.index_atoms import DynamicSize, has_minimum
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, size_hint, substitute, variables
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Range:
    """Loop over indices lo..hi-1 of `var`, `tile` at a time, in vectors of `lanes` elements (0: no vector axis)."""

    var: str
    lo: Dim
    hi: Dim
    tile: int = 1
    lanes: int = 0
    unroll: int = 1
    accumulators: int = 1
    stages: int = 1
    balanced: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        schedule = self.tile, self.lanes, self.unroll, self.accumulators, self.stages, self.balanced
        return hash((self.var, self.lo, self.hi, *schedule))

    @cached_property
    def extent(self) -> Dim:
        return self.hi - self.lo

    def with_(self, **changes: Any) -> Range:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def has_partial_tile(r: Range) -> bool:
    """Return True if a loop of dynamic extent may end inside a tile of rows or of several vectors."""
    return not isinstance(r.extent, int) and r.lanes < r.tile and r.extent % r.tile != 0


def has_partial_rows(r: Range) -> bool:
    """Return True if a loop of dynamic extent without lanes may end inside a tile."""
    return not r.lanes and has_partial_tile(r)


def extent_hint(r: Range) -> int:
    """Return the extent of a loop under the size hints, or 1 if it depends on other loops."""
    return dim_hint(r.extent)


def dim_hint(d: Dim, fallback: int = 1) -> int:
    """Return the value of `d` under the size hints; a remainder hinted 0 counts as a full tile if it can be non-zero.

    If `d` depends on loop variables, return `fallback`; for a minimum, its value in their first iteration.
    """
    value = _at_first_iteration(size_hint(d))
    if value == 0 and isinstance(d, IndexExpr):
        negated_bound = lower_bound(-d)
        return 0 if negated_bound is None else 1 - negated_bound
    return value if isinstance(value, int) else fallback


def symbolic_hint(d: Dim) -> Dim:
    """Return `d` in terms of its dynamic sizes; if it depends on loop variables, 1 or a minimum's first value."""
    d = _at_first_iteration(d)
    return 1 if variables(d) else d


def _at_first_iteration(d: Dim) -> Dim:
    """Return `d`; if it contains a minimum, its value with all loop variables 0."""
    if isinstance(d, IndexExpr) and has_minimum(d):
        return substitute(d, dict.fromkeys(variables(d), 0))
    return d


def iteration_count_hint(loops: Iterable[Range]) -> int:
    """Return how often the body of nested loops runs under the size hints; loops of unknown extent count once."""
    return prod(extent_hint(r) for r in loops)


@dataclass(frozen=True)
class Let:
    """Bind `name` to a value for the statements that follow in this block and inside it."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store:
    """Store one element; non-temporal (bypassing caches) if `nontemporal` evaluates to >= 0 at call time."""

    buffer: str
    index: tuple[Dim, ...]
    value: Expr
    nontemporal: Dim | None = None


@dataclass(frozen=True)
class Local:
    """Declare a buffer that lives as long as its block, with one copy per index of the enclosing tiled loops.

    `space` names the memory of the target that it lies in (compiler.target.MemorySpace); "" leaves the choice to code generation.
    """

    buffer: str
    type: TensorType
    space: str = ""


@dataclass(frozen=True)
class BoundsCheck:
    """Check that the integer bound to `name` is in low..high-1; otherwise the kernel reports an index error and goes on."""

    name: str
    low: Dim
    high: Dim


ReuseRange: TypeAlias = tuple[int, Union[int, None]]
"""Range of how often a tile uses an element: at least the first number, fewer than the second unless it is None."""

ANY_REUSE: ReuseRange = (1, None)


@dataclass(frozen=True)
class Prefetch:
    """Prefetch an element into the caches of levels up to `level`; an index outside the buffer is ignored.

    Applies only to tiles that use the element as often as `reuse` says: once per index of the tiled loops that do not occur
    in its index.
    """

    buffer: str
    index: tuple[Dim, ...]
    level: int = 1
    reuse: ReuseRange = ANY_REUSE

    def applies_to(self, reuse_count: int) -> bool:
        """Return True if it applies to tiles that use the element `reuse_count` times."""
        low, high = self.reuse
        return low <= reuse_count and (high is None or reuse_count < high)

    @property
    def reuse_text(self) -> str:
        """`reuse` in IR text."""
        low, high = self.reuse
        return f"{low}..{'' if high is None else high}"


Box: TypeAlias = tuple[str, tuple[Dim, ...], tuple[Dim, ...]]
"""Elements of a buffer: its name, the lowest index, and the extent of each dimension."""


@dataclass(frozen=True)
class AsyncCopy:
    """Start copying elements from a box of `source` to one of `target`; the last dimensions of both have extents `sizes`."""

    source: str
    source_index: tuple[Dim, ...]
    target: str
    target_index: tuple[Dim, ...]
    sizes: tuple[Dim, ...]

    @property
    def boxes(self) -> tuple[Box, Box]:
        """The box that is read and the one that is written."""
        read, written = ((1,) * (len(i) - len(self.sizes)) + self.sizes for i in (self.source_index, self.target_index))
        return (self.source, self.source_index, read), (self.target, self.target_index, written)

    def indices(self, offsets: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Return the indices in source and target of the element at `offsets` from the start of both boxes."""
        pad = ((0,) * (len(index) - len(offsets)) + offsets for index in (self.source_index, self.target_index))
        read, written = (tuple(map(add, box[1], step)) for box, step in zip(self.boxes, pad, strict=True))
        return read, written


@dataclass(frozen=True)
class Wait:
    """Complete copies into `buffer`, oldest first, until at most `pending` are under way."""

    buffer: str
    pending: int = 0


@dataclass(frozen=True)
class For:
    """Run `body` for every index of `range`."""

    range: Range
    body: Block
    parallel: bool = False

    @cached_property
    def nested(self) -> Block:
        """Every statement inside, in program order."""
        return tuple(walk(self.body))


@dataclass(frozen=True)
class Reduce:
    """Bind `name` to the reduction of `value` by `op` (add, mul, max, min) over every point of `ranges`.

    `body` binds what `value` needs and may store to local buffers and results.
    """

    name: str
    op: str
    ranges: tuple[Range, ...]
    body: Block
    value: Expr

    @cached_property
    def nested(self) -> Block:
        """Every statement inside, in program order."""
        return tuple(walk(self.body))


Stmt: TypeAlias = Union[Let, Store, Local, BoundsCheck, Prefetch, AsyncCopy, Wait, For, Reduce]
Block: TypeAlias = tuple[Stmt, ...]


ROLES = ("in", "const", "out", "inout", "scratch")
"""Roles of a parameter: read, read and constant, written, read and written, temporary storage."""


@dataclass(frozen=True)
class Param:
    """Buffer that the caller passes, with a role of `ROLES`.

    A "const" is read like an "in" and known when the program is built; passes may change its layout, as it is packed once.
    The contents of a "scratch" buffer are dead after the kernel.  Each iteration of the outermost parallel loops reads only
    what it has written there itself.  With a `descriptor`, a GPU may load tiles as boxes of a tensor; its address is aligned.
    """

    name: str
    type: TensorType
    role: str = "in"
    descriptor: bool = False

    @property
    def is_written(self) -> bool:
        """True if the kernel may store to it."""
        return self.role in ("out", "inout", "scratch")


@dataclass(frozen=True)
class Kernel:
    """Kernel over its parameters; threads share its parallel loops in at most `max_chunks` chunks, None for any number.

    On a GPU, a program has `warps` warps, and a thread at most `max_registers` registers; 0 if that is not chosen.
    If `persistent` is not 0, that many programs take the iterations of the parallel loops in turn; with `warp_specialized`
    their warps differ in what they do.  With `subtiles`, what follows a product is computed in so many parts of its columns.
    """

    name: str
    params: tuple[Param, ...]
    body: Block
    max_chunks: Dim | None = None
    warps: int = 0
    max_registers: int = 0
    persistent: int = 0
    warp_specialized: bool = False
    subtiles: int = 0

    def with_body(self, body: Block) -> Kernel:
        return self if body is self.body else replace(self, body=body)

    def with_statement(self, old: Stmt, new: Stmt) -> Kernel:
        """Return the kernel with one statement replaced."""
        return self.with_body(expand_stmts(self.body, lambda s: (new if s is old else s,)))

    @cached_property
    def dynamic_sizes(self) -> tuple[DynamicSize, ...]:
        """The dynamic sizes that the kernel takes as arguments, sorted by name."""
        param_dims = (d for p in self.params for d in (*p.type.shape, *p.type.physical_shape))
        dims = {self.max_chunks or 0, *param_dims, *index_exprs(self.body)}
        return tuple(sorted(frozenset[DynamicSize]().union(*map(dynamic_sizes, dims)), key=lambda s: s.name))

    def param(self, name: str) -> Param:
        """Return the parameter with that name, or raise KeyError."""
        for p in self.params:
            if p.name == name:
                return p
        raise KeyError(name)


def stmt_body(stmt: Stmt) -> Block:
    """Return the statements directly inside `stmt`."""
    return stmt.body if isinstance(stmt, (For, Reduce)) else ()


def stmt_ranges(stmt: Stmt) -> tuple[Range, ...]:
    """Return the loops that `stmt` opens."""
    return (stmt.range,) if isinstance(stmt, For) else stmt.ranges if isinstance(stmt, Reduce) else ()


def is_parallel_loop(stmt: Stmt) -> TypeGuard[For]:
    """Return True if `stmt` is a loop that threads or blocks may share."""
    return isinstance(stmt, For) and stmt.parallel


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions of `stmt` itself, without those of statements inside it."""
    return (stmt.value,) if isinstance(stmt, (Let, Store, Reduce)) else ()


def stmt_dims(stmt: Stmt) -> Iterator[Dim]:
    """Yield the index expressions of `stmt` itself: bounds, indices, sizes and shapes, without those in its expressions."""
    yield from (d for r in stmt_ranges(stmt) for d in (r.lo, r.hi))
    if isinstance(stmt, Store) and stmt.nontemporal is not None:
        yield stmt.nontemporal
    if isinstance(stmt, (Store, Prefetch)):
        yield from stmt.index
    elif isinstance(stmt, Local):
        yield from stmt.type.shape
    elif isinstance(stmt, BoundsCheck):
        yield from (stmt.low, stmt.high)
    elif isinstance(stmt, AsyncCopy):
        yield from (*stmt.source_index, *stmt.target_index, *stmt.sizes)


def walk(body: Block) -> Iterator[Stmt]:
    """Yield every statement in program order, outer ones before those inside."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, (For, Reduce)):
            yield from stmt.nested


def index_exprs(body: Block) -> Iterator[Dim]:
    """Yield every index expression in `body`."""
    for stmt in walk(body):
        yield from stmt_dims(stmt)
        for value in stmt_exprs(stmt):
            yield from (d for e in value.loads for d in e.index)
            yield from (e.index for e in value.subexprs if isinstance(e, IndexValue))


def map_exprs(body: Block, rule: Callable[[Expr], Expr]) -> Block:
    """Replace the expression of every statement by `rule(expression)`."""

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
    """Replace every loop header by `rule(header, statement)`, in bodies first."""

    def one(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            return replace(stmt, body=map_ranges(stmt.body, rule), range=rule(stmt.range, stmt))
        if isinstance(stmt, Reduce):
            return replace(stmt, body=map_ranges(stmt.body, rule), ranges=tuple(rule(r, stmt) for r in stmt.ranges))
        return stmt

    return tuple(one(s) for s in body)


def expand_stmts(body: Block, rule: Callable[[Stmt], Block]) -> Block:
    """Replace every statement by the statements `rule(statement)`, in bodies first; return `body` itself if nothing changes."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (For, Reduce)) and (inner := expand_stmts(stmt.body, rule)) is not stmt.body:
            stmt = replace(stmt, body=inner)
        out.extend(rule(stmt))
    return body if len(out) == len(body) and all(map(is_, out, body)) else tuple(out)


def map_accesses(body: Block, buffer: str, rule: Callable[[tuple[Dim, ...]], tuple[Dim, ...]]) -> Block:
    """Replace the indices of every load from and store to `buffer` by `rule(indices)`."""

    def load(e: Expr) -> Expr:
        return replace(e, index=rule(e.index)) if isinstance(e, Load) and e.buffer == buffer else e

    def store(s: Stmt) -> Block:
        return (replace(s, index=rule(s.index)) if isinstance(s, Store) and s.buffer == buffer else s,)

    return expand_stmts(map_exprs(body, lambda e: transform(e, load)), store)


def loads(body: Block) -> Iterator[Load]:
    """Yield every load in `body`."""
    for stmt in walk(body):
        for value in stmt_exprs(stmt):
            yield from value.loads


def async_copies(body: Block) -> list[AsyncCopy]:
    """Return every asynchronous copy in `body`."""
    return [s for s in walk(body) if isinstance(s, AsyncCopy)]


def copied_buffers(body: Block) -> set[str]:
    """Return the sources and destinations of asynchronous copies in `body`."""
    return {name for s in async_copies(body) for name in (s.source, s.target)}


def stored_buffers(body: Block) -> set[str]:
    """Return the buffers that `body` stores or copies to."""
    return {*(s.buffer for s in walk(body) if isinstance(s, Store)), *(s.target for s in async_copies(body))}


def loaded_buffers(body: Block) -> set[str]:
    """Return the buffers that `body` loads or copies from."""
    return {*(e.buffer for e in loads(body)), *(s.source for s in async_copies(body))}


def access_indices(body: Block, buffer: str) -> list[tuple[Dim, ...]]:
    """Return every index at which `body` stores to `buffer`, loads from it or begins to copy."""
    stored = [s.index for s in walk(body) if isinstance(s, Store) and s.buffer == buffer]
    copied = [index for s in async_copies(body) for name, index, _ in s.boxes if name == buffer]
    return [*stored, *copied, *(e.index for e in loads(body) if e.buffer == buffer)]
