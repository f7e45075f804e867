"""Tile IR's expressions as Triton source.

Inside tiled loops a value is a block with one axis for each of these loops it varies with.  An expression is written for
the axes of its result, and what it reads is stretched to them:

    %x[%i, %j] + %b[%j]      tl.load(x + i[:, None]*64 + j[None, :]) + tl.load(b + j[None, :])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.codegen.triton.triton_names import (
    ANY_DTYPE_FUNCTIONS,
    COMPARISONS,
    DTYPES,
    EXACT_FUNCTIONS,
    HELPERS,
    INFIX_OPERATORS,
    TRITON_FUNCTIONS,
    TritonError,
    literal,
)
from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, FloorDiv, Min, Var, format_index, map_atoms, operands
from compiler.ir.symbolic.index_expr import Dim, apply_compound, interval, var, variables
from compiler.ir.text.tile_printer import PRECEDENCE, UNARY_PRECEDENCE
from compiler.ir.tile.kernel import Kernel, Range
from compiler.ir.types import f32, f64

ATOM_PRECEDENCE = UNARY_PRECEDENCE + 1
"""How tightly names and calls bind."""

MAX_LINE_OPS = 12
"""Operations in one line of source."""


@dataclass(frozen=True)
class BlockValue:
    """A named value and the tiled loops it varies with, in the order of its axes."""

    name: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalBlock:
    """What a local buffer holds: a block, and the loop that walked each of its dimensions."""

    block: BlockValue
    dim_loops: tuple[Range, ...]


@dataclass(frozen=True)
class LoadedBlock:
    """The name of a block that was loaded, and what stands in it where its mask is false."""

    name: str
    other: str


BindFunction: TypeAlias = Callable[[str, tuple[str, ...], str], BlockValue]
"""Gives a text with these axes a name like the last argument."""


class TritonExprEmitter:
    """The values in scope, and how expressions over them are written."""

    def __init__(self, kernel: Kernel, params: Mapping[str, str], bind: BindFunction) -> None:
        self.params = params
        self.bind = bind
        self.types = {p.name: p.type for p in kernel.params}
        self.roles = {p.name: p.role for p in kernel.params}
        self.names: dict[str, BlockValue] = {}
        self.loaded_blocks: dict[str, LoadedBlock] = {}
        self.local_blocks: dict[str, LocalBlock] = {}
        self.local_scalars: dict[str, BlockValue] = {}  # the variable for each local buffer of rank 0
        self.loops: dict[str, Range] = {}  # every loop in scope, outermost first
        self.helpers: set[str] = set()

    # axes

    def axes(self, *exprs: Expr) -> tuple[str, ...]:
        """The tiled loops that a value varies with, outermost first."""
        found: set[str] = set()
        for x in (x for e in exprs for x in e.subexprs):
            if isinstance(x, Ref):
                found.update(self.names[x.name].axes)
            elif isinstance(x, Load) and x.buffer in self.local_scalars:
                found.update(self.local_scalars[x.buffer].axes)
            elif isinstance(x, Load):
                found.update(self.read_local(x).axes if x.buffer in self.local_blocks else self.index_axes(x.index))
            elif isinstance(x, IndexValue):
                found.update(self.index_axes((x.index,)))
        return self.in_loop_order(found)

    def index_axes(self, index: Iterable[Dim]) -> tuple[str, ...]:
        """The tiled loops that a place varies with."""
        return self.in_loop_order({a for d in index for v in variables(d) for a in self.names[v].axes})

    def in_loop_order(self, axes: Iterable[str]) -> tuple[str, ...]:
        found = set(axes)
        return tuple(v for v in self.loops if v in found)

    def shape(self, axes: Sequence[str]) -> str:
        """The extents of a block as a Python tuple."""
        return str(tuple(self.loops[a].tile for a in axes))

    def align_axes(self, block: BlockValue, axes: Sequence[str]) -> str:
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

    def index_text(self, d: Dim, axes: Sequence[str]) -> str:
        """An index expression; a division of what may be negative rounds down by a helper."""
        bounds = {v: (r.lo, r.hi - 1) for v, r in self.loops.items() if isinstance(r.lo, int) and isinstance(r.hi, int)}

        def atom(a: Atom) -> Dim:
            if isinstance(a, Var):
                return var(a.name)
            assert not isinstance(a, DynamicSize), f"the size {a} is open; specialise the graph first"
            x, y = operands(a)
            known = interval(x, bounds)
            if known is not None and known[0] >= 0 and not isinstance(a, Min):
                return apply_compound(a, x, y)
            function = "tl.minimum" if isinstance(a, Min) else "floordiv" if isinstance(a, FloorDiv) else "floormod"
            self.helpers |= set() if isinstance(a, Min) else {function, "floormod"}
            own = self.index_axes((x, y))
            block = self.bind(f"{function}({self.index_text(x, own)}, {self.index_text(y, own)})", own, "q")
            self.names[block.name] = block
            return var(block.name)

        return format_index(map_atoms(d, atom), lambda v: self.align_axes(self.names[v], axes))

    def bounds_tests(self, loops: Iterable[str], axes: Sequence[str]) -> list[str]:
        """The tests that partial blocks along `loops` have not ended."""
        return [
            f"{self.align_axes(self.names[v], axes)} < {self.loops[v].hi}"
            for v in loops
            if has_partial_block(self.loops[v])
        ]

    def pointer(self, buffer: str, index: Sequence[Dim], axes: Sequence[str]) -> str:
        """Where element `index` of a parameter lies, for every index of `axes`."""
        offset = self.types[buffer].offset(index)
        name = self.params[buffer]
        text = name if offset == 0 else f"{name} + {self.index_text(offset, axes)}"
        return text if set(self.index_axes((offset,))) == set(axes) else f"tl.broadcast_to({text}, {self.shape(axes)})"

    def load(self, e: Load, axes: Sequence[str], fill: Const | None = None) -> str:
        """A block of a parameter under a name; lanes beyond partial blocks hold `fill`, or anything."""
        varying_axes = self.axes(e)
        own = tuple(a for a in axes if a in varying_axes)
        pointer = self.pointer(e.buffer, e.index, own)
        tests = self.bounds_tests(varying_axes, own)
        if e.mask is not None:
            tests.append(self.expr_text(e.mask, own))
        other = (
            self.expr_text(e.other, own) if e.other is not None else literal(fill) if tests and fill is not None else ""
        )
        text = f"{pointer}{', mask=' + conjunction(tests) if tests else ''}"
        earlier = self.loaded_blocks.get(text)
        if earlier is not None and other in ("", earlier.other):
            return self.align_axes(BlockValue(earlier.name, own), axes)
        filled = f"{text}, other={other}" if other else text
        block = self.bind(f"tl.load({filled})", own, f"{self.params[e.buffer]}_block")
        if self.roles[e.buffer] in ("in", "const"):
            self.loaded_blocks[text] = LoadedBlock(block.name, other)
        return self.align_axes(block, axes)

    def read_local(self, e: Load) -> BlockValue:
        """A local buffer's block, its axes those of the loops it is read in."""
        local = self.local_blocks[e.buffer]
        renamed: dict[str, str] = {}
        for walked, d in zip(local.dim_loops, e.index, strict=True):
            read = self.loops.get(str(d))
            if read is None or read.with_(var=walked.var) != walked or read.var in renamed.values():
                raise TritonError(f"local %{e.buffer}: {d} does not walk it as %{walked.var} did; run gpu-rows")
            renamed[walked.var] = read.var
        return BlockValue(local.block.name, tuple(renamed.get(a, a) for a in local.block.axes))

    # expressions

    def expr_text(self, e: Expr, axes: Sequence[str], precedence: int = 0) -> str:
        """`e` for a result with `axes`, in brackets where it binds less tightly than `level`."""
        text, binding = self.text_and_precedence(e, axes)
        return f"({text})" if binding < precedence else text

    def text_and_precedence(self, e: Expr, axes: Sequence[str]) -> tuple[str, int]:
        """`e` and how tightly its outermost operation binds."""
        match e:
            case Const():
                return literal(e), ATOM_PRECEDENCE
            case Ref():
                return self.align_axes(self.names[e.name], axes), ATOM_PRECEDENCE
            case IndexValue():
                return f"tl.cast({self.index_text(e.index, axes)}, tl.int64)", ATOM_PRECEDENCE
            case Load():
                if e.buffer in self.local_scalars:
                    return self.align_axes(self.local_scalars[e.buffer], axes), ATOM_PRECEDENCE
                if e.buffer not in self.local_blocks:
                    return self.load(e, axes), ATOM_PRECEDENCE
                value = self.align_axes(self.read_local(e), axes)
                if e.mask is None:
                    return value, ATOM_PRECEDENCE
                other = self.expr_text(e.other, axes) if e.other is not None else "0"
                return f"tl.where({self.expr_text(e.mask, axes)}, {value}, {other})", ATOM_PRECEDENCE
            case PrimitiveCall():
                return self.call_text(e, axes)
        raise TritonError(f"{type(e).__name__} has no value in a kernel")

    def call_text(self, e: PrimitiveCall, axes: Sequence[str]) -> tuple[str, int]:
        """A primitive applied to its arguments, and how tightly it binds."""
        dtype = DTYPES[e.dtype.name][0]

        def argument(k: int, level: int = 0) -> str:
            return self.argument_text(e, k, axes, level)

        match e.primitive:
            case "cast":
                return f"{argument(0, ATOM_PRECEDENCE)}.to({dtype})", ATOM_PRECEDENCE
            case "bitcast":
                return f"{argument(0, ATOM_PRECEDENCE)}.to({dtype}, bitcast=True)", ATOM_PRECEDENCE
            case "lshr":
                bits = f"{argument(0, ATOM_PRECEDENCE)}.to(tl.uint{e.dtype.bits}, bitcast=True)"
                return f"({bits} >> {argument(1, ATOM_PRECEDENCE)}).to({dtype}, bitcast=True)", ATOM_PRECEDENCE
            case "neg":
                return f"-{argument(0, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
            case "not":
                return f"~{argument(0, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
        exact = EXACT_FUNCTIONS.get(e.primitive) if e.dtype == f32 else None
        if e.primitive in INFIX_OPERATORS and not exact:
            sign = INFIX_OPERATORS[e.primitive]
            level = PRECEDENCE.get(sign, PRECEDENCE["*"])
            left = argument(0, level + (e.primitive in COMPARISONS))
            right = argument(1, level + (e.primitive not in ("add", "mul", "and", "or", "xor")))
            return f"{left} {'//' if sign == '/' and e.dtype.is_integer else sign} {right}", level
        function = exact or TRITON_FUNCTIONS.get(e.primitive)
        if function is None or not (e.dtype in (f32, f64) or e.primitive in ANY_DTYPE_FUNCTIONS):
            raise TritonError(f"Triton has no {e.primitive} of {e.dtype}")
        self.helpers |= {function} & HELPERS.keys()
        return f"{function}({', '.join(argument(k) for k in range(len(e.operands)))})", ATOM_PRECEDENCE

    def argument_text(self, call: PrimitiveCall, k: int, axes: Sequence[str], level: int = 0) -> str:
        """Operand `k` of `user`: a constant carries its dtype where no neighbour tells, an index that is compared none."""
        e = call.operands[k]
        if call.primitive in COMPARISONS and all(isinstance(x, (IndexValue, Const)) for x in call.operands):
            return self.index_text(e.index, axes) if isinstance(e, IndexValue) else self.expr_text(e, axes)
        needs_dtype = all(isinstance(x, Const) or x.dtype != e.dtype for x in call.operands)
        if isinstance(e, Const) and (needs_dtype or TRITON_FUNCTIONS.get(call.primitive, "").startswith("libdevice")):
            return literal(e, typed=True)
        return self.expr_text(e, axes, level)

    def masked_text(self, e: Expr, axes: tuple[str, ...], own: Iterable[str], fill: Const) -> str:
        """`e` at every index of `axes`, and `fill` beyond the ends of the loops `own`."""
        partial = [v for v in own if has_partial_block(self.loops[v])]
        needs_broadcast = set(self.axes(e)) != set(axes)
        if (
            partial
            and not needs_broadcast
            and isinstance(e, Load)
            and e.buffer not in self.local_blocks
            and e.mask is None
        ):
            return self.load(e, axes, fill)
        if isinstance(e, Const):
            text = f"tl.full({self.shape(axes)}, {literal(e)}, {DTYPES[e.dtype.name][0]})"
        else:
            text = self.expr_text(e, axes)
            text = f"tl.broadcast_to({text}, {self.shape(axes)})" if needs_broadcast else text
        return (
            f"tl.where({conjunction(self.bounds_tests(partial, axes))}, {text}, {literal(fill)})" if partial else text
        )

    def bind_long_parts(self, e: Expr) -> Expr:
        """`e` with what is used twice, or would make a long line, bound to names."""
        uses: dict[int, int] = {}
        for a in (a for x in e.subexprs for a in x.args):
            uses[id(a)] = uses.get(id(a), 0) + 1
        memo: dict[int, Expr] = {}
        size: dict[int, int] = {}
        for x in e.subexprs:
            new = scalar.with_args(x, tuple(memo[id(a)] for a in x.args))
            count = (3 if isinstance(x, Load) else 1) + sum(size[id(a)] for a in x.args)
            if isinstance(x, PrimitiveCall) and x is not e and (uses[id(x)] > 1 or count > MAX_LINE_OPS):
                axes = self.axes(new)
                block = self.bind(self.expr_text(new, axes), axes, "t")
                self.names[block.name] = block
                new, count = Ref(x.dtype, block.name), 1
            memo[id(x)], size[id(x)] = new, count
        return memo[id(e)]


def conjunction(tests: Sequence[str]) -> str:
    """The conjunction of some tests."""
    return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)


def has_partial_block(r: Range) -> bool:
    """Whether the last block of a tiled loop reaches beyond its end."""
    return not isinstance(r.extent, int) or r.extent % r.tile != 0


def is_single_block(r: Range) -> bool:
    """Whether one block covers the loop."""
    return isinstance(r.extent, int) and 0 < r.extent <= r.tile
