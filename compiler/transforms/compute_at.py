"""Compute-at: compute what a kernel produces inside the loops of the kernel that consumes it, slice by slice (Halide)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Param, Stmt
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, bound_names, substitute_names
from compiler.ir.types import TensorType, with_innermost


def compute_at(
    producer: Kernel,
    consumer: Kernel,
    result: Param,
    operand: Param,
    dims: Sequence[int],
    name: str,
    innermost: int | None = None,
) -> Kernel:
    """Compute `result` of the producer in the consumer's loops over dimensions `dims` of `operand`, the same buffer.

    @pad  { parallel %c { for %i { store %x[%c, %i], %p[%c, %i] } } }
    @conv { parallel %d { ... %p[%d, %j] ... } }
    ->  @name { parallel %d { local %p  for %i { store %x[%d, %i], %p[%i] }  ... %p[%j] ... } }

    Dimension `innermost`, if given, is contiguous in a slice.  A slice of dynamic size becomes scratch memory of the caller instead
    of a local buffer.  TransformError if one of `dims` is not traversed by a parallel loop over the full extent, in every nest of the
    producer and in the consumer.
    """
    source, target = result.name, operand.name
    dim_loops = {d: require_full_extent_loop(consumer.body, target, d) for d in dims}
    shared_loops = [f for f in perfect_nest(consumer.body) if f in dim_loops.values()]
    fresh = NameSupply(consumer)
    params = {p.name: fresh(p.name) for p in producer.params if p is not result}
    inner = list[Stmt]()
    for s in producer.body:
        loop_vars = {require_full_extent_loop((s,), source, d).range.var: dim_loops[d].range.var for d in dims}
        copy = remove_loops((s,), set(loop_vars))
        names = {n: fresh(n) for n in sorted(bound_names(copy))}
        inner += (substitute_names(x, {**names, **params, **loop_vars, source: target}) for x in copy)
    inner += remove_loops(consumer.body, {f.range.var for f in shared_loops})
    inputs = tuple(replace(p, name=params[p.name]) for p in producer.params if p is not result)
    slice_type = without_dims(result.type, dims, innermost)
    if not slice_type.is_static:
        own = (replace(p, role="scratch") if p is operand else p for p in consumer.params)
        return Kernel(name, (*inputs, *own), wrap_in_nest(shared_loops, tuple(inner)))
    body = (Local(target, slice_type), *index_without_dims(tuple(inner), target, dims))
    own = (p for p in consumer.params if p is not operand)
    return Kernel(name, (*inputs, *own), wrap_in_nest(shared_loops, body))


def full_extent_loop(body: Block, name: str, d: int) -> For | None:
    """Return the parallel loop from 0 whose variable is index `d` of every access to buffer `name`, or None."""
    indices = {index[d] for index in tile.access_indices(body, name)}
    loops = (f for f in perfect_nest(body) if f.parallel and f.range.lo == 0)
    return next((f for f in loops if indices == {var(f.range.var)}), None)


def require_full_extent_loop(body: Block, name: str, d: int) -> For:
    """Return `full_extent_loop`, or raise TransformError."""
    loop = full_extent_loop(body, name, d)
    if loop is None:
        raise TransformError(f"dimension {d} of %{name} is not traversed by one parallel loop")
    return loop


def without_dims(type_: TensorType, dims: Sequence[int], innermost: int | None = None) -> TensorType:
    """Return the type of a slice that fixes the indices of `dims`; dimension `innermost` of `type_`, if given, is contiguous in it."""
    kept = [d for d in range(type_.rank) if d not in dims]
    slice_type = TensorType(type_.dtype, tuple(type_.shape[d] for d in kept))
    return slice_type if innermost is None else with_innermost(slice_type, kept.index(innermost))


def index_without_dims(body: Block, buffer: str, dims: Sequence[int]) -> Block:
    """Remove the indices of `dims` from all accesses to `buffer`."""

    return tile.map_accesses(body, buffer, lambda index: tuple(i for d, i in enumerate(index) if d not in dims))


def remove_loops(body: Block, names: Set[str]) -> Block:
    """Remove the loops over variables `names` from a perfect nest."""
    nest = perfect_nest(body)
    return wrap_in_nest([f for f in nest if f.range.var not in names], nest[-1].body)
