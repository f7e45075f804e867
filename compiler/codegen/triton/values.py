"""Tile IR's expressions as Triton source.

Inside tiled loops a value is a block with one axis for each of these loops it varies with.  An expression is written for
the axes of its result, and what it reads is stretched to them:

    %x[%i, %j] + %b[%j]      tl.load(x + i[:, None]*64 + j[None, :]) + tl.load(b + j[None, :])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.codegen.triton.vocabulary import (
    ANY_DTYPE,
    COMPARISONS,
    DTYPES,
    EXACT,
    FUNCTIONS,
    HELPERS,
    INFIX,
    TritonError,
    literal,
)
from compiler.ir import scalar
from compiler.ir.atoms import Atom, FloorDiv, Min, Size, Var, operands, rebuild, spell
from compiler.ir.index import Dim, combine, interval, var, variables
from compiler.ir.scalar import Call, Const, Expr, IndexValue, Load, Ref
from compiler.ir.tile import Kernel, Range
from compiler.ir.tile_printer import PRECEDENCE, UNARY
from compiler.ir.types import f32, f64

ATOM = UNARY + 1
"""How tightly names and calls bind."""

LONG = 12
"""Operations in one line of source."""


@dataclass(frozen=True)
class Block:
    """A named value and the tiled loops it varies with, in the order of its axes."""

    name: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What a local buffer holds: a block, and the loop that walked each of its dimensions."""

    block: Block
    walked: tuple[Range, ...]


@dataclass(frozen=True)
class Loaded:
    """The name of a block that was loaded, and what stands in it where its mask is false."""

    name: str
    other: str


Bind: TypeAlias = Callable[[str, tuple[str, ...], str], Block]
"""Gives a text with these axes a name like the last argument."""


