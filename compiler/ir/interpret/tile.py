"""Interpreter of Tile IR in NumPy: the definition of its semantics.

A loop visits its indices `tile` at a time.  The variable of a tiled loop is an array of indices along its own axis.
Every value is an array with one axis per enclosing tiled loop, of size 1 if it does not depend on the loop; values
broadcast as in NumPy:

    for %i in 0..10 tile 4 {          %i = [[0], [1], [2], [3]], then ... [[8], [9]]
      for %j in 0..6 tile 6 {         %j = [[0, 1, 2, 3, 4, 5]]
        store %x[%i] + 1.0, %y[%i, %j]

Layouts, lanes, unrolling and threads are ignored: arrays are logical, and no result depends on them.

For speed, an untiled loop whose iterations plainly share no element is run on many indices at once as well.  That changes no
bit of a result: its reductions still combine value by value, in order.

To expose programs that see when an asynchronous copy happens, its destination is poisoned at the start and written by the wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.interpret.arrays import REDUCE_UFUNCS, to_interpreter_array
from compiler.ir.interpret.independence import independent_loops
from compiler.ir.interpret.primitives import evaluate_call
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref, round_to
from compiler.ir.symbolic.binding import evaluate_broadcast
from compiler.ir.symbolic.index_expr import Dim, evaluate, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dynamic_sizes import bind_sizes, specialize_buffers
from compiler.ir.tile.kernel import Block, BoundsCheck, For, Kernel, Let, Local, Prefetch, Range, Reduce, Stmt, Store
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Repeat, Step, View
from compiler.ir.types import TensorType

MAX_AT_ONCE = 4096
"""Most iterations of untiled loops that run at once; chosen empirically, more take memory and save little time."""


class KernelRunner(Protocol):
    """Runs kernels: `run_kernel`, or native code."""

    def __call__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> None:
        """Do as `run_kernel` does."""


def run_kernel(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> None:
    """Run `kernel` on arrays by parameter name, of its logical shape and `dtype.numpy`; outputs are written in place.

    `sizes` gives the dynamic sizes that the array shapes do not determine.  IndexError if a `check` fails; VerifyError
    if an access is out of bounds or an array has the wrong type.
    """
    sizes = all_sizes(kernel, buffers, sizes or {})
    for p in kernel.params:
        array = buffers[p.name]
        if array.shape != p.type.specialize(sizes).shape or array.dtype != p.type.dtype.numpy:
            raise VerifyError(f"@{kernel.name}: %{p.name} must be {p.type}, got {array.dtype}{list(array.shape)}")
    execution = _KernelExecution(kernel, buffers, sizes)
    execution.run_block(kernel.body)
    if execution.index_errors:
        raise IndexError(f"@{kernel.name}: " + "; ".join(dict.fromkeys(execution.index_errors)))


def all_sizes(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return `sizes` and those that the shapes of a kernel's arrays determine."""
    typed_shapes = [(p.type.specialize(sizes), buffers[p.name].shape) for p in kernel.params]
    return {**sizes, **(bind_sizes(*zip(*typed_shapes, strict=True)) if typed_shapes else {})}


def run_program(program: Program, inputs: Sequence[Array], run: KernelRunner = run_kernel) -> list[Array]:
    """Return the program's outputs; outputs have type `dtype.numpy`, inputs may have `dtype.storage`.  `run` runs kernels."""
    sizes = bind_sizes((program.buffers[n] for n in program.inputs), (x.shape for x in inputs))
    program = specialize_buffers(program, sizes)
    arrays = {name: poisoned_array(type_) for name, type_ in program.buffers.items() if name not in program.views}
    given = {**program.constants, **dict(zip(program.inputs, inputs, strict=True))}
    for name, array in given.items():
        array, type_ = array.array if isinstance(array, ConstantData) else array, program.buffers[name]
        arrays[name] = to_interpreter_array(array, type_.dtype).reshape(type_.static_shape())
    _run_steps(program, program.steps, arrays, {}, sizes, run)
    return [arrays[name] for name in program.outputs]


