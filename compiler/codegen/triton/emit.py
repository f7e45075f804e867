"""Tile IR to Triton source: one @triton.jit function and the Python that launches it.

    parallel %i in 0..100 tile 16    i = pid // ... * 16 + tl.arange(0, 16)     loads and stores are masked by i < 100
    for %k in 0..100 tile 128        k = tl.arange(0, 128)                      a single block needs no loop
    for %k in 0..100 tile 32         for k_start in range(0, 100, 32): k = k_start + tl.arange(0, 32)
    reduce add of x[i, k] * w[j, k]  acc = tl.dot(x[i, k], w[k, j], acc)        three tiled loops, two in each factor
    reduce max, add, ...             combine blocks elementwise, then along the reduced axes
    local %row                       a block value; each loop over the buffer must be a single block
    local %carry of rank 0           a variable, carried by loops

Block sizes are the tile sizes of the kernel's loops; nothing is chosen here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from compiler.codegen.listing import Listing
from compiler.codegen.triton.descriptors import TensorDescriptors, start_key
from compiler.codegen.triton.expressions import (
    BlockValue,
    LocalBlock,
    TritonExprEmitter,
    covers,
    size_key,
)
from compiler.codegen.triton.module import TritonModule, block_count, grid_loops
from compiler.codegen.triton.reductions import is_short, reduce_axis, reduce_identity
from compiler.codegen.triton.source_scopes import INNERMOST, SourceScopes
from compiler.codegen.triton.subtiles import split_read_blocks
from compiler.codegen.triton.triton_names import RESERVED, TritonError, dtype_names, literal, reduce_helper
from compiler.ir.scalar import Const, Expr, PrimitiveCall, const
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.text.statement_lines import StatementLines
from compiler.ir.text.tile_printer import PRECEDENCE
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import (
    AsyncCopy,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    Wait,
)
from compiler.ir.tile.loop_nest import trip_count
from compiler.ir.types import f32, f64
from compiler.target import MATRIX_DTYPES


def emit_triton(kernel: Kernel) -> str:
    """Return the source of a Triton module that runs `kernel`; TritonError if it cannot be expressed in Triton.

    The module binds `kernel`, `signature`, `options` and `launch(*arguments)`.  `launch` takes a tensor for each parameter, with
    its elements dense in the order of the parameter's layout, and then an int for each dynamic size, in the order of their names.
    """
    return triton_listing(kernel).text


def triton_listing(kernel: Kernel) -> Listing:
    """Return what `emit_triton` does, with the lines of Tile IR that its lines come from."""
    return TritonKernelEmitter(kernel).module_listing()


class TritonKernelEmitter:
    """Builder of the function of one kernel, and of the module around it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.taken_names = set(RESERVED)
        self.statement_lines = StatementLines.of(kernel)
        self.source = SourceScopes()
        self.largest_block = 1
        self.name = self.fresh_name(kernel.name)
        self.params = {p.name: self.fresh_name(p.name) for p in kernel.params}
        self.exprs = TritonExprEmitter(kernel, TensorDescriptors(kernel, self.params, self.fresh_name), self.bind)
        self.dynamic_sizes = kernel.dynamic_sizes
        self.sizes = {s.name: self.fresh_name(s.name) for s in self.dynamic_sizes}
        self.exprs.names |= {size_key(size): BlockValue(name) for size, name in self.sizes.items()}
        self.index_blocks: dict[str, BlockValue] = {}  # by their text
        self.local_depths: dict[str, int] = {}  # number of loops around each local buffer
        stores = Counter(s.buffer for s in tile.walk(kernel.body) if isinstance(s, Store))
        self.reassigned = {buffer for buffer, count in stores.items() if count > 1}
        self.grid_loops = grid_loops(kernel)
        self.unrolled: set[str] = set()  # loops over windows, whose loads then wait for memory together

    # the module

    def module_listing(self) -> Listing:
        """Return the source of the module, whose function has the lines of the kernel."""
        self.emit_size_casts()
        self.emit_block(self.kernel.body)
        body = [*((text, 0) for text in self.exprs.descriptors.declarations()), *self.source.scopes[0].lines]
        descriptors, helpers = bool(self.exprs.descriptors.names), self.exprs.helpers
        module = TritonModule(self.kernel, self.name, self.params, self.sizes, self.largest_block, helpers, descriptors)
        source = module.source("\n".join(f"    {text}" for text, _ in body))
        before = source[: source.index(f"\ndef {self.name}(")]
        lines = [0] * (before.count("\n") + 2) + [line for _, line in body]
        return Listing.located(source, tuple(lines + [0] * (source.count("\n") - len(lines))))

    def emit_size_casts(self) -> None:
        """Widen dynamic sizes where products of them may not fit 32 bits."""
        for name in self.sizes.values() if self.exprs.has_long_indices else ():
            self.source.write(f"{name} = tl.cast({name}, tl.int64)")

    # names

    def fresh_name(self, name: str) -> str:
        """Return an unused Python name that resembles `name`."""
        base = re.sub(r"\W", "_", name)
        base = f"_{base}" if not base or base[0].isdigit() else base
        fresh, count = base, 0
        while fresh in self.taken_names:
            count += 1
            fresh = f"{base}_{count}"
        self.taken_names.add(fresh)
        return fresh

    def bind(self, text: str, axes: tuple[str, ...], name: str, depth: int = INNERMOST) -> BlockValue:
        """Assign `text`, whose operands are known at `depth`, to a fresh name that resembles `name`."""
        block = BlockValue(self.fresh_name(name), axes, self.source.outermost_depth(depth))
        self.source.write(f"{block.name} = {text}", block.depth)
        self.record_block_size(axes)
        return block

    def bind_value(self, value: Expr, name: str) -> BlockValue:
        """Return a value with a name that is never assigned again: its own, or a fresh one that resembles `name`."""
        axes, depth = self.exprs.axes(value), self.exprs.depth(value)
        text = literal(value, typed=True) if isinstance(value, Const) else self.exprs.expr_text(value, axes)
        is_named = text.isidentifier() and depth != INNERMOST
        return BlockValue(text, axes, depth) if is_named else self.bind(text, axes, name, depth)

    def record_block_size(self, axes: Sequence[str]) -> None:
        self.largest_block = max(self.largest_block, self.exprs.size(axes))

    # statements

    def emit_block(self, body: tile.Block) -> None:
        if sum(map(tile.is_parallel_loop, body)) > 1:
            raise TritonError(f"@{self.kernel.name}: sibling parallel loops need two kernels")
        if any(map(tile.is_parallel_loop, body)) and any(map(self.is_read_modify_write, body)):
            raise TritonError(
                f"@{self.kernel.name}: a read-modify-write statement next to a parallel loop needs its own kernel"
            )
        outer = self.source.line
        self.emit_located(tuple(self.statement_lines.in_block(body, outer)))
        self.source.line = outer

    def emit_located(self, stmts: Sequence[tuple[Stmt, int]]) -> None:
        """Emit statements with their lines; those after a product once for each part of its columns."""
        for k, (stmt, line) in enumerate(stmts):
            self.source.line = line
            self.emit_stmt(stmt)
            if self.kernel.subtiles > 1 and isinstance(stmt, Reduce) and stmt.name in self.exprs.products:
                column, rest = self.exprs.names[stmt.name].axes[-1], stmts[k + 1 :]
                for _ in self.parts_of_columns(column, tuple(s for s, _ in rest)):
                    self.emit_located(rest)
                return

    def parts_of_columns(self, column: str, body: tile.Block) -> Iterator[None]:
        """Yield for each part of a loop's block, with that loop and the values that `body` reads in this part only."""
        whole, count = self.exprs.loops[column], self.kernel.subtiles
        parts = split_read_blocks(self.exprs, column, body, count, self.fresh_name, self.source.write)
        part = self.exprs.loops[column] = whole.with_(tile=whole.tile // count)
        for k, blocks in enumerate(parts):
            start = f"{self.exprs.starts[column]} + {k * part.tile}" if k else self.exprs.starts[column]
            index = self.index_block(part, self.block_indices(part, start), INNERMOST)
            self.exprs.names |= {**blocks, column: index}
            yield

    def is_read_modify_write(self, stmt: Stmt) -> bool:
        """Return True if a statement outside parallel loops writes a parameter that it reads: it must not run in every program."""
        is_parallel = tile.is_parallel_loop(stmt)
        rewritten = tile.loaded_buffers((stmt,)) & tile.stored_buffers((stmt,)) & self.params.keys()
        return bool(rewritten) and not is_parallel

    def emit_stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name, value):
                self.exprs.names[name] = self.bind_value(self.exprs.bind_long_parts(value), name)
            case Store(buffer, index, value):
                self.emit_store(buffer, index, self.exprs.bind_long_parts(value))
            case Local(buffer, type_, _):
                if type_.rank:
                    self.local_depths[buffer] = len(self.exprs.loops)
                else:
                    tiled = tuple(v for v, r in self.exprs.loops.items() if r.tile > 1)
                    self.exprs.local_scalars[buffer] = BlockValue(self.fresh_name(buffer), tiled, INNERMOST)
            case BoundsCheck():
                self.emit_check(stmt)
            case For(r, body, parallel):
                with self.nested_loops([r], parallel):
                    self.emit_block(body)
            case Reduce():
                self.emit_reduce(stmt)
            case Prefetch():
                pass  # a hint: hardware schedules other warps while one waits
            case AsyncCopy() | Wait():
                raise TritonError(f"@{self.kernel.name}: Triton copies by itself; run lower-async-copies")
            case _:
                assert_never(stmt)

    def emit_store(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        """Store to a buffer; a full block beside matrix products as one row, where a thread has less than 16 bytes of neighbours."""
        if buffer in self.local_depths:
            self.store_local_block(buffer, index, value)
            return
        if buffer in self.exprs.local_scalars:
            self.store_local_scalar(buffer, value)
            return
        axes, value_axes = self.exprs.index_axes(index), self.exprs.axes(value)
        if isinstance(value, PrimitiveCall):
            text = self.exprs.expr_text(value, value_axes)
            block = self.bind(text, value_axes, f"{self.params[buffer]}_block")
            text = self.exprs.align_axes(block, axes)
        else:
            text = self.exprs.expr_text(value, axes)
        self.record_block_size(axes)
        pointer = self.exprs.pointer(buffer, self.exprs.types[buffer].offset(index), axes)
        mask = self.exprs.mask_argument(axes)
        is_narrow = self.exprs.types[buffer].dtype.bytes < RESULT_BYTES
        if self.exprs.products and len(axes) > 1 and is_narrow and not mask:
            pointer, text = (f"tl.reshape({block}, ({self.exprs.size(axes)},))" for block in (pointer, text))
        self.source.write(f"tl.store({pointer}, {text}{mask})")

    def store_local_block(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        """Bind the block that a local buffer holds from here on; one store must write all of it."""
        loops = list(self.exprs.loops.values())
        inner = loops[self.local_depths[buffer] :]
        dim_loops = tuple(r for d in index for r in inner if covers(r, d) and self.exprs.is_single_block(r))
        if len(dim_loops) != len(index) or not {r for r in inner if r.tile > 1} <= set(dim_loops):
            raise TritonError(f"local %{buffer} is not written by one block; run gpu-rows")
        if buffer not in self.reassigned:
            block = self.bind_value(value, buffer)
        else:  # its shape must not change from one iteration to the next
            outer = (r for r in loops[: self.local_depths[buffer]] if r.tile > 1)
            axes = self.exprs.in_loop_order(r.var for r in (*outer, *dim_loops))
            known = self.exprs.local_blocks.get(buffer)
            block = BlockValue(known.block.name if known else self.fresh_name(buffer), axes, INNERMOST)
            text = self.exprs.masked_text(value, axes, (), const(0, value.dtype))
            self.source.write(f"{block.name} = {text}")
            self.record_block_size(axes)
        self.exprs.local_blocks[buffer] = LocalBlock(block, dim_loops)

    def store_local_scalar(self, buffer: str, value: Expr) -> None:
        """Assign to the variable of a rank 0 buffer, broadcast so that its shape never changes."""
        variable = self.exprs.local_scalars[buffer]
        if extra_axes := set(self.exprs.axes(value)) - set(variable.axes):
            raise TritonError(f"local %{buffer} is rank 0 but is stored once per %{min(extra_axes)}")
        self.source.write(
            f"{variable.name} = {self.exprs.masked_text(value, variable.axes, (), const(0, value.dtype))}"
        )

    def emit_check(self, stmt: BoundsCheck) -> None:
        block = self.exprs.names[stmt.name]
        low, high = (self.exprs.index_text(d, block.axes) for d in (stmt.low, stmt.high))
        test = f"({block.name} >= {low}) & ({block.name} < {high})"
        self.source.write(
            f'tl.device_assert({test}, "index outside {low}..{high}"{self.exprs.mask_argument(block.axes)})'
        )
        self.exprs.names[stmt.name] = replace(block, depth=self.source.depth)  # loads follow the check

    # loops

    @contextmanager
    def nested_loops(self, ranges: Sequence[Range], parallel: bool = False) -> Iterator[None]:
        """Write the headers of nested loops; the lines written inside the context are their body."""
        depth, outer = self.source.depth, dict(self.exprs.loops)
        for r in ranges:
            self.open_loop(r, parallel)
        yield
        while self.source.depth > depth:
            self.source.close_loop()
        self.exprs.loops = outer
        self.index_blocks = {text: block for text, block in self.index_blocks.items() if block.depth <= depth}
        self.exprs.forget_blocks(depth)

    def open_loop(self, r: Range, parallel: bool) -> None:
        """Write the header of one loop, if it needs one, and bind its indices."""
        if r.tile & (r.tile - 1):
            raise TritonError(f"%{r.var} has tile {r.tile}; blocks are powers of two")
        if varying := self.exprs.index_axes((r.lo, r.hi)):
            raise TritonError(f"the bounds of %{r.var} differ inside a block of %{varying[0]}")
        depth = INNERMOST
        if parallel:
            start = self.program_start(r)
        elif self.exprs.is_single_block(r):
            start, depth = self.exprs.index_text(r.lo, ()), self.exprs.index_depth((r.lo, r.hi))
        else:
            start = self.fresh_name(f"{r.var}_start" if r.tile > 1 else r.var)
            bounds = ", ".join(self.exprs.index_text(d, ()) for d in (r.lo, r.hi))
            step = f", {r.tile}" if r.tile > 1 else ""
            pipelined = f", num_stages={r.stages}" if r.stages > 1 else ""
            kind = "tl.range" if pipelined else "tl.static_range" if r.var in self.unrolled else "range"
            self.source.open_loop(f"for {start} in {kind}({bounds}{step}{pipelined}):", self.exprs.runs_always(r))
        if r.var in self.exprs.descriptors.loops:
            if not (start.isidentifier() or start.isdecimal()):
                start = self.bind(start, (), f"{r.var}_start", depth).name
            self.exprs.names[start_key(r.var)] = BlockValue(start, (), self.source.outermost_depth(depth))
        self.exprs.enter_loop(r)
        self.exprs.starts[r.var] = start
        self.exprs.names[r.var] = self.index_block(r, self.block_indices(r, start), depth)

    def block_indices(self, r: Range, start: str) -> str:
        """Return the indices of a loop's block that begins at `start`."""
        text = start if r.tile == 1 else f"{start} + tl.arange(0, {r.tile})".removeprefix("0 + ")
        return f"tl.cast({text}, tl.int64)" if self.exprs.has_long_indices else text

    def index_block(self, r: Range, text: str, depth: int) -> BlockValue:
        """Return the indices of a loop's block; loops one after another share a name, nested ones do not."""
        axes, outermost = (r.var,) if r.tile > 1 else (), self.source.outermost_depth(depth)
        if text.isidentifier():
            return BlockValue(text, axes, outermost)
        outer_names = {self.exprs.names[v].name for v in self.exprs.loops if v != r.var}
        known = self.index_blocks.get(text)
        if known is None or known.name in outer_names:
            known = self.index_blocks[text] = self.bind(text, axes, r.var, depth)
        return replace(known, axes=axes, depth=max(known.depth, outermost))

    def program_start(self, r: Range) -> str:
        """Return the first index of this program's block of a parallel loop, from its program id."""
        position = self.grid_loops.index(r)
        if position == 0:
            self.bind_program_id()
        inner = product(trip_count(s) for s in self.grid_loops[position + 1 :])
        number = "pid" if inner == 1 else f"pid // {self.factor_text(inner)}"
        number = f"{number} % {self.factor_text(trip_count(r))}" if position else number
        first = "0" if trip_count(r) == 1 else f"{number} * {r.tile}" if r.tile > 1 else number
        return first if r.lo == 0 else f"{self.exprs.index_text(r.lo, ())} + {first}"

    def bind_program_id(self) -> None:
        """Bind `pid` to the number of this program's block, in a loop over those of a persistent program."""
        number = "tl.cast(tl.program_id(0), tl.int64)" if self.exprs.has_long_indices else "tl.program_id(0)"
        if not self.kernel.persistent:
            self.source.write(f"pid = {number}")
            return
        specialized = ", warp_specialize=True" if self.kernel.warp_specialized else ""
        blocks = f"{number}, {block_count(self.kernel, self.sizes)}, tl.num_programs(0)"
        self.source.open_loop(f"for pid in tl.range({blocks}, flatten=True{specialized}):", runs_always=False)

    def factor_text(self, d: Dim) -> str:
        """Return a scalar index expression, in brackets unless it is a number or a name."""
        text = self.exprs.index_text(d, ())
        return text if text.isidentifier() or text.isdecimal() else f"({text})"

    # reductions

    def emit_reduce(self, s: Reduce) -> None:
        """Combine values block by block in an accumulator if loops are needed, then along the reduced axes."""
        name = self.fresh_name(s.name)
        reduced = tuple(r.var for r in s.ranges if r.tile > 1)
        if not any(map(tile.stmt_ranges, tile.walk(s.body))) and all(map(is_short, s.ranges)):
            self.unrolled |= {r.var for r in s.ranges}
        outer_depth = self.source.depth
        with self.nested_loops(s.ranges):
            accumulator = "" if all(map(self.exprs.is_single_block, s.ranges)) else name
            self.emit_block(s.body)
            text, axes = self.dot_text(s, reduced, accumulator) or self.accumulate_text(s, reduced, accumulator)
            self.record_block_size(axes)
            shape = self.exprs.shape(axes)
            if text.startswith("tl.dot("):
                self.exprs.products.add(s.name)
            if accumulator:
                identity, dtype = literal(reduce_identity(s)), dtype_names(s.value.dtype)[0]
                self.source.write(f"{name} = tl.full({shape}, {identity}, {dtype})", outer_depth)
                self.source.write(f"{name} = {text}")
                text = name
        for k in reversed([k for k, a in enumerate(axes) if a in reduced]):
            text = reduce_axis(s, text, k)
        if text != name:
            self.source.write(f"{name} = {text}")
        self.exprs.names[s.name] = BlockValue(name, tuple(a for a in axes if a not in reduced), self.source.depth)

    def accumulate_text(self, s: Reduce, reduced: Sequence[str], accumulator: str) -> tuple[str, tuple[str, ...]]:
        """Return the values of one iteration, combined with the accumulator if it is not "", and their axes."""
        value = self.exprs.bind_long_parts(s.value)
        axes = self.exprs.in_loop_order({*self.exprs.axes(value), *reduced})
        helper = reduce_helper(s.op, s.value.dtype)
        precedence = PRECEDENCE["+"] if accumulator and not helper else 0
        text = self.exprs.masked_text(value, axes, reduced, reduce_identity(s), precedence)
        self.exprs.helpers |= {helper} - {""}
        if accumulator:
            text = f"{helper}({accumulator}, {text})" if helper else f"{accumulator} + {text}"
        return text, axes

    def dot_text(self, s: Reduce, reduced: Sequence[str], accumulator: str) -> tuple[str, tuple[str, ...]] | None:
        """Return a sum of products as `tl.dot`, and its axes, rows of the left factor first; None if it is no product of such blocks."""
        contraction = contraction_of(s)
        operands = contraction.matrix_operands(MATRIX_DTYPES) if contraction else None
        if operands is None or len(reduced) != 1:
            return None
        x, y = operands
        free = [set(self.exprs.axes(e)) - set(reduced) for e in (x, y)]
        both_reduced = all(reduced[0] in self.exprs.axes(e) for e in (x, y))
        if not both_reduced or [len(f) for f in free] != [1, 1] or free[0] == free[1]:
            return None
        (rows,), (columns,) = free
        if min(self.exprs.loops[v].tile for v in (rows, *reduced, columns)) < MIN_DOT_EXTENT:
            return None
        a = self.exprs.masked_text(self.exprs.bind_long_parts(x), (rows, *reduced), reduced, const(0, x.dtype))
        b = self.exprs.masked_text(self.exprs.bind_long_parts(y), (*reduced, columns), reduced, const(0, y.dtype))
        precision = "tf32" if contraction and contraction.is_tf32 else "ieee"
        extra = {f32: f', input_precision="{precision}"', f64: ", out_dtype=tl.float64"}.get(x.dtype, "")
        extra = extra if x.dtype.is_float else ", out_dtype=tl.int32"
        return f"tl.dot({a}, {b}{f', {accumulator}' if accumulator else ''}{extra})", (rows, columns)


RESULT_BYTES = 4
"""Bytes of a result, of which matrix units give four neighbours to a thread: narrower ones make no access of 16 bytes."""

MIN_DOT_EXTENT = 16
"""Smallest extent of a block that `tl.dot` accepts on every GPU."""