class Values:
    """The values in scope, and how expressions over them are written."""

    def __init__(self, kernel: Kernel, params: Mapping[str, str], bind: Bind) -> None:
        self.params = params
        self.bind = bind
        self.types = {p.name: p.type for p in kernel.params}
        self.roles = {p.name: p.role for p in kernel.params}
        self.names: dict[str, Block] = {}
        self.loaded: dict[str, Loaded] = {}
        self.rows: dict[str, Row] = {}
        self.scalars: dict[str, Block] = {}  # the variable for each local buffer of rank 0
        self.loops: dict[str, Range] = {}  # every loop in scope, outermost first
        self.helpers: set[str] = set()

    # axes

    def axes(self, *exprs: Expr) -> tuple[str, ...]:
        """The tiled loops that a value varies with, outermost first."""
        found: set[str] = set()
        for x in (x for e in exprs for x in e.parts):
            if isinstance(x, Ref):
                found.update(self.names[x.name].axes)
            elif isinstance(x, Load) and x.buffer in self.scalars:
                found.update(self.scalars[x.buffer].axes)
            elif isinstance(x, Load):
                found.update(self.read_row(x).axes if x.buffer in self.rows else self.axes_at(x.index))
            elif isinstance(x, IndexValue):
                found.update(self.axes_at((x.index,)))
        return self.ordered(found)

    def axes_at(self, index: Iterable[Dim]) -> tuple[str, ...]:
        """The tiled loops that a place varies with."""
        return self.ordered({a for d in index for v in variables(d) for a in self.names[v].axes})

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        found = set(axes)
        return tuple(v for v in self.loops if v in found)

    def shape(self, axes: Sequence[str]) -> str:
        """The extents of a block as a Python tuple."""
        return str(tuple(self.loops[a].tile for a in axes))

    def spread(self, block: Block, axes: Sequence[str]) -> str:
        """A block with its axes where `axes` has them, and axes of extent 1 for the others."""
        if not block.axes:
            return block.name
        order = [a for a in axes if a in block.axes]
        text = block.name
        if len(order) != len(block.axes):
            raise TritonError(f"{block.name} varies with {', '.join(block.axes)}, its use with {', '.join(axes)}")
        if order != list(block.axes):
            text = f"tl.permute({text}, {tuple(block.axes.index(a) for a in order)})"
        if len(order) == len(axes):
            return text
        return f"{text}[{', '.join(':' if a in order else 'None' for a in axes)}]"

    # places

    def dim(self, d: Dim, axes: Sequence[str]) -> str:
        """An index expression; a division of what may be negative rounds down by a helper."""
        bounds = {v: (r.lo, r.hi - 1) for v, r in self.loops.items() if isinstance(r.lo, int) and isinstance(r.hi, int)}

        def atom(a: Atom) -> Dim:
            if isinstance(a, Var):
                return var(a.name)
            assert not isinstance(a, Size), f"the size {a} is open; specialise the graph first"
            x, y = operands(a)
            known = interval(x, bounds)
            if known is not None and known[0] >= 0 and not isinstance(a, Min):
                return combine(a, x, y)
            function = "tl.minimum" if isinstance(a, Min) else "floordiv" if isinstance(a, FloorDiv) else "floormod"
            self.helpers |= set() if isinstance(a, Min) else {function, "floormod"}
            own = self.axes_at((x, y))
            block = self.bind(f"{function}({self.dim(x, own)}, {self.dim(y, own)})", own, "q")
            self.names[block.name] = block
            return var(block.name)

        return spell(rebuild(d, atom), lambda v: self.spread(self.names[v], axes))

    def inside(self, loops: Iterable[str], axes: Sequence[str]) -> list[str]:
        """The tests that partial blocks along `loops` have not ended."""
        return [f"{self.spread(self.names[v], axes)} < {self.loops[v].hi}" for v in loops if is_partial(self.loops[v])]

    def pointer(self, buffer: str, index: Sequence[Dim], axes: Sequence[str]) -> str:
        """Where element `index` of a parameter lies, for every index of `axes`."""
        offset = self.types[buffer].offset(index)
        name = self.params[buffer]
        text = name if offset == 0 else f"{name} + {self.dim(offset, axes)}"
        return text if set(self.axes_at((offset,))) == set(axes) else f"tl.broadcast_to({text}, {self.shape(axes)})"

    def load(self, e: Load, axes: Sequence[str], fill: Const | None = None) -> str:
        """A block of a parameter under a name; lanes beyond partial blocks hold `fill`, or anything."""
        varied = self.axes(e)
        own = tuple(a for a in axes if a in varied)
        pointer = self.pointer(e.buffer, e.index, own)
        tests = self.inside(varied, own)
        if e.mask is not None:
            tests.append(self.text(e.mask, own))
        other = self.text(e.other, own) if e.other is not None else literal(fill) if tests and fill is not None else ""
        text = f"{pointer}{', mask=' + every(tests) if tests else ''}"
        known = self.loaded.get(text)
        if known is not None and other in ("", known.other):
            return self.spread(Block(known.name, own), axes)
        filled = f"{text}, other={other}" if other else text
        block = self.bind(f"tl.load({filled})", own, f"{self.params[e.buffer]}_block")
        if self.roles[e.buffer] in ("in", "const"):
            self.loaded[text] = Loaded(block.name, other)
        return self.spread(block, axes)

    def read_row(self, e: Load) -> Block:
        """A local buffer's block, its axes those of the loops it is read in."""
        row = self.rows[e.buffer]
        moved: dict[str, str] = {}
        for walked, d in zip(row.walked, e.index, strict=True):
            read = self.loops.get(str(d))
            if read is None or read.with_(var=walked.var) != walked or read.var in moved.values():
                raise TritonError(f"local %{e.buffer}: {d} does not walk it as %{walked.var} did; run gpu-rows")
            moved[walked.var] = read.var
        return Block(row.block.name, tuple(moved.get(a, a) for a in row.block.axes))

    # expressions

    def text(self, e: Expr, axes: Sequence[str], level: int = 0) -> str:
        """`e` for a result with `axes`, in brackets where it binds less tightly than `level`."""
        text, binding = self.spelled(e, axes)
        return f"({text})" if binding < level else text

    def spelled(self, e: Expr, axes: Sequence[str]) -> tuple[str, int]:
        """`e` and how tightly its outermost operation binds."""
        match e:
            case Const():
                return literal(e), ATOM
            case Ref():
                return self.spread(self.names[e.name], axes), ATOM
            case IndexValue():
                return f"tl.cast({self.dim(e.index, axes)}, tl.int64)", ATOM
            case Load():
                if e.buffer in self.scalars:
                    return self.spread(self.scalars[e.buffer], axes), ATOM
                if e.buffer not in self.rows:
                    return self.load(e, axes), ATOM
                value = self.spread(self.read_row(e), axes)
                if e.mask is None:
                    return value, ATOM
                other = self.text(e.other, axes) if e.other is not None else "0"
                return f"tl.where({self.text(e.mask, axes)}, {value}, {other})", ATOM
            case Call():
                return self.call(e, axes)
        raise TritonError(f"{type(e).__name__} has no value in a kernel")

    def call(self, e: Call, axes: Sequence[str]) -> tuple[str, int]:
        """A primitive applied to its arguments, and how tightly it binds."""
        dtype = DTYPES[e.dtype.name][0]

        def argument(k: int, level: int = 0) -> str:
            return self.argument(e, k, axes, level)

        match e.primitive:
            case "cast":
                return f"{argument(0, ATOM)}.to({dtype})", ATOM
            case "bitcast":
                return f"{argument(0, ATOM)}.to({dtype}, bitcast=True)", ATOM
            case "lshr":
                bits = f"{argument(0, ATOM)}.to(tl.uint{e.dtype.bits}, bitcast=True)"
                return f"({bits} >> {argument(1, ATOM)}).to({dtype}, bitcast=True)", ATOM
            case "neg":
                return f"-{argument(0, UNARY)}", UNARY
            case "not":
                return f"~{argument(0, UNARY)}", UNARY
        exact = EXACT.get(e.primitive) if e.dtype == f32 else None
        if e.primitive in INFIX and not exact:
            sign = INFIX[e.primitive]
            level = PRECEDENCE.get(sign, PRECEDENCE["*"])
            left = argument(0, level + (e.primitive in COMPARISONS))
            right = argument(1, level + (e.primitive not in ("add", "mul", "and", "or", "xor")))
            return f"{left} {'//' if sign == '/' and e.dtype.is_integer else sign} {right}", level
        function = exact or FUNCTIONS.get(e.primitive)
        if function is None or not (e.dtype in (f32, f64) or e.primitive in ANY_DTYPE):
            raise TritonError(f"Triton has no {e.primitive} of {e.dtype}")
        self.helpers |= {function} & HELPERS.keys()
        return f"{function}({', '.join(argument(k) for k in range(len(e.operands)))})", ATOM

    def argument(self, user: Call, k: int, axes: Sequence[str], level: int = 0) -> str:
        """Operand `k` of `user`: a constant carries its dtype where no neighbour tells, an index that is compared none."""
        e = user.operands[k]
        if user.primitive in COMPARISONS and all(isinstance(x, (IndexValue, Const)) for x in user.operands):
            return self.dim(e.index, axes) if isinstance(e, IndexValue) else self.text(e, axes)
        alone = all(isinstance(x, Const) or x.dtype != e.dtype for x in user.operands)
        if isinstance(e, Const) and (alone or FUNCTIONS.get(user.primitive, "").startswith("libdevice")):
            return literal(e, typed=True)
        return self.text(e, axes, level)

    def guarded(self, e: Expr, axes: tuple[str, ...], own: Iterable[str], fill: Const) -> str:
        """`e` at every index of `axes`, and `fill` beyond the ends of the loops `own`."""
        partial = [v for v in own if is_partial(self.loops[v])]
        stretched = set(self.axes(e)) != set(axes)
        if partial and not stretched and isinstance(e, Load) and e.buffer not in self.rows and e.mask is None:
            return self.load(e, axes, fill)
        if isinstance(e, Const):
            text = f"tl.full({self.shape(axes)}, {literal(e)}, {DTYPES[e.dtype.name][0]})"
        else:
            text = self.text(e, axes)
            text = f"tl.broadcast_to({text}, {self.shape(axes)})" if stretched else text
        return f"tl.where({every(self.inside(partial, axes))}, {text}, {literal(fill)})" if partial else text

    def short(self, e: Expr) -> Expr:
        """`e` with what is used twice, or would make a long line, bound to names."""
        uses: dict[int, int] = {}
        for a in (a for x in e.parts for a in x.args):
            uses[id(a)] = uses.get(id(a), 0) + 1
        memo: dict[int, Expr] = {}
        size: dict[int, int] = {}
        for x in e.parts:
            new = scalar.with_args(x, tuple(memo[id(a)] for a in x.args))
            count = (3 if isinstance(x, Load) else 1) + sum(size[id(a)] for a in x.args)
            if isinstance(x, Call) and x is not e and (uses[id(x)] > 1 or count > LONG):
                axes = self.axes(new)
                block = self.bind(self.text(new, axes), axes, "t")
                self.names[block.name] = block
                new, count = Ref(x.dtype, block.name), 1
            memo[id(x)], size[id(x)] = new, count
        return memo[id(e)]


def every(tests: Sequence[str]) -> str:
    """The conjunction of some tests."""
    return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)


def is_partial(r: Range) -> bool:
    """Whether the last block of a tiled loop reaches beyond its end."""
    return not isinstance(r.extent, int) or r.extent % r.tile != 0


def is_whole(r: Range) -> bool:
    """Whether one block covers the loop."""
    return isinstance(r.extent, int) and 0 < r.extent <= r.tile
