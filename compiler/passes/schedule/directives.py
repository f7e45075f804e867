"""Directives of a schedule: passes that decide nothing, because their text says which loop and by how much.

    directive ::= "split" %loop "by" int "->" %outer              strips, the loop over them named %outer
                | "reorder" %loop ("," %loop)*                    the order of loops of a nest, or ranges of a reduction
                | "collapse" %outer %inner                        one loop for two
                | ("tile" | "vectorize" | "unroll") %loop "by" int
                | "pack" %buffer layout                           the order of a constant or scratch buffer in memory
                | "prefetch" %buffer "[" dim,* "]" ("level" int)? ("reuse" int ".." int?)? "at" %loop
                | "nontemporal" %buffer ("if" dim ">=" int)?      how its elements are stored
                | "parallel" %loop ("," %loop)* ("max_chunks" dim)?
                | "serial"                                        no loop is parallel

The words are those of Halide and TVM.  A name stands for every loop over it, since the parts of a split loop share its name.
TransformError or VerifyError gives the reason where a directive is illegal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, get_type_hints

from compiler.errors import TransformError, did_you_mean
from compiler.ir.symbolic.index_expr import Dim, dynamic_size, substitute, variables
from compiler.ir.text.graph_printer import format_value_name
from compiler.ir.text.lexer import Cursor
from compiler.ir.text.tile_parser import read_condition, read_prefetch
from compiler.ir.text.tile_printer import print_prefetch, write_condition
from compiler.ir.text.type_parser import read_dim, read_layout
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, Store
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import bound_names, substitute_indices
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.ir.types import Layout
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.base import Context, TilePass
from compiler.transforms.collapse import collapse
from compiler.transforms.interchange import interchange
from compiler.transforms.split import strip_mine


class Directive(TilePass):
    """Base of the directives: a tile pass whose fields are its operands, and whose text is one line of a schedule."""

    syntax: ClassVar[str]
    """The text behind the name: fields, and other words as they are."""

    def __str__(self) -> str:
        words = (w if w not in self.__dict__ else _write_operand(getattr(self, w)) for w in self.syntax.split())
        return " ".join([self.name, *words])

    @classmethod
    def read(cls, c: Cursor) -> Self:
        """Read the operands behind the word of the directive."""
        kinds, operands = get_type_hints(cls), dict[str, Any]()
        for word in cls.syntax.split():
            if word in kinds:
                operands[word] = OPERANDS[kinds[word]](c)
            else:
                c.expect(word)
        return cls(**operands)

    def run(self, ir: Kernel, context: Context) -> Kernel:
        new = self.apply(ir, context)
        verify_kernel(new)
        return new

    @abstractmethod
    def apply(self, ir: Kernel, context: Context) -> Kernel:
        """Return the kernel with the directive carried out; TransformError with the reason if that would change a result."""


@dataclass(frozen=True)
class Split(Directive):
    """Split a loop into strips of `factor` indices, with the indices after the last full strip in a loop of their own.

    split %i by 8 -> %o     for %i in 0..100  ->  for %o in 0..12 { for %i in 8*%o..8*%o + 8 }  for %i in 96..100
    """

    name, syntax = "split", "loop by factor -> outer"
    loop: str
    factor: int
    outer: str

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        require_positive(self.loop, self.factor)
        if any(isinstance(s, Reduce) for s in loops_over(ir, self.loop)):
            raise TransformError(f"%{self.loop} is reduced over: split a loop around the reduction, or unroll it")
        if self.outer in bound_names(ir.body) | {p.name for p in ir.params}:
            raise TransformError(f"the name %{self.outer} is in use")

        def rule(s: Stmt) -> Block:
            if not isinstance(s, For) or s.range.var != self.loop:
                return (s,)
            strips = strip_mine(s.range, self.factor, self.outer)
            rest = () if strips.remainder is None else (replace(s, range=strips.remainder),)
            return (For(strips.outer, (replace(s, range=strips.inner),), s.parallel), *rest)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


@dataclass(frozen=True)
class Reorder(Directive):
    """Put loops of a perfect nest, or ranges of a reduction, in the given order; other loops keep their positions.

    reorder %j, %i     parallel %i { parallel %j { A } }  ->  parallel %j { parallel %i { A } }
    """

    name, syntax = "reorder", "loops"
    loops: tuple[str, ...]

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        for v in self.loops:
            loops_over(ir, v)
        if not any(set(self.loops) <= set(names) for names in nests(ir.body)):
            raise TransformError(f"{_join(self.loops)} are not loops of one nest with nothing between them")

        def rule(s: Stmt) -> Block:
            if isinstance(s, Reduce):
                return (replace(s, ranges=tuple(s.ranges[k] for k in self.order([r.var for r in s.ranges]))),)
            nest = perfect_nest((s,))
            order = self.order([f.range.var for f in nest])
            first = next((k for k, position in enumerate(order) if k != position), None)
            if first is None:
                return (s,)
            return wrap_in_nest(nest[:first], interchange([nest[k] for k in order[first:]], nest[-1].body))

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def order(self, names: list[str]) -> list[int]:
        """Return the positions of loops called `names` in their new order; the present one if some of the loops are not there."""
        wanted = iter(self.loops if set(self.loops) <= set(names) else ())
        return [names.index(next(wanted, v) if v in self.loops else v) for v in names]


@dataclass(frozen=True)
class Collapse(Directive):
    """Make one loop of two that are perfectly nested.

    collapse %i %j     parallel %i in 0..32 { parallel %j in 0..7 { A(%i, %j) } }  ->  parallel %i in 0..224 { A(%i // 7, %i % 7) }
    """

    name, syntax = "collapse", "outer inner"
    outer: str
    inner: str

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        loops_over(ir, self.outer)

        def rule(s: Stmt) -> Block:
            if not isinstance(s, For) or s.range.var != self.outer:
                return (s,)
            match s.body:
                case (For(range=Range(var=self.inner)) as inner,):
                    loop, indices = collapse(s, inner)
                    return (replace(loop, body=tuple(substitute_indices(x, indices) for x in inner.body)),)
            raise TransformError(f"the body of %{self.outer} is not the loop %{self.inner} alone")

        return ir.with_body(tile.expand_stmts(ir.body, rule))


@dataclass(frozen=True)
class LoopFactor(Directive):
    """Base of the directives that write a number into the header of a loop."""

    syntax = "loop by factor"
    loop: str
    factor: int

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        require_positive(self.loop, self.factor)
        loops_over(ir, self.loop)
        if self.interleaves and self.factor > 1:
            require_independent(ir, context, self.loop)
        return ir.with_body(tile.map_ranges(ir.body, lambda r, _: self.header(r) if r.var == self.loop else r))

    interleaves: ClassVar[bool] = True
    """True if the directive runs iterations together, which must then be independent."""

    @abstractmethod
    def header(self, r: Range) -> Range:
        """Return the new header of the loop."""


@dataclass(frozen=True)
class Tile(LoopFactor):
    """Take `factor` iterations of a loop at once.

    tile %i by 8     parallel %i in 0..64 { A }  ->  parallel %i in 0..64 tile 8 { A }
    """

    name = "tile"

    def header(self, r: Range) -> Range:
        return r.with_(tile=self.factor)


@dataclass(frozen=True)
class Vectorize(LoopFactor):
    """Lay the iterations of a loop across vectors of `factor` elements.

    vectorize %j by 16     for %j in 0..384 { A }  ->  for %j in 0..384 tile 16 lanes 16 { A }
    """

    name = "vectorize"

    def header(self, r: Range) -> Range:
        return r.with_(tile=max(r.tile, self.factor), lanes=self.factor)


@dataclass(frozen=True)
class Unroll(LoopFactor):
    """Repeat the body of a loop `factor` times before the loop test.

    unroll %k by 4     reduce add %k in 0..768 { A }  ->  reduce add %k in 0..768 unroll 4 { A }
    """

    name = "unroll"
    interleaves = False

    def header(self, r: Range) -> Range:
        return r.with_(unroll=self.factor)


@dataclass(frozen=True)
class Pack(Directive):
    """Choose the order of a constant or scratch buffer in memory.

    pack %w {0/48, 1, 0%48}     const %w: f32[3072, 768]  ->  const %w: f32[3072, 768]{0/48, 1, 0%48}
    """

    name, syntax = "pack", "buffer layout"
    buffer: str
    layout: Layout

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        param = next((p for p in ir.params if p.name == self.buffer), None)
        if param is None or param.role not in ("const", "scratch"):
            packed = [p.name for p in ir.params if p.role in ("const", "scratch")]
            raise TransformError(
                f"%{self.buffer} is no constant of the kernel; constants are {_join(packed) or 'none'}"
            )
        if not self.layout.is_packing(param.type.rank):
            raise TransformError(
                f"{self.layout} must name each dimension of %{self.buffer}: {param.type} once, or its blocks and the index in a block"
            )
        new = replace(param, type=replace(param.type, layout=self.layout))
        return replace(ir, params=tuple(new if p is param else p for p in ir.params))


@dataclass(frozen=True)
class Prefetch(Directive):
    """Fetch an element into a cache at the start of each step of a loop.

    prefetch %w[%j, %k + 85] at %k     reduce add %k { ... }  ->  reduce add %k { prefetch %w[%j, %k + 85]  ... }
    """

    name = "prefetch"
    stmt: tile.Prefetch
    loop: str

    def __str__(self) -> str:
        return f"{print_prefetch(self.stmt)} at %{self.loop}"

    @classmethod
    def read(cls, c: Cursor) -> Self:
        stmt, _ = read_prefetch(c, _read_name(c)), c.expect("at")
        return cls(stmt, _read_name(c))

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        loops_over(ir, self.loop)
        stmt = replace(self.stmt, index=tuple(_with_sizes(d, ir) for d in self.stmt.index))

        def rule(s: Stmt) -> Block:
            if not isinstance(s, (For, Reduce)) or self.loop not in {r.var for r in tile.stmt_ranges(s)}:
                return (s,)
            first = len(leading_prefetches(s))
            return (replace(s, body=(*s.body[:first], stmt, *s.body[first:])),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


@dataclass(frozen=True)
class Nontemporal(Directive):
    """Store the elements of a buffer past the caches, where `condition` >= 0.

    nontemporal %y     store v, %y[%i]  ->  store v, %y[%i] nontemporal
    """

    name = "nontemporal"
    buffer: str
    condition: Dim = 0

    def __str__(self) -> str:
        return f"nontemporal {format_value_name(self.buffer)}{write_condition(self.condition)}"

    @classmethod
    def read(cls, c: Cursor) -> Self:
        return cls(_read_name(c), read_condition(c) if c.next_is("if") else 0)

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        if self.buffer not in tile.stored_buffers(ir.body):
            raise TransformError(f"the kernel does not store to %{self.buffer}")
        condition = _with_sizes(self.condition, ir)

        def rule(s: Stmt) -> Block:
            return (replace(s, nontemporal=condition) if isinstance(s, Store) and s.buffer == self.buffer else s,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


@dataclass(frozen=True)
class Parallel(Directive):
    """Let threads share these loops and no others, in at most `max_chunks` chunks.

    parallel %i     parallel %i { parallel %j { A } }  ->  parallel %i { for %j { A } }
    """

    name = "parallel"
    loops: tuple[str, ...] = ()
    max_chunks: Dim | None = None

    def __str__(self) -> str:
        chunks = "" if self.max_chunks is None else f" max_chunks {self.max_chunks}"
        return f"parallel {_join(self.loops)}{chunks}" if self.loops else "serial"

    @classmethod
    def read(cls, c: Cursor) -> Self:
        return cls(_read_names(c), read_dim(c) if c.accept("max_chunks") else None)

    def apply(self, ir: Kernel, context: Context) -> Kernel:
        for v in self.loops:
            loops = loops_over(ir, v)
            if any(isinstance(s, Reduce) for s in loops):
                raise TransformError(f"%{v} is reduced over, and threads do not share a reduction")
            if not all(map(tile.is_parallel_loop, loops)):
                require_independent(ir, context, v)

        def rule(s: Stmt) -> Block:
            return (replace(s, parallel=s.range.var in self.loops) if isinstance(s, For) else s,)

        chunks = None if self.max_chunks is None else _with_sizes(self.max_chunks, ir)
        new = replace(ir, body=tile.expand_stmts(ir.body, rule), max_chunks=chunks)
        outermost = {s.range.var for s in new.body if isinstance(s, For)}
        if outermost & set(self.loops) and not is_parallelizable(new):
            raise TransformError("statements outside of these loops write to buffers that threads would share")
        return new


READERS: dict[str, Callable[[Cursor], Directive]] = {
    **{d.name: d.read for d in (Split, Reorder, Collapse, Tile, Vectorize, Unroll, Pack)},
    **{d.name: d.read for d in (Prefetch, Nontemporal, Parallel)},
    "serial": lambda _: Parallel(),
}
"""The reader of each directive by its word."""


def loops_over(ir: Kernel, v: str) -> list[For | Reduce]:
    """Return the loops and reductions over `v`; TransformError with the names of all loops if there are none."""
    loops = [s for s in tile.walk(ir.body) if isinstance(s, (For, Reduce))]
    found = [s for s in loops if v in {r.var for r in tile.stmt_ranges(s)}]
    if not found:
        names = dict.fromkeys(r.var for s in loops for r in tile.stmt_ranges(s))
        raise TransformError(f"there is no loop %{v}{did_you_mean(v, names)}; loops are {_join(names)}")
    return found


def nests(body: Block) -> Iterator[list[str]]:
    """Yield the variables of each perfect nest and of each reduction, outermost first."""
    nest = perfect_nest(body)
    if nest:
        yield [f.range.var for f in nest]
        yield from nests(nest[-1].body)
        return
    for s in body:
        if isinstance(s, For):
            yield from nests((s,))
        elif isinstance(s, Reduce):
            yield [r.var for r in s.ranges]
            yield from nests(s.body)


def leading_prefetches(s: For | Reduce) -> list[tile.Prefetch]:
    """Return the prefetches that the body of a loop begins with."""
    count = next((k for k, inner in enumerate(s.body) if not isinstance(inner, tile.Prefetch)), len(s.body))
    return [p for p in s.body[:count] if isinstance(p, tile.Prefetch)]


def require_positive(loop: str, factor: int) -> None:
    """Raise TransformError unless a factor is at least 1."""
    if factor < 1:
        raise TransformError(f"the factor of %{loop} must be positive, but is {factor}")


def require_independent(ir: Kernel, context: Context, v: str) -> None:
    """Raise TransformError unless the iterations of a loop may run together."""
    bounds = [r for s in tile.walk(ir.body) for r in tile.stmt_ranges(s) if v in variables(r.lo) | variables(r.hi)]
    if bounds:
        raise TransformError(f"the bounds of %{bounds[0].var} depend on %{v}")
    if not context.accesses(ir).is_parallel(v):
        raise TransformError(f"the iterations of %{v} depend on each other")


def _with_sizes(d: Dim, ir: Kernel) -> Dim:
    """Return an index expression with the dynamic sizes of the kernel for the names that stand for them."""
    sizes = ir.dynamic_sizes
    return substitute(d, {s.name: dynamic_size(s.name, s.low, s.high, s.hint) for s in sizes})


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(format_value_name, names))


def _read_name(c: Cursor) -> str:
    return c.expect_kind("value", "a %name").text


def _read_names(c: Cursor) -> tuple[str, ...]:
    names = [_read_name(c)]
    while c.accept(","):
        names.append(_read_name(c))
    return tuple(names)


def _read_integer(c: Cursor) -> int:
    """Read an integer; a negative one is refused where it is applied."""
    sign = -1 if c.accept("-") else 1
    return sign * c.expect_integer()


OPERANDS: dict[Any, Callable[[Cursor], Any]] = {
    str: _read_name,
    int: _read_integer,
    tuple[str, ...]: _read_names,
    Layout: read_layout,
}
"""The reader of an operand by its type."""


def _write_operand(value: object) -> str:
    """Return the text that `OPERANDS` reads."""
    if isinstance(value, str):
        return format_value_name(value)
    return _join(value) if isinstance(value, tuple) else str(value)
