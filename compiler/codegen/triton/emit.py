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

from compiler.codegen.triton.values import Block, Row, Values, every, is_whole
from compiler.codegen.triton.vocabulary import DTYPES, HELPERS, RESERVED, TritonError, combiner, literal
from compiler.ir import tile
from compiler.ir.index import Dim, ceildiv, product
from compiler.ir.scalar import Call, Const, Expr, Load, const
from compiler.ir.structure import IDENTITIES
from compiler.ir.tile import Check, For, Kernel, Let, Local, Range, Reduce, Stmt, Store
from compiler.ir.types import bf16, f16, f32, f64, i8, i32

INT32_ELEMENTS = 1 << 31
"""Buffers of this many elements need 64-bit indices."""

MODULE = """\
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
    return Emitter(kernel).module()


class Emitter:
    """One kernel being written."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.taken = set(RESERVED)
        self.lines: list[str] = []
        self.depth = 1
        self.largest = 1
        self.name = self.fresh(kernel.name)
        self.params = {p.name: self.fresh(p.name) for p in kernel.params}
        self.values = Values(kernel, self.params, self.bind)
        self.indices: dict[str, str] = {}  # the name that holds each plain index block
        self.declared: dict[str, int] = {}  # how many loops are around each local buffer
        self.programs = [s.range for s in tile.walk(kernel.body) if isinstance(s, For) and s.parallel]
        sizes = [p.type.numel for p in kernel.params]
        self.wide = any(not isinstance(n, int) or n >= INT32_ELEMENTS for n in sizes)

    # the module

    def module(self) -> str:
        """Source of the whole module."""
        self.block(self.kernel.body)
        body = "\n".join(self.lines)
        names = ", ".join(self.params.values())
        return MODULE.format(
            summary=f"{self.kernel.name}({', '.join(f'{p.role} {self.params[p.name]}: {p.type}' for p in self.kernel.params)})",
            imports="\nfrom triton.language.extra import libdevice" if "libdevice." in body else "",
            helpers=self.helpers(),
            function=f"@triton.jit\ndef {self.name}({names}):\n{body}",
            name=self.name,
            names=names,
            grid=product(steps(r) for r in self.programs),
            signature={self.params[p.name]: f"*{DTYPES[p.type.dtype.name][1]}" for p in self.kernel.params},
            options=self.options(),
        )

    def options(self) -> dict[str, int | bool]:
        """What the kernel is compiled with; checked indices need assertions on, but not those for overflow."""
        warps = min(16, max(4, self.largest // 1024))
        checks = any(isinstance(s, Check) for s in tile.walk(self.kernel.body))
        asserting = {"debug": True, "sanitize_overflow": False} if checks else {}
        return {"num_warps": warps, "enable_fp_fusion": True, **asserting}

    def helpers(self) -> str:
        """The helper functions that the body calls."""
        return "".join(f"\n\n@triton.jit\n{text}\n" for name, text in HELPERS.items() if name in self.values.helpers)

    # lines and names

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, name: str) -> str:
        """A Python name like `name` that nothing else has."""
        base = re.sub(r"\W", "_", name)
        base = f"_{base}" if not base or base[0].isdigit() else base
        found, count = base, 0
        while found in self.taken:
            count += 1
            found = f"{base}_{count}"
        self.taken.add(found)
        return found

    def bind(self, text: str, axes: tuple[str, ...], name: str) -> Block:
        """Assign `text` to a fresh name like `name`."""
        block = Block(self.fresh(name), axes)
        self.put(f"{block.name} = {text}")
        self.measure(axes)
        return block

    def measure(self, axes: Sequence[str]) -> None:
        size = product(self.values.loops[a].tile for a in axes)
        self.largest = max(self.largest, size if isinstance(size, int) else 1)

    # statements

    def block(self, body: tile.Block) -> None:
        if sum(isinstance(s, For) and s.parallel for s in body) > 1:
            raise TritonError(f"@{self.kernel.name}: two parallel loops side by side need two kernels")
        if any(isinstance(s, For) and s.parallel for s in body) and any(map(updates, body)):
            raise TritonError(
                f"@{self.kernel.name}: a loop that changes what it reads, beside a parallel one, needs a kernel"
            )
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name, value):
                value = self.values.short(value)
                axes = self.values.axes(value)
                text = literal(value, typed=True) if isinstance(value, Const) else self.values.text(value, axes)
                kept = text.isidentifier() and not self.reads_scalar(value)
                self.values.names[name] = Block(text, axes) if kept else self.bind(text, axes, name)
            case Store(buffer, index, value):
                self.store(buffer, index, self.values.short(value))
            case Local(buffer, type_):
                if type_.rank:
                    self.declared[buffer] = len(self.values.loops)
                else:
                    tiled = tuple(v for v, r in self.values.loops.items() if r.tile > 1)
                    self.values.scalars[buffer] = Block(self.fresh(buffer), tiled)
            case Check():
                self.check(stmt)
            case For(r, body, parallel):
                with self.inside([r], parallel):
                    self.block(body)
            case Reduce():
                self.reduce(stmt)

    def store(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        if buffer in self.declared:
            self.store_row(buffer, index, value)
            return
        if buffer in self.values.scalars:
            self.store_scalar(buffer, value)
            return
        axes, own = self.values.axes_at(index), self.values.axes(value)
        if isinstance(value, Call):
            block = self.bind(self.values.text(value, own), own, f"{self.params[buffer]}_block")
            text = self.values.spread(block, axes)
        else:
            text = self.values.text(value, axes)
        self.measure(axes)
        self.put(f"tl.store({self.values.pointer(buffer, index, axes)}, {text}{self.mask(axes)})")

    def mask(self, axes: Sequence[str]) -> str:
        """The argument that keeps a store inside partial blocks."""
        tests = self.values.inside(axes, axes)
        return f", mask={every(tests)}" if tests else ""

    def store_row(self, buffer: str, index: Sequence[Dim], value: Expr) -> None:
        """The block that a local buffer holds from here on."""
        inner = dict(list(self.values.loops.items())[self.declared[buffer] :])
        walked = [inner.get(str(d)) for d in index]
        rows = tuple(r for r in walked if r is not None and r.lo == 0 and is_whole(r))
        if len(rows) != len(index) or {r.var for r in rows} != set(inner):
            raise TritonError(f"local %{buffer} is not filled in one step; run gpu-rows")
        axes = self.values.axes(value)
        self.values.rows[buffer] = Row(self.bind(self.values.text(value, axes), axes, buffer), rows)

    def store_scalar(self, buffer: str, value: Expr) -> None:
        """Assign to a variable, whose shape is the same wherever that happens."""
        held = self.values.scalars[buffer]
        if inside := set(self.values.axes(value)) - set(held.axes):
            raise TritonError(f"local %{buffer} holds one element, and is given one for each %{min(inside)}")
        self.put(f"{held.name} = {self.values.guarded(value, held.axes, (), const(0, value.dtype))}")

    def reads_scalar(self, value: Expr) -> bool:
        """Whether the value is what a variable holds now."""
        return isinstance(value, Load) and value.buffer in self.values.scalars

    def check(self, stmt: Check) -> None:
        block = self.values.names[stmt.name]
        low, high = (self.values.dim(d, block.axes) for d in (stmt.low, stmt.high))
        test = f"({block.name} >= {low}) & ({block.name} < {high})"
        self.put(f'tl.device_assert({test}, "index outside {low}..{high}"{self.mask(block.axes)})')

    # loops

    @contextmanager
    def inside(self, ranges: Sequence[Range], parallel: bool = False) -> Iterator[None]:
        """Write the headers of nested loops; what is written inside is their body."""
        depth, outer = self.depth, dict(self.values.loops)
        indices, loaded = dict(self.indices), dict(self.values.loaded)
        for r in ranges:
            self.open(r, parallel)
        yield
        if self.depth > depth:  # what the body of a loop binds is gone behind it
            self.indices, self.values.loaded = indices, loaded
        self.depth, self.values.loops = depth, outer

    def open(self, r: Range, parallel: bool) -> None:
        """Bring the indices of one loop into scope."""
        if r.tile & (r.tile - 1):
            raise TritonError(f"%{r.var} has tile {r.tile}; blocks are powers of two")
        if parallel:
            start = self.program(r)
        elif is_whole(r):
            start = str(r.lo)
        else:
            start = self.fresh(f"{r.var}_start" if r.tile > 1 else r.var)
            self.put(f"for {start} in range({r.lo}, {r.hi}{f', {r.tile}' if r.tile > 1 else ''}):")
            self.depth += 1
        index = start if r.tile == 1 else f"{start} + tl.arange(0, {r.tile})".removeprefix("0 + ")
        index = f"tl.cast({index}, tl.int64)" if self.wide else index
        if index.isidentifier():
            name = index
        else:
            name = self.indices.get(index, "")
            around = [self.values.names[v].name for v in self.values.loops]
            if not name or name in around:  # nested loops keep indices apart
                name = self.indices[index] = self.fresh(r.var)
                self.put(f"{name} = {index}")
        self.values.loops[r.var] = r
        self.values.names[r.var] = Block(name, (r.var,) if r.tile > 1 else ())

    def program(self, r: Range) -> str:
        """The first index of a parallel loop's block, from the number of the program."""
        place = self.programs.index(r)
        if place == 0:
            self.put("pid = tl.program_id(0)")
        inner = product(steps(s) for s in self.programs[place + 1 :])
        number = "pid" if inner == 1 else f"pid // {inner}"
        number = f"{number} % {steps(r)}" if place else number
        first = "0" if steps(r) == 1 else f"{number} * {r.tile}" if r.tile > 1 else number
        return first if r.lo == 0 else f"{r.lo} + {first}"

    # reductions

    def reduce(self, s: Reduce) -> None:
        """Combine the values of all points: block by block in an accumulator where loops run, then along its axes."""
        name = self.fresh(s.name)
        own = tuple(r.var for r in s.ranges if r.tile > 1)
        above, self.lines = self.lines, []
        with self.inside(s.ranges):
            running = any(not is_whole(r) for r in s.ranges)
            self.block(s.body)
            text, axes = self.dot(s, own, name if running else "") or self.lanes(s, own, name if running else "")
            self.measure(axes)
            shape = self.values.shape(axes)
            if running:
                self.put(f"{name} = {text}")
        inner, self.lines = self.lines, above
        if running:
            start, dtype = literal(identity(s)), DTYPES[s.value.dtype.name][0]
            self.put(f"{name} = tl.full({shape}, {start}, {dtype})")
            text = name
        self.lines += inner
        for place in reversed([k for k, a in enumerate(axes) if a in own]):
            text = along(s, text, place)
        if text != name:
            self.put(f"{name} = {text}")
        self.values.names[s.name] = Block(name, tuple(a for a in axes if a not in own))

    def lanes(self, s: Reduce, own: Sequence[str], sum_: str) -> tuple[str, tuple[str, ...]]:
        """The values of one step, combined with the accumulator `sum_` if there is one, and their axes."""
        value = self.values.short(s.value)
        axes = self.values.ordered({*self.values.axes(value), *own})
        text = self.values.guarded(value, axes, own, identity(s))
        helper = combiner(s.op, s.value.dtype)
        self.values.helpers |= {helper} - {""}
        return (f"{helper}({sum_}, {text})" if helper else f"{sum_} + {text}") if sum_ else text, axes

    def dot(self, s: Reduce, own: Sequence[str], sum_: str) -> tuple[str, tuple[str, ...]] | None:
        """The sum of products as a product of blocks; None where it is none."""
        if s.op != "add" or len(own) != 1 or not isinstance(s.value, Call) or s.value.primitive != "mul":
            return None
        x, y = factors(s.value)
        if (x.dtype, s.value.dtype) not in PRODUCTS:
            return None
        free = [set(self.values.axes(e)) - set(own) for e in (x, y)]
        shared = all(own[0] in self.values.axes(e) for e in (x, y))
        if not shared or [len(f) for f in free] != [1, 1] or free[0] == free[1]:
            return None
        rows, columns = self.values.ordered(free[0] | free[1])
        x, y = (x, y) if free[0] == {rows} else (y, x)
        if min(self.values.loops[v].tile for v in (rows, *own, columns)) < LEAST:
            return None
        a = self.values.guarded(self.values.short(x), (rows, *own), own, const(0, x.dtype))
        b = self.values.guarded(self.values.short(y), (*own, columns), own, const(0, y.dtype))
        extra = {f32: ', input_precision="ieee"', f64: ", out_dtype=tl.float64"}.get(x.dtype, "")
        return f"tl.dot({a}, {b}{f', {sum_}' if sum_ else ''}{extra})", (rows, columns)


LEAST = 16
"""The smallest extent of a block that `tl.dot` takes on every GPU."""

PRODUCTS = {(f16, f32), (bf16, f32), (f32, f32), (f64, f64), (i8, i32)}
"""What `tl.dot` multiplies, and what it adds in."""


def updates(stmt: Stmt) -> bool:
    """Whether a serial loop changes what it reads: it must not run in every program."""
    if not isinstance(stmt, For) or stmt.parallel:
        return False
    written = {s.buffer for s in tile.walk((stmt,)) if isinstance(s, Store)}
    own = {s.buffer for s in tile.walk((stmt,)) if isinstance(s, Local)}
    return bool({e.buffer for e in tile.loads((stmt,))} & written - own)


def factors(value: Call) -> tuple[Expr, Expr]:
    """The factors of a product, before they were widened where `tl.dot` widens by itself."""
    x, y = value.operands
    inner = [e.operands[0] if isinstance(e, Call) and e.primitive == "cast" else e for e in (x, y)]
    same = inner[0].dtype == inner[1].dtype and (inner[0].dtype, value.dtype) in PRODUCTS
    return (inner[0], inner[1]) if same else (x, y)


def identity(s: Reduce) -> Const:
    """What leaves a combination unchanged."""
    return const(IDENTITIES[s.op](s.value.dtype), s.value.dtype)


def along(s: Reduce, text: str, axis: int) -> str:
    """A block combined along one of its axes."""
    dtype, helper = s.value.dtype, combiner(s.op, s.value.dtype)
    if helper:
        return f"tl.reduce({text}, {axis}, {helper})"
    return f"tl.sum({text}, axis={axis}{f', dtype={DTYPES[dtype.name][0]}' if dtype.bits < 32 else ''})"


def steps(r: Range) -> Dim:
    """How many blocks a loop takes."""
    return ceildiv(r.extent, r.tile)
