"""Builder of Tile IR loop nests: a stack of open loops, into which statements are placed as far out as possible.

A value that depends only on outer loops is placed between those loops and the inner ones, so hoisting needs no pass of
its own: a row maximum is placed in the row loop, before the loop over columns that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from compiler.ir.scalar import Const, Expr, IndexValue, Ref
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile.contraction import uncast
from compiler.ir.tile.kernel import Block, For, Let, Range, Stmt
from compiler.ir.tile.uses import names_read


@dataclass(eq=False)
class LoopLevel:
    """One open loop, or the kernel body at depth 0, and its statements so far."""

    depth: int = 0
    stmts: list[Stmt] = field(default_factory=list)


@dataclass
class LoopNestBuilder:
    """The open loops, outermost first.  No fresh name is one of `reserved_names`, the dynamic sizes.

    `bounds` gives the inclusive bounds of loop variables, `definitions` the values of bound names; `memo` the values valid
    inside a level, by key.
    """

    reserved_names: frozenset[str] = frozenset()
    levels: list[LoopLevel] = field(default_factory=lambda: [LoopLevel()])
    defining_level: dict[str, LoopLevel] = field(default_factory=dict)  # by name
    bounds: dict[str, tuple[Dim, Dim]] = field(default_factory=dict)
    definitions: dict[str, Expr] = field(default_factory=dict)
    name_counts: dict[str, int] = field(default_factory=dict)
    memo: dict[Any, list[tuple[LoopLevel, Any]]] = field(default_factory=dict)

    @property
    def current_level(self) -> LoopLevel:
        """The innermost open level."""
        return self.levels[-1]

    def fresh_name(self, prefix: str) -> str:
        """Return a new name: `prefix` and a number."""
        n = self.name_counts.get(prefix, 0)
        while f"{prefix}{n}" in self.reserved_names:
            n += 1
        self.name_counts[prefix] = n + 1
        return f"{prefix}{n}"

    def defining_depth(self, names: Iterable[str]) -> int:
        """Return the depth of the innermost open level that defines one of `names`; 0 if there is none."""
        levels = (level for n in names if (level := self.defining_level.get(n)) and self.is_open(level))
        return max((level.depth for level in levels), default=0)

    def is_open(self, level: LoopLevel) -> bool:
        """Return True if `level` is on the stack of open levels."""
        return level.depth < len(self.levels) and self.levels[level.depth] is level

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Place statements in level `depth`; the levels inside are suspended meanwhile."""
        inner = self.levels[depth + 1 :]
        del self.levels[depth + 1 :]
        yield
        self.levels.extend(inner)

    @contextmanager
    def open_level(self, *ranges: Range) -> Iterator[LoopLevel]:
        """Open one level for `ranges`; the caller builds the loop statement from the level afterwards."""
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
        """Append a statement to the current level."""
        self.current_level.stmts.append(stmt)

    def bind_unless_trivial(self, value: Expr, prefix: str = "v") -> Expr:
        """Return `value` if it is a name, constant or index, as an integer of any width, else bind it to a new name."""
        plain = uncast(value) if value.dtype.is_integer else value
        trivial = isinstance(value, (Ref, Const)) or isinstance(plain, IndexValue)
        return value if trivial else self.bind(value, prefix)

    def bind(self, value: Expr, prefix: str = "v") -> Ref:
        """Bind `value` to a new name in the outermost level where its operands are defined."""
        with self.at_depth(self.defining_depth(names_read(value))):
            name = self.fresh_name(prefix)
            self.add(Let(name, value))
            self.defining_level[name] = self.current_level
            self.definitions[name] = value
        return Ref(value.dtype, name)

    def lookup(self, key: Any) -> Any:
        """Return the value memoized for `key` in the innermost open level that has one, or None."""
        valid = [(level.depth, value) for level, value in self.memo.get(key, ()) if self.is_open(level)]
        return max(valid, key=itemgetter(0))[1] if valid else None

    def memoize(self, key: Any, value: Any) -> None:
        """Memoize `value` for `key` while the current level is open."""
        self.memo.setdefault(key, []).append((self.current_level, value))

    def new_loops(
        self, prefix: str, extents: Sequence[Dim], steps: Sequence[Dim] | None = None
    ) -> tuple[list[Range], tuple[Dim, ...]]:
        """Return ranges for the extents other than 1, and the index of one iteration, with 0 for extents of 1.

        The ranges have the extents `steps` if given, so that several nests can share the form of one index.
        """
        counts = zip(extents, extents if steps is None else steps, strict=True)
        ranges = [Range(self.fresh_name(prefix), 0, n) for e, n in counts if e != 1]
        names = iter(ranges)
        return ranges, tuple(0 if e == 1 else var(next(names).var) for e in extents)

    def emit_loops(self, ranges: Sequence[Range], parallel: bool, emit_body: Callable[[], None]) -> None:
        """Add nested loops over `ranges` around the statements that `emit_body()` adds."""
        if not ranges:
            emit_body()
            return
        with self.open_level(ranges[0]) as level:
            self.emit_loops(ranges[1:], parallel, emit_body)
        self.add(For(ranges[0], tuple(level.stmts), parallel))

    def build(self) -> Block:
        """Return the statements of the kernel."""
        return tuple(self.levels[0].stmts)
