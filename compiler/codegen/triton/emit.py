"""Tile IR to Triton source: one @triton.jit function and the Python that launches it.

    parallel %i in 0..100 tile 16    i = pid // ... * 16 + tl.arange(0, 16)     loads and stores masked where i < 100
    for %k in 0..100 tile 128        k = tl.arange(0, 128)                      one step needs no loop
    for %k in 0..100 tile 32         for k_start in range(0, 100, 32): k = k_start + tl.arange(0, 32)
    reduce add of x[i, k] * w[j, k]  acc = tl.dot(x[i, k], w[k, j], acc)        three tiled loops, two in each factor
    reduce max, add, ...             blocks are combined lane by lane, then along the reduced axes
    local %row                       a block value, where each loop that walks the buffer does so in one step
    local %carry of rank 0           a variable, which loops pass on from step to step

Nothing is decided here: the blocks are those of the kernel's tiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from compiler.codegen.triton.expressions import BlockValue, LocalBlock, TritonExprEmitter, conjunction, is_single_block
from compiler.codegen.triton.triton_names import DTYPES, HELPERS, RESERVED, TritonError, literal, reduce_helper
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall, const
from compiler.ir.symbolic.index_expr import Dim, ceildiv, product
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck, For, Kernel, Let, Local, Range, Reduce, Stmt, Store
from compiler.ir.types import bf16, f16, f32, f64, i8, i32

INT32_INDEX_LIMIT = 1 << 31
"""Buffers of this many elements need 64-bit indices."""

MODULE_TEMPLATE = """\
\"\"\"{summary}\"\"\"

import triton
import triton.language as tl{imports}
{helpers}

{function}


kernel, grid = {name}, ({grid},)
signature = {signature}
options = {options}


def launch({names}):
    kernel[grid]({names}, **options)