def _run_steps(
    program: Program,
    steps: Iterable[Step],
    arrays: dict[str, Array],
    counters: Mapping[str, int],
    sizes: Mapping[str, int],
    run: KernelRunner,
) -> None:
    for step in steps:
        if isinstance(step, Launch):
            kernel = program.kernels[step.kernel]
            buffers = {}
            for p, argument in zip(kernel.params, step.arguments, strict=True):
                type_ = p.type.specialize(sizes)
                elementwise = type_.elementwise(arrays[argument].shape)
                array = arrays[argument][elementwise.subview_slices() or ...]
                buffers[p.name] = array if elementwise is type_ else pack_elements(array, type_)
            run(kernel, buffers, sizes)
        elif isinstance(step, Copy):
            arrays[step.target][...] = arrays[step.source]
        elif isinstance(step, View):
            first = evaluate(step.index, counters)
            entries = first if step.count is None else slice(first, first + step.count)
            arrays[step.name] = arrays[step.buffer][entries, ...]
        elif isinstance(step, Repeat):
            for k in range(evaluate(step.count, {})):
                _run_steps(program, step.steps, arrays, {**counters, step.var: k}, sizes, run)
        else:
            _call_opaque(step, program.buffers, arrays)


def pack_elements(array: Array, type_: TensorType) -> Array:
    """Return the packed elements of `type_` for an array of single elements."""
    dim = type_.packed_dim(array.shape)
    neighbours = np.moveaxis(array, dim, -1)
    packed = type_.dtype.pack(neighbours.reshape(*neighbours.shape[:-1], -1, type_.dtype.count))
    return np.moveaxis(packed, -1, dim)


def poisoned_array(type_: TensorType, private_shape: Sequence[int] = ()) -> Array:
    """Return an array of NaN, True or 99, to expose reads of unwritten elements, with leading axes `private_shape`."""
    return _poison(np.empty((*private_shape, *type_.static_shape()), type_.dtype.numpy))


def _poison(array: Array) -> Array:
    array[...] = float("nan") if array.dtype.kind == "f" else True if array.dtype.kind == "b" else 99
    return array


def _call_opaque(step: OpaqueCall, buffers: Mapping[str, TensorType], arrays: dict[str, Array]) -> None:
    from compiler.ir.interpret.graph import run_opaque_op

    results = run_opaque_op(step.op, dict(step.attrs), [(arrays[a], buffers[a].dtype) for a in step.arguments])
    for name, result in zip(step.results, results, strict=True):
        arrays[name][...] = result


def _has_aliases(kernel: Kernel, buffers: Mapping[str, Array]) -> bool:
    """Return True if a parameter that is written may share elements with another one."""
    return any(
        p is not q and np.may_share_memory(buffers[p.name], buffers[q.name])
        for p in kernel.params
        if p.is_written
        for q in kernel.params
    )


