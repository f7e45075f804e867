"""Building Tile IR inside out: a stack of open loops into which statements are placed as early as they can be.

A value that depends only on outer loops is placed between those loops and the inner ones, so hoisting needs no pass of
its own: a row maximum lands in the row loop, before the loop over columns that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, IndexValue, Ref
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile.kernel import Block, For, Let, Range, Stmt
from compiler.ir.tile.uses import names_read


@dataclass(eq=False)
class LoopLevel:
    """One open loop (or the kernel itself): how deep it lies, and what it holds so far."""

    depth: int = 0
    stmts: list[Stmt] = field(default_factory=list)


@dataclass
class LoopNestBuilder:
    """The open loops, outermost first; no name in it is one of `sizes`."""

    reserved_names: frozenset[str] = frozenset()
    levels: list[LoopLevel] = field(default_factory=lambda: [LoopLevel()])
    defining_level: dict[str, LoopLevel] = field(default_factory=dict)  # where each name is bound
    bounds: dict[str, tuple[Dim, Dim]] = field(default_factory=dict)
    name_counts: dict[str, int] = field(default_factory=dict)
    memo: dict[Any, list[tuple[LoopLevel, Any]]] = field(default_factory=dict)  # values, each known inside a level

    @property
    def current_level(self) -> LoopLevel:
        return self.levels[-1]

    def fresh_name(self, prefix: str) -> str:
        """A name not used yet, nor that of a size."""
        n = self.name_counts.get(prefix, 0)
        while f"{prefix}{n}" in self.reserved_names:
            n += 1
        self.name_counts[prefix] = n + 1
        return f"{prefix}{n}"

    def defining_depth(self, names: Iterable[str]) -> int:
        """The innermost open level that binds one of `names`; 0 for none."""
        return max(
            (home.depth for n in names if (home := self.defining_level.get(n)) and self.is_open(home)), default=0
        )

    def is_open(self, level: LoopLevel) -> bool:
        """Whether statements are placed in `level` or in a loop inside it."""
        return level.depth < len(self.levels) and self.levels[level.depth] is level

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Place statements in level `depth`, as if the levels inside were not open yet."""
        inner = self.levels[depth + 1 :]
        del self.levels[depth + 1 :]
        yield
        self.levels.extend(inner)

    @contextmanager
    def open_level(self, *ranges: Range) -> Iterator[LoopLevel]:
        """Open one level for `ranges`; the caller makes the statement from it afterwards."""
        level = LoopLevel(len(self.levels))
        for r in ranges:
            self.defining_level[r.var] = level
            if isinstance(r.lo, int) and isinstance(r.hi, int):
                self.bounds[r.var] = (r.lo, max(r.lo, r.hi - 1))
            elif not variables(r.lo) and not variables(r.hi):
                self.bounds[r.var] = (r.lo, r.hi - 1)
        self.levels.append(level)
        yield level
        self.levels.pop()

    def add(self, stmt: Stmt) -> None:
        self.current_level.stmts.append(stmt)

    def bind_unless_trivial(self, value: Expr, prefix: str = "v") -> Expr:
        """`value` under a name, unless it is as cheap as one."""
        return value if isinstance(value, (Ref, Const, IndexValue)) else self.bind(value, prefix)

    def bind(self, value: Expr, prefix: str = "v") -> Ref:
        """`value` under a new name, in the outermost loop that knows it."""
        with self.at_depth(self.defining_depth(names_read(value))):
            name = self.fresh_name(prefix)
            self.add(Let(name, value))
            self.defining_level[name] = self.current_level
        return Ref(value.dtype, name)

    def lookup(self, key: Any) -> Any:
        """A value remembered in an open level, the innermost that knows one; None where none does."""
        known = [(level.depth, value) for level, value in self.memo.get(key, ()) if self.is_open(level)]
        return max(known, key=itemgetter(0))[1] if known else None

    def memoize(self, key: Any, value: Any) -> None:
        """From here on, inside this level, `key` stands for `value`."""
        self.memo.setdefault(key, []).append((self.current_level, value))

    def new_loops(
        self, prefix: str, extents: Sequence[Dim], steps: Sequence[Dim] | None = None
    ) -> tuple[list[Range], tuple[Dim, ...]]:
        """A loop for each extent but 1, of as many steps or of `steps`, and the point they are at."""
        counts = zip(extents, extents if steps is None else steps, strict=True)
        ranges = [Range(self.fresh_name(prefix), 0, n) for e, n in counts if e != 1]
        names = iter(ranges)
        return ranges, tuple(0 if e == 1 else var(next(names).var) for e in extents)

    def emit_loops(self, ranges: list[Range], parallel: bool, emit_body: Any) -> None:
        """Nested loops over `ranges` around what `fill()` adds."""
        if not ranges:
            emit_body()
            return
        with self.open_level(ranges[0]) as level:
            self.emit_loops(ranges[1:], parallel, emit_body)
        self.add(For(ranges[0], tuple(level.stmts), parallel))

    def build(self) -> Block:
        """The statements of the kernel."""
        return tuple(self.levels[0].stmts)


def cost_of(e: Expr) -> int:
    """Price of one evaluation of `e` in multiply-adds."""
    return sum(scalar.PRIMITIVES[x.primitive].cost for x in e.calls)