"""


def emit_triton(kernel: Kernel) -> str:
    """The Triton module that runs `kernel`.

    It binds `kernel`, `signature`, `grid`, `options` and `launch(*tensors)`, which takes a tensor for each parameter, its
    elements dense in the order of the parameter's layout.  TritonError where the kernel cannot be said in Triton.
    """
    return TritonKernelEmitter(kernel).module_source()


class TritonKernelEmitter:
    """One kernel being written."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.taken_names = set(RESERVED)
        self.lines: list[str] = []
        self.depth = 1
        self.largest_block = 1
        self.name = self.fresh_name(kernel.name)
        self.params = {p.name: self.fresh_name(p.name) for p in kernel.params}
        self.exprs = TritonExprEmitter(kernel, self.params, self.bind)
        self.index_names: dict[str, str] = {}  # the name that holds each plain index block
        self.local_depths: dict[str, int] = {}  # how many loops are around each local buffer
        self.grid_loops = [s.range for s in tile.walk(kernel.body) if isinstance(s, For) and s.parallel]
        sizes = [p.type.numel for p in kernel.params]
        self.needs_int64_index = any(not isinstance(n, int) or n >= INT32_INDEX_LIMIT for n in sizes)

    # the module

    def module_source(self) -> str:
        """Source of the whole module."""
        self.emit_block(self.kernel.body)
        body = "\n".join(self.lines)
        names = ", ".join(self.params.values())
        return MODULE_TEMPLATE.format(
            summary=f"{self.kernel.name}({', '.join(f'{p.role} {self.params[p.name]}: {p.type}' for p in self.kernel.params)})",
            imports="\nfrom triton.language.extra import libdevice" if "libdevice." in body else "",
            helpers=self.helper_source(),
            function=f"@triton.jit\ndef {self.name}({names}):\n{body}",
            name=self.name,
            names=names,
            grid=product(trip_count(r) for r in self.grid_loops),
            signature={self.params[p.name]: f"*{DTYPES[p.type.dtype.name][1]}" for p in self.kernel.params},
            options=self.launch_options(),
        )

    def launch_options(self) -> dict[str, int | bool]:
        """What the kernel is compiled with; checked indices need assertions on, but not those for overflow."""
        warps = min(16, max(4, self.largest_block // 1024))
        checks = any(isinstance(s, BoundsCheck) for s in tile.walk(self.kernel.body))
        asserting = {"debug": True, "sanitize_overflow": False} if checks else {}
        return {"num_warps": warps, "enable_fp_fusion": True, **asserting}

    def helper_source(self) -> str:
        """The helper functions that the body calls."""
        return "".join(f"\n\n@triton.jit\n{text}\n" for name, text in HELPERS.items() if name in self.exprs.helpers)

    # lines and names

    def write_line(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh_name(self, name: str) -> str:
        """A Python name like `name` that nothing else has."""
        base = re.sub(r"\W", "_", name)
        base = f"_{base}" if not base or base[0].isdigit() else base
        found, count = base, 0
        while found in self.taken_names:
            count += 1
            found = f"{base}_{count}"
        self.taken_names.add(found)
        return found

    def bind(self, text: str, axes: tuple[str, ...], name: str) -> BlockValue:
        """Assign `text` to a fresh name like `name`."""
        block = BlockValue(self.fresh_name(name), axes)
        self.write_line(f"{block.name} = {text}")
        self.record_block_size(axes)
        return block

    def record_block_size(self, axes: Sequence[str]) -> None:
        size = product(self.exprs.loops[a].tile for a in axes)
        self.largest_block = max(self.largest_block, size if isinstance(size, int) else 1)

    # statements

    def emit_block(self, body: tile.Block) -> None:
        if sum(isinstance(s, For) and s.parallel for s in body) > 1:
            raise TritonError(f"@{self.kernel.name}: two parallel loops side by side need two kernels")
        if any(isinstance(s, For) and s.parallel for s in body) and any(map(is_read_modify_write, body)):
            raise TritonError(
                f"@{self.kernel.name}: a loop that changes what it reads, beside a parallel one, needs a kernel"
            )
        for stmt in body:
            self.emit_stmt(stmt)

    def emit_stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name, value):
                value = self.exprs.bind_long_parts(value)
                axes = self.exprs.axes(value)
                text = literal(value, typed=True) if isinstance(value, Const) else self.exprs.expr_text(value, axes)
                needs_no_binding = text.isidentifier() and not self.reads_local_scalar(value)
                self.exprs.names[name] = BlockValue(text, axes) if needs_no_binding else self.bind(text, axes, name)
            case Store(buffer, index, value):
                self.emit_store(buffer, index, self.exprs.bind_long_parts(value))
            case Local(buffer, type_):
                if type_.rank:
                    self.local_depths[buffer] = len(self.exprs.loops)
                else:
                    tiled = tuple(v for v, r in self.exprs.loops.items() if r.tile > 1)
                    self.exprs.local_scalars[buffer] = BlockValue(self.fresh_name(buffer), tiled)
            case BoundsCheck():
                self.emit_check(stmt)
            case For(r, body, parallel):
                with self.nested_loops([r], parallel):
                    self.emit_block(body)
            case Reduce():
                self.emit_reduce(stmt)

    def emit_store(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        if buffer in self.local_depths:
            self.store_local_block(buffer, index, value)
            return
        if buffer in self.exprs.local_scalars:
            self.store_local_scalar(buffer, value)
            return
        axes, own = self.exprs.index_axes(index), self.exprs.axes(value)
        if isinstance(value, PrimitiveCall):
            block = self.bind(self.exprs.expr_text(value, own), own, f"{self.params[buffer]}_block")
            text = self.exprs.align_axes(block, axes)
        else:
            text = self.exprs.expr_text(value, axes)
        self.record_block_size(axes)
        self.write_line(f"tl.store({self.exprs.pointer(buffer, index, axes)}, {text}{self.mask_argument(axes)})")

    def mask_argument(self, axes: Sequence[str]) -> str:
        """The argument that keeps a store inside partial blocks."""
        tests = self.exprs.bounds_tests(axes, axes)
        return f", mask={conjunction(tests)}" if tests else ""

    def store_local_block(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        """The block that a local buffer holds from here on."""
        inner = dict(list(self.exprs.loops.items())[self.local_depths[buffer] :])
        dim_loops = [inner.get(str(d)) for d in index]
        rows = tuple(r for r in dim_loops if r is not None and r.lo == 0 and is_single_block(r))
        if len(rows) != len(index) or {r.var for r in rows} != set(inner):
            raise TritonError(f"local %{buffer} is not filled in one step; run gpu-rows")
        axes = self.exprs.axes(value)
        self.exprs.local_blocks[buffer] = LocalBlock(self.bind(self.exprs.expr_text(value, axes), axes, buffer), rows)

    def store_local_scalar(self, buffer: str, value: Expr) -> None:
        """Assign to a variable, whose shape is the same wherever that happens."""
        variable = self.exprs.local_scalars[buffer]
        if inside := set(self.exprs.axes(value)) - set(variable.axes):
            raise TritonError(f"local %{buffer} holds one element, and is given one for each %{min(inside)}")
        self.write_line(f"{variable.name} = {self.exprs.masked_text(value, variable.axes, (), const(0, value.dtype))}")

    def reads_local_scalar(self, value: Expr) -> bool:
        """Whether the value is what a variable holds now."""
        return isinstance(value, Load) and value.buffer in self.exprs.local_scalars

    def emit_check(self, stmt: BoundsCheck) -> None:
        block = self.exprs.names[stmt.name]
        low, high = (self.exprs.index_text(d, block.axes) for d in (stmt.low, stmt.high))
        test = f"({block.name} >= {low}) & ({block.name} < {high})"
        self.write_line(f'tl.device_assert({test}, "index outside {low}..{high}"{self.mask_argument(block.axes)})')

    # loops

    @contextmanager
    def nested_loops(self, ranges: Sequence[Range], parallel: bool = False) -> Iterator[None]:
        """Write the headers of nested loops; what is written inside is their body."""
        depth, outer = self.depth, dict(self.exprs.loops)
        indices, loaded = dict(self.index_names), dict(self.exprs.loaded_blocks)
        for r in ranges:
            self.open_loop(r, parallel)
        yield
        if self.depth > depth:  # what the body of a loop binds is gone behind it
            self.index_names, self.exprs.loaded_blocks = indices, loaded
        self.depth, self.exprs.loops = depth, outer

    def open_loop(self, r: Range, parallel: bool) -> None:
        """Bring the indices of one loop into scope."""
        if r.tile & (r.tile - 1):
            raise TritonError(f"%{r.var} has tile {r.tile}; blocks are powers of two")
        if parallel:
            start = self.program_start(r)
        elif is_single_block(r):
            start = str(r.lo)
        else:
            start = self.fresh_name(f"{r.var}_start" if r.tile > 1 else r.var)
            self.write_line(f"for {start} in range({r.lo}, {r.hi}{f', {r.tile}' if r.tile > 1 else ''}):")
            self.depth += 1
        index = start if r.tile == 1 else f"{start} + tl.arange(0, {r.tile})".removeprefix("0 + ")
        index = f"tl.cast({index}, tl.int64)" if self.needs_int64_index else index
        if index.isidentifier():
            name = index
        else:
            name = self.index_names.get(index, "")
            around = [self.exprs.names[v].name for v in self.exprs.loops]
            if not name or name in around:  # nested loops keep indices apart
                name = self.index_names[index] = self.fresh_name(r.var)
                self.write_line(f"{name} = {index}")
        self.exprs.loops[r.var] = r
        self.exprs.names[r.var] = BlockValue(name, (r.var,) if r.tile > 1 else ())

    def program_start(self, r: Range) -> str:
        """The first index of a parallel loop's block, from the number of the program."""
        position = self.grid_loops.index(r)
        if position == 0:
            self.write_line("pid = tl.program_id(0)")
        inner = product(trip_count(s) for s in self.grid_loops[position + 1 :])
        number = "pid" if inner == 1 else f"pid // {inner}"
        number = f"{number} % {trip_count(r)}" if position else number
        first = "0" if trip_count(r) == 1 else f"{number} * {r.tile}" if r.tile > 1 else number
        return first if r.lo == 0 else f"{r.lo} + {first}"

    # reductions

    def emit_reduce(self, s: Reduce) -> None:
        """Combine the values of all points: block by block in an accumulator where loops run, then along its axes."""
        name = self.fresh_name(s.name)
        own = tuple(r.var for r in s.ranges if r.tile > 1)
        above, self.lines = self.lines, []
        with self.nested_loops(s.ranges):
            running = any(not is_single_block(r) for r in s.ranges)
            self.emit_block(s.body)
            text, axes = self.dot_text(s, own, name if running else "") or self.accumulate_text(
                s, own, name if running else ""
            )
            self.record_block_size(axes)
            shape = self.exprs.shape(axes)
            if running:
                self.write_line(f"{name} = {text}")
        inner, self.lines = self.lines, above
        if running:
            start, dtype = literal(reduce_identity(s)), DTYPES[s.value.dtype.name][0]
            self.write_line(f"{name} = tl.full({shape}, {start}, {dtype})")
            text = name
        self.lines += inner
        for place in reversed([k for k, a in enumerate(axes) if a in own]):
            text = reduce_axis(s, text, place)
        if text != name:
            self.write_line(f"{name} = {text}")
        self.exprs.names[s.name] = BlockValue(name, tuple(a for a in axes if a not in own))

    def accumulate_text(self, s: Reduce, own: Sequence[str], accumulator: str) -> tuple[str, tuple[str, ...]]:
        """The values of one step, combined with the accumulator `sum_` if there is one, and their axes."""
        value = self.exprs.bind_long_parts(s.value)
        axes = self.exprs.in_loop_order({*self.exprs.axes(value), *own})
        text = self.exprs.masked_text(value, axes, own, reduce_identity(s))
        helper = reduce_helper(s.op, s.value.dtype)
        self.exprs.helpers |= {helper} - {""}
        return (
            f"{helper}({accumulator}, {text})" if helper else f"{accumulator} + {text}"
        ) if accumulator else text, axes

    def dot_text(self, s: Reduce, own: Sequence[str], accumulator: str) -> tuple[str, tuple[str, ...]] | None:
        """The sum of products as a product of blocks; None where it is none."""
        if s.op != "add" or len(own) != 1 or not isinstance(s.value, PrimitiveCall) or s.value.primitive != "mul":
            return None
        x, y = dot_operands(s.value)
        if (x.dtype, s.value.dtype) not in DOT_DTYPES:
            return None
        free = [set(self.exprs.axes(e)) - set(own) for e in (x, y)]
        shared = all(own[0] in self.exprs.axes(e) for e in (x, y))
        if not shared or [len(f) for f in free] != [1, 1] or free[0] == free[1]:
            return None
        rows, columns = self.exprs.in_loop_order(free[0] | free[1])
        x, y = (x, y) if free[0] == {rows} else (y, x)
        if min(self.exprs.loops[v].tile for v in (rows, *own, columns)) < MIN_DOT_EXTENT:
            return None
        a = self.exprs.masked_text(self.exprs.bind_long_parts(x), (rows, *own), own, const(0, x.dtype))
        b = self.exprs.masked_text(self.exprs.bind_long_parts(y), (*own, columns), own, const(0, y.dtype))
        extra = {f32: ', input_precision="ieee"', f64: ", out_dtype=tl.float64"}.get(x.dtype, "")
        return f"tl.dot({a}, {b}{f', {accumulator}' if accumulator else ''}{extra})", (rows, columns)


MIN_DOT_EXTENT = 16
"""The smallest extent of a block that `tl.dot` takes on every GPU."""

DOT_DTYPES = {(f16, f32), (bf16, f32), (f32, f32), (f64, f64), (i8, i32)}
"""What `tl.dot` multiplies, and what it adds in."""


def is_read_modify_write(stmt: Stmt) -> bool:
    """Whether a serial loop changes what it reads: it must not run in every program."""
    if not isinstance(stmt, For) or stmt.parallel:
        return False
    written = {s.buffer for s in tile.walk((stmt,)) if isinstance(s, Store)}
    own = {s.buffer for s in tile.walk((stmt,)) if isinstance(s, Local)}
    return bool({e.buffer for e in tile.loads((stmt,))} & written - own)


def dot_operands(value: PrimitiveCall) -> tuple[Expr, Expr]:
    """The factors of a product, before they were widened where `tl.dot` widens by itself."""
    x, y = value.operands
    inner = [e.operands[0] if isinstance(e, PrimitiveCall) and e.primitive == "cast" else e for e in (x, y)]
    same = inner[0].dtype == inner[1].dtype and (inner[0].dtype, value.dtype) in DOT_DTYPES
    return (inner[0], inner[1]) if same else (x, y)


def reduce_identity(s: Reduce) -> Const:
    """What leaves a combination unchanged."""
    return const(IDENTITIES[s.op](s.value.dtype), s.value.dtype)


def reduce_axis(s: Reduce, text: str, axis: int) -> str:
    """A block combined along one of its axes."""
    dtype, helper = s.value.dtype, reduce_helper(s.op, s.value.dtype)
    if helper:
        return f"tl.reduce({text}, {axis}, {helper})"
    return f"tl.sum({text}, axis={axis}{f', dtype={DTYPES[dtype.name][0]}' if dtype.bits < 32 else ''})"


def trip_count(r: Range) -> Dim:
    """How many blocks a loop takes."""
    return ceildiv(r.extent, r.tile)