class _KernelExecution:
    """One execution of a kernel.

    `private_axes` is the number of leading axes of each local buffer, one per tiled loop around its declaration, and
    `tile_widths` the widths of the tiled loops around the current statement.  `independent` has the ids of the loops that
    are run like tiled ones.
    """

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        self.arrays, self.sizes = dict(buffers), sizes
        self.private_axes: dict[str, int] = {}
        self.values: dict[str, Any] = {}
        loops = () if _has_aliases(kernel, buffers) else independent_loops(kernel.body)
        self.independent = set(map(id, loops))
        self.rank = self.axis_depth(kernel.body)
        self.tile_widths: list[int] = []
        self.index_errors: list[str] = []
        self.copies = defaultdict[str, list[tuple[Array, Array]]](list)  # sources and targets of those under way

    def axis_depth(self, body: Block) -> int:
        """Return the largest number of nested loops in `body` whose variables are arrays."""
        own = [sum(r.tile > 1 or id(s) in self.independent for r in tile.stmt_ranges(s)) for s in body]
        return max((n + self.axis_depth(tile.stmt_body(s)) for n, s in zip(own, body, strict=True)), default=0)

    def run_block(self, body: Block) -> None:
        for stmt in body:
            self.run_stmt(stmt)

    def run_stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name, value):
                self.values[name] = self.evaluate_expr(value)
            case Store(buffer, index, value):
                self.run_store(buffer, index, self.evaluate_expr(value))
            case Local(buffer, type_, _):
                self.arrays[buffer] = poisoned_array(type_.specialize(self.sizes), self.tile_widths)
                self.private_axes[buffer] = len(self.tile_widths)
            case BoundsCheck(name, low, high):
                self.run_check(name, *(self.evaluate_index(d) for d in (low, high)))
            case Prefetch():
                pass
            case tile.AsyncCopy():
                source, target = map(self.box_elements, stmt.boxes)
                self.copies[stmt.target].append((source, _poison(target)))
            case tile.Wait(buffer, pending):
                while len(self.copies[buffer]) > pending:
                    source, target = self.copies[buffer].pop(0)
                    target[...] = source.reshape(target.shape)
            case For(loop, body):
                for _ in self.iterate_tiles((loop,), id(stmt) in self.independent):
                    self.run_block(body)
            case Reduce():
                self.values[stmt.name] = self.run_reduce(stmt)

    def iterate_tiles(self, loops: Sequence[Range], is_independent: bool) -> Iterator[None]:
        """Bind the loops' variables to each tile of indices in turn, the last loop fastest; independent loops have large tiles."""
        if not loops:
            yield
            return
        loop, inner = loops[0], loops[1:]
        low, high = self.evaluate_bounds(loop)
        step = loop.tile
        if is_independent:  # as many as leave the order of all iterations as it is
            inner_iterations = prod(max(0, end - start) for start, end in map(self.evaluate_bounds, inner))
            step = max(1, MAX_AT_ONCE // max(1, prod(self.tile_widths) * inner_iterations))
        for start in range(low, high, step):
            if loop.tile == 1 and not is_independent:
                self.values[loop.var] = np.int64(start)
                yield from self.iterate_tiles(inner, is_independent)
                continue
            width = min(step, high - start)
            self.values[loop.var] = start + self.axis_indices(len(self.tile_widths), width)
            self.tile_widths.append(width)
            yield from self.iterate_tiles(inner, is_independent)
            self.tile_widths.pop()

    def evaluate_bounds(self, loop: Range) -> tuple[int, int]:
        """Return the first index of a loop and the end of its indices."""
        return int(self.evaluate_index(loop.lo)), int(self.evaluate_index(loop.hi))

    def axis_indices(self, axis: int, width: int) -> Array:
        """Return the indices 0..width-1 as an array along `axis`."""
        return np.arange(width, dtype=np.int64).reshape([width if k == axis else 1 for k in range(self.rank)])

    def run_reduce(self, stmt: Reduce) -> Any:
        dtype, combine, outer_rank = stmt.value.dtype, REDUCE_UFUNCS[stmt.op], len(self.tile_widths)
        total: Any = np.array(IDENTITIES[stmt.op](dtype), dtype.numpy)
        is_independent = id(stmt) in self.independent
        for _ in self.iterate_tiles(stmt.ranges, is_independent):
            self.run_block(stmt.body)
            value, axes = np.asarray(self.evaluate_expr(stmt.value)), tuple(range(outer_rank, len(self.tile_widths)))
            with np.errstate(all="ignore"):
                if axes:  # a value that is constant along an axis still counts once per index
                    widths = [self.tile_widths[k] if k in axes else 1 for k in range(self.rank)]
                    value = np.broadcast_to(value, np.broadcast_shapes(value.shape, widths))
                if is_independent:
                    terms = value.reshape(*value.shape[:outer_rank], -1, *(1,) * (self.rank - outer_rank))
                    for k in range(terms.shape[outer_rank]):
                        total = round_to(combine(total, terms.take(k, outer_rank)), dtype)
                    continue
                if axes:
                    value = combine.reduce(value, axis=axes, keepdims=True, dtype=dtype.numpy)
                total = round_to(combine(total, value), dtype)
        return total

    def run_check(self, name: str, low: Any, high: Any) -> None:
        value = self.values[name]
        invalid = np.asarray((value < low) | (value >= high))
        if invalid.any():
            first = np.broadcast_to(value, invalid.shape)[invalid].flat[0]
            self.index_errors.append(f"index {first} of %{name} is outside {np.min(low)}..{np.max(high) - 1}")

    def evaluate_index(self, d: Dim) -> Any:
        names = {name: np.asarray(self.values[name], np.int64) for name in variables(d)}
        return np.asarray(evaluate_broadcast(d, {**self.sizes, **names}), np.int64)

    def run_store(self, buffer: str, index: Sequence[Dim], value: Any) -> None:
        *indices, value = np.broadcast_arrays(0, *self.element_indices(buffer, index, None), value)
        self.arrays[buffer][np.newaxis][tuple(indices)] = value  # the leading axis gives a rank-0 buffer an index

    def box_elements(self, box: tile.Box) -> Array:
        """Return a view of the elements of a box; VerifyError if it is in a tiled loop or out of bounds."""
        buffer, index, extents = box
        if self.tile_widths:
            raise VerifyError(f"%{buffer} is copied asynchronously inside a tiled loop")
        starts, counts = ([int(self.evaluate_index(d)) for d in dims] for dims in (index, extents))
        array = self.arrays[buffer]
        for k, (start, count) in enumerate(zip(starts, counts, strict=True)):
            if start < 0 or count < 0 or start + count > array.shape[k]:
                raise VerifyError(
                    f"%{buffer}: copied elements {start}..{start + count - 1} of axis {k} exceed the extent {array.shape[k]}"
                )
        return array[tuple(slice(start, start + count) for start, count in zip(starts, counts, strict=True))]

    def element_indices(self, buffer: str, index: Sequence[Dim], mask: Any) -> list[Any]:
        """Return index arrays of the elements, clipped to the bounds; VerifyError if an unmasked one is outside."""
        private_axes = self.private_axes.get(buffer, 0)
        indices: list[Any] = [self.axis_indices(k, self.tile_widths[k]) for k in range(private_axes)]
        for axis, (d, extent) in enumerate(zip(index, self.arrays[buffer].shape[private_axes:], strict=True)):
            i = self.evaluate_index(d)
            in_bounds = (i >= 0) & (i < extent)
            if in_bounds.all():
                indices.append(i)
                continue
            is_safe = mask is not None and np.all(in_bounds | ~mask)
            if not is_safe and not self.index_errors:  # a kernel continues after a failed check, with undefined results
                access = f"%{buffer}[{', '.join(map(str, index))}]"
                raise VerifyError(
                    f"{access}: index {axis} ranges over {i.min()}..{i.max()}, but the extent is {extent}"
                )
            indices.append(np.clip(i, 0, extent - 1))
        return indices

    def evaluate_load(self, e: Load, mask: Any, other: Any) -> Any:
        fill = np.array(0, e.dtype.numpy) if other is None else other
        if mask is not None and not np.any(mask):  # the buffer may be empty
            return fill
        elements = self.arrays[e.buffer][tuple(self.element_indices(e.buffer, e.index, mask))]
        return elements if mask is None else np.where(mask, elements, fill)

    def evaluate_expr(self, e: Expr) -> Any:
        """Return the value of `e` at every index of the enclosing tiles."""
        values: dict[int, Any] = {}
        for node in e.subexprs:
            values[id(node)] = self.evaluate_node(node, values)
        return values[id(e)]

    def evaluate_node(self, e: Expr, values: Mapping[int, Any]) -> Any:
        match e:
            case Const():
                return round_to(e.value, e.dtype)
            case Ref():
                return self.values[e.name]
            case IndexValue():
                return self.evaluate_index(e.index)
            case Load():
                mask, other = (None if part is None else values[id(part)] for part in (e.mask, e.other))
                return self.evaluate_load(e, mask, other)
            case PrimitiveCall():
                return evaluate_call(e, tuple(values[id(a)] for a in e.operands))
        raise VerifyError(f"{type(e).__name__} is not allowed in a kernel")
