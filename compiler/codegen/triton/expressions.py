"""Tile IR's expressions as Triton source.

Inside tiled loops a value is a block with one axis for each loop that it varies with.  An expression is written for the
axes of its result, and its operands are broadcast to them:

    %x[%i, %j] + %b[%j]      tl.load(x + i[:, None]*64 + j[None, :]) + tl.load(b + j[None, :])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from compiler.analysis.contiguous_loops import contiguous_loops
from compiler.analysis.index_width import has_long_indices
from compiler.codegen.triton.descriptors import TensorDescriptors
from compiler.codegen.triton.reductions import is_short
from compiler.codegen.triton.source_scopes import INNERMOST
from compiler.codegen.triton.triton_names import (
    ANY_DTYPE_FUNCTIONS,
    COMPARISONS,
    EXACT_FUNCTIONS,
    HELPERS,
    INFIX_OPERATORS,
    TRITON_FUNCTIONS,
    TritonError,
    dtype_names,
    literal,
)
from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, FloorDiv, Min, Var, format_index, map_atoms, operands
from compiler.ir.symbolic.index_expr import Bounds, Dim, apply_compound, interval, substitute, var, variables
from compiler.ir.text.tile_printer import PRECEDENCE, UNARY_PRECEDENCE
from compiler.ir.tile.kernel import Kernel, Range
from compiler.ir.types import f32, f64

ATOM_PRECEDENCE = UNARY_PRECEDENCE + 1
"""Precedence of names and calls."""

MAX_LINE_OPS = 12
"""Most operations in one line of source, for readability."""


@dataclass(frozen=True)
class BlockValue:
    """A named value.

    `axes` are the variables of the tiled loops that it varies with, in order.  It is known from loops of `depth` on.
    """

    name: str
    axes: tuple[str, ...] = ()
    depth: int = 0


@dataclass(frozen=True)
class LocalBlock:
    """Contents of a local buffer: a block, and the loop over each of its dimensions when it was stored."""

    block: BlockValue
    dim_loops: tuple[Range, ...]


@dataclass(frozen=True)
class LoadedBlock:
    """A block that has been loaded, and the text of its value where the mask is false ("": undefined)."""

    block: BlockValue
    other: str


class BindFunction(Protocol):
    """Binds a text with the given axes to a name that resembles another one, where everything at `depth` is known."""

    def __call__(self, text: str, axes: tuple[str, ...], name: str, depth: int) -> BlockValue: ...


class TritonExprEmitter:
    """The values in scope; writes expressions over them."""

    def __init__(self, kernel: Kernel, descriptors: TensorDescriptors, bind: BindFunction) -> None:
        self.params = descriptors.params
        self.descriptors = descriptors
        self.bind = bind
        self.types = {p.name: p.type for p in kernel.params}
        self.param_depths = {p.name: INNERMOST if p.is_written else 0 for p in kernel.params}
        self.names: dict[str, BlockValue] = {}  # of lets, loop variables, sizes (`size_key`) and starts (`start_key`)
        self.loaded_blocks: dict[str, LoadedBlock] = {}
        self.local_blocks: dict[str, LocalBlock] = {}
        self.local_scalars: dict[str, BlockValue] = {}  # the variable of each local buffer of rank 0
        self.loops: dict[str, Range] = {}  # all loops in scope, outermost first
        self.starts: dict[str, str] = {}  # first index of each loop's block
        self.partial_loops: set[str] = set()  # those whose last block may be partial
        self.helpers: set[str] = set()
        self.products: set[str] = set()  # results of tl.dot
        self.last_axes = contiguous_loops(kernel)
        self.has_long_indices = has_long_indices(kernel)

    def enter_loop(self, r: Range) -> None:
        """Bring a loop into scope."""
        self.loops[r.var] = r
        self.partial_loops -= {r.var}
        self.partial_loops |= {r.var} if has_partial_block(r) else set()

    # axes

    def axes(self, *exprs: Expr) -> tuple[str, ...]:
        """Return the tiled loops that any of `exprs` varies with, outermost first."""
        return self.in_loop_order(a for value in self.values_read(*exprs) for a in value.axes)

    def depth(self, *exprs: Expr) -> int:
        """Return the depth in the source at which all that `exprs` read is known."""
        written = (self.param_depths.get(x.buffer, 0) for e in exprs for x in e.loads)
        return max((*written, *(value.depth for value in self.values_read(*exprs))), default=0)

    def values_read(self, *exprs: Expr) -> Iterator[BlockValue]:
        """Yield the named values that `exprs` are computed from."""
        for x in (x for e in exprs for x in e.subexprs):
            if isinstance(x, Ref):
                yield self.names[x.name]
            elif isinstance(x, Load) and x.buffer in self.local_scalars:
                yield self.local_scalars[x.buffer]
            elif isinstance(x, Load) and x.buffer in self.local_blocks:
                yield self.read_local(x)
            elif isinstance(x, Load):
                yield from self.index_values(x.index)
            elif isinstance(x, IndexValue):
                yield from self.index_values((x.index,))

    def index_values(self, index: Iterable[Dim]) -> Iterator[BlockValue]:
        """Yield the values of the loop variables in an index."""
        yield from (self.names[v] for d in index for v in variables(d))

    def index_depth(self, index: Iterable[Dim]) -> int:
        """Return the depth in the source at which an index is known."""
        return max((value.depth for value in self.index_values(index)), default=0)

    def index_axes(self, index: Iterable[Dim]) -> tuple[str, ...]:
        """Return the tiled loops that an index varies with, outermost first."""
        return self.in_loop_order(a for value in self.index_values(index) for a in value.axes)

    def in_loop_order(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return `axes` outermost first, each once; loops along which results are contiguous follow other parallel loops."""
        unordered = set(axes)
        ordered = [v for v in self.loops if v in unordered]
        parallel = [v for v in ordered if v in self.last_axes]
        swapped = iter(sorted(parallel, key=self.last_axes.__getitem__))
        return tuple(next(swapped) if v in self.last_axes else v for v in ordered)

    def shape(self, axes: Sequence[str]) -> str:
        """Return the extents of a block as a Python tuple."""
        return str(tuple(self.loops[a].tile for a in axes))

    def size(self, axes: Sequence[str]) -> int:
        """Return the number of elements of a block."""
        return prod(self.loops[a].tile for a in axes)

    def align_axes(self, block: BlockValue, axes: Sequence[str]) -> str:
        """Return a block permuted and expanded to `axes`: axes that it lacks get extent 1."""
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

    # memory

    def index_text(self, d: Dim, axes: Sequence[str]) -> str:
        """Return an index expression; divisions whose dividend may be negative call a helper that rounds down."""
        bounds = self.index_bounds()

        def expand_atom(a: Atom) -> Dim:
            if isinstance(a, Var):
                return var(a.name)
            if isinstance(a, DynamicSize):
                return var(size_key(a.name))
            num, den = operands(a)
            num_bounds = interval(num, bounds)
            x, y = map_atoms(num, expand_atom), map_atoms(den, expand_atom)
            if num_bounds is not None and num_bounds[0] >= 0 and not isinstance(a, Min):
                return apply_compound(a, x, y)
            function = "tl.minimum" if isinstance(a, Min) else "floordiv" if isinstance(a, FloorDiv) else "floormod"
            self.helpers |= set() if isinstance(a, Min) else {function, "floormod"}
            own = self.index_axes((x, y))
            text = f"{function}({self.format_index(x, own)}, {self.format_index(y, own)})"
            block = self.bind(text, own, "q", self.index_depth((x, y)))
            self.names[block.name] = block
            return var(block.name)

        return self.format_index(map_atoms(d, expand_atom), axes)

    def index_bounds(self) -> Bounds:
        """Return inclusive constant bounds of the loop variables in scope, partial blocks cut off."""
        bounds: dict[str, tuple[Dim, Dim]] = {}
        for v, r in self.loops.items():
            low, high = interval(r.lo, bounds), interval(r.hi - 1, bounds)
            if low and high:
                bounds[v] = (low[0], high[1])
        return bounds

    def runs_always(self, r: Range) -> bool:
        """Return True if a loop inside those in scope has at least one iteration."""
        extent = interval(r.extent, self.index_bounds())
        return extent is not None and extent[0] > 0

    def is_single_block(self, r: Range) -> bool:
        """Return True if one block covers a loop inside those in scope, which has at least one iteration."""
        extent = interval(r.extent, self.index_bounds())
        return extent is not None and extent[0] > 0 and extent[1] <= r.tile

    def format_index(self, d: Dim, axes: Sequence[str]) -> str:
        """Return the text of an index expression over names in scope."""
        return format_index(d, lambda v: self.align_axes(self.names[v], axes))

    def bounds_tests(self, loops: Iterable[str], axes: Sequence[str]) -> list[str]:
        """Return the tests that indices of partial blocks along `loops` are inside the extent."""
        return [
            f"{self.align_axes(self.names[v], axes)} < {self.index_text(self.loops[v].hi, axes)}"
            for v in loops
            if v in self.partial_loops
        ]

    def mask_argument(self, axes: Sequence[str]) -> str:
        """Return the mask argument of a store over `axes`; "" if no block is partial."""
        tests = self.bounds_tests(axes, axes)
        return f", mask={conjunction(tests)}" if tests else ""

    def pointer(self, buffer: str, offset: Dim, axes: Sequence[str]) -> str:
        """Return the block of pointers to the elements of a parameter at `offset`, over `axes`."""
        name = self.params[buffer]
        text = name if offset == 0 else f"{name} + {self.index_text(offset, axes)}"
        return text if set(self.index_axes((offset,))) == set(axes) else f"tl.broadcast_to({text}, {self.shape(axes)})"

    def merge_axes(self, offset: Dim, axes: tuple[str, ...]) -> tuple[Dim, tuple[str, ...]]:
        """Return an offset and its axes, the last two as one where the last is a window and windows follow each other.

        x + i[:, None]*2 + k[None, :]  ->  x + i_k, of which a thread loads several windows at once
        """
        if len(axes) < 2 or self.has_long_indices or not is_short(self.loops[axes[-1]]):
            return offset, axes
        outer, inner = (self.loops[v] for v in axes[-2:])
        count, rest = inner.tile, substitute(offset, {outer.var: 0, inner.var: 0})
        if offset - rest != var(outer.var) * count + var(inner.var):
            return offset, axes
        start = self.starts[outer.var]
        first = f"{start if start.isidentifier() else f'({start})'}*{count} + " if start != "0" else ""
        text = f"{first}tl.arange(0, {outer.tile * count})"
        merged = f"{text} < {outer.hi * count}"
        if merged not in self.loops:  # as a loop over both
            self.enter_loop(Range(merged, outer.lo * count, outer.hi * count, outer.tile * count))
            depth = max(self.names[v].depth for v in axes[-2:])
            self.names[merged] = self.bind(text, (merged,), f"{outer.var}_{inner.var}", depth)
        return rest + var(merged), (*axes[:-2], merged)

    def load(self, e: Load, axes: Sequence[str], fill: Const | None = None) -> str:
        """Load a block of a parameter; elements outside a partial block hold `fill`, or are undefined if it is None."""
        if box := self.descriptors.box_of(e, self.loops.values(), fill):
            text = self.descriptors.box_text(e, box, lambda d: self.index_text(d, ()))
            return self.align_axes(self.bind_load(e, text, box.axes, text), axes)
        varying_axes = self.axes(e)
        own = tuple(a for a in axes if a in varying_axes)
        offset, block_axes = self.types[e.buffer].offset(e.index), own
        if e.mask is None:
            offset, block_axes = self.merge_axes(offset, own)
        pointer = self.pointer(e.buffer, offset, block_axes)
        tests = self.bounds_tests(varying_axes if block_axes == own else block_axes, block_axes)
        if e.mask is not None:
            tests.append(self.expr_text(e.mask, own))
        if e.other is not None:
            other = self.expr_text(e.other, own)
        else:
            other = literal(fill) if tests and fill is not None else ""
        source = f"{pointer}{', mask=' + conjunction(tests) if tests else ''}"
        text = f"tl.load({source}{f', other={other}' if other else ''})"
        text = text if block_axes == own else f"tl.reshape({text}, {self.shape(own)})"
        return self.align_axes(self.bind_load(e, text, own, source, other), axes)

    def bind_load(self, e: Load, text: str, axes: tuple[str, ...], source: str, other: str = "") -> BlockValue:
        """Bind the block that is loaded from `source`, with `other` where a mask is false, unless it has been loaded before."""
        earlier = self.loaded_blocks.get(source)
        if earlier is not None and other in ("", earlier.other):
            return replace(earlier.block, axes=axes)
        block = self.bind(text, axes, f"{self.params[e.buffer]}_block", self.depth(e))
        if self.param_depths[e.buffer] != INNERMOST:
            self.loaded_blocks[source] = LoadedBlock(block, other)
        return block

    def forget_blocks(self, depth: int) -> None:
        """Forget the blocks that are known deeper than `depth` only, at the end of a loop."""
        self.loaded_blocks = {text: b for text, b in self.loaded_blocks.items() if b.block.depth <= depth}

    def read_local(self, e: Load) -> BlockValue:
        """Return a local buffer's block, with its axes renamed to the loops that read it."""
        local = self.local_blocks[e.buffer]
        renamed: dict[str, str] = {}
        for stored, d in zip(local.dim_loops, e.index, strict=True):
            read = next((r for r in self.loops.values() if covers(r, d)), None)
            if read is None or (read.extent, read.tile) != (stored.extent, stored.tile) or read.var in renamed.values():
                raise TritonError(
                    f"local %{e.buffer}: {d} does not range over it as %{stored.var} did when it was stored; run gpu-rows"
                )
            renamed[stored.var] = read.var
        return replace(local.block, axes=tuple(renamed.get(a, a) for a in local.block.axes))

    # expressions

    def expr_text(self, e: Expr, axes: Sequence[str], precedence: int = 0) -> str:
        """Return `e` for a result with `axes`, in parentheses if it binds less tightly than `precedence`."""
        text, own_precedence = self.text_and_precedence(e, axes)
        return f"({text})" if own_precedence < precedence else text

    def text_and_precedence(self, e: Expr, axes: Sequence[str]) -> tuple[str, int]:
        """Return `e` and the precedence of its outermost operation."""
        match e:
            case Const():
                return literal(e, typed=e.dtype == f64), ATOM_PRECEDENCE  # a number alone is f32 to Triton
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
        """Return a primitive applied to its arguments, and its precedence."""
        if is_guarded_load(e):
            return self.text_and_precedence(e.operands[1], axes)
        dtype = dtype_names(e.dtype)[0]

        def argument(k: int, level: int = 0) -> str:
            return self.argument_text(e, k, axes, level)

        match e.primitive:
            case "cast":
                source, is_byte = e.args[0].dtype, e.dtype.is_float and e.dtype.bits == 8
                through_f32 = is_byte and not (source.is_float and source.bits <= 32)  # Triton makes bytes of such only
                return f"{argument(0, ATOM_PRECEDENCE)}{'.to(tl.float32)' * through_f32}.to({dtype})", ATOM_PRECEDENCE
            case "bitcast":
                return f"{argument(0, ATOM_PRECEDENCE)}.to({dtype}, bitcast=True)", ATOM_PRECEDENCE
            case "lshr":
                bits = f"{argument(0, ATOM_PRECEDENCE)}.to(tl.uint{e.dtype.bits}, bitcast=True)"
                return f"({bits} >> {argument(1, ATOM_PRECEDENCE)}).to({dtype}, bitcast=True)", ATOM_PRECEDENCE
            case "fma" if isinstance(e.operands[2], Ref) and e.operands[2].name in self.products:
                parts = argument(0, PRECEDENCE["*"]), argument(1, PRECEDENCE["*"]), argument(2, PRECEDENCE["+"])
                return "{} * {} + {}".format(*parts), PRECEDENCE[
                    "+"
                ]  # so that Triton adds to the product's accumulators
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
        """Return operand `k` of `call`.

        A constant carries its dtype if no other operand of an infix operator implies it.  Comparisons of indices are written
        without casts.
        """
        e = call.operands[k]
        if call.primitive in COMPARISONS and all(isinstance(x, (IndexValue, Const)) for x in call.operands):
            return self.index_text(e.index, axes) if isinstance(e, IndexValue) else self.expr_text(e, axes)
        needs_dtype = all(isinstance(x, Const) or x.dtype != e.dtype for x in call.operands)
        if isinstance(e, Const) and (needs_dtype or TRITON_FUNCTIONS.get(call.primitive, "").startswith("libdevice")):
            return literal(e, typed=True)
        if isinstance(e, Const) and call.primitive in INFIX_OPERATORS:
            return literal(e)
        return self.expr_text(e, axes, level)

    def masked_text(self, e: Expr, axes: tuple[str, ...], own: Iterable[str], fill: Const, precedence: int = 0) -> str:
        """Return `e` at every index of `axes`, and `fill` outside the extents of the loops `own`; `precedence` as for `expr_text`."""
        partial = [v for v in own if v in self.partial_loops]
        covers_axes = set(self.axes(e)) == set(axes)
        if isinstance(e, PrimitiveCall) and is_guarded_load(e):
            e = e.operands[1]
        is_masked = isinstance(e, Load) and (e.mask is None or e.other == fill) and e.buffer not in self.local_blocks
        if partial and covers_axes and isinstance(e, Load) and is_masked:
            return self.load(e, axes, fill)
        if isinstance(e, Const):
            text = f"tl.full({self.shape(axes)}, {literal(e)}, {dtype_names(e.dtype)[0]})"
        else:
            text = self.expr_text(e, axes, precedence if covers_axes and not partial else 0)
            text = text if covers_axes else f"tl.broadcast_to({text}, {self.shape(axes)})"
        if partial:
            text = f"tl.where({conjunction(self.bounds_tests(partial, axes))}, {text}, {literal(fill)})"
        return text

    def bind_long_parts(self, e: Expr) -> Expr:
        """Return `e` with subexpressions bound to names: those used twice, and those of more than `MAX_LINE_OPS`."""
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
                block = self.bind(self.expr_text(new, axes), axes, "t", self.depth(new))
                self.names[block.name] = block
                new, count = Ref(x.dtype, block.name), 1
            memo[id(x)], size[id(x)] = new, count
        return memo[id(e)]


def is_guarded_load(e: PrimitiveCall) -> bool:
    """Return True if `e` is `where(c, load(x, c, other), other)`: the same as the load."""
    if e.primitive != "where":
        return False
    test, loaded, other = e.operands
    return isinstance(loaded, Load) and loaded.mask == test and loaded.other == other


def size_key(name: str) -> str:
    """Return the key in `TritonExprEmitter.names` of a dynamic size, which no variable of Tile IR has."""
    return f"size {name}"


def conjunction(tests: Sequence[str]) -> str:
    """Return the conjunction of at least one test."""
    return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)


def has_partial_block(r: Range) -> bool:
    """Return True if the last block of a loop may be partial."""
    return not isinstance(r.extent, int) or r.extent % r.tile != 0


def covers(r: Range, d: Dim) -> bool:
    """Return True if an index counts the iterations of a loop from 0."""
    return d == var(r.var) - r.lo
