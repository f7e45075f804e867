"""Loop distribution: several loops for one, with local buffers for the values that go from one to a later one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from compiler.errors import TransformError
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, product, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Let, Local, Reduce, Stmt, Store, loaded_buffers, stored_buffers
from compiler.ir.tile.substitution import NameSupply, substitute_names
from compiler.ir.tile.uses import used_names
from compiler.ir.types import DType, TensorType


def backward_slice(body: Block, names: set[str]) -> Block:
    """Return the statements of a block that bind `names`, and those that they depend on."""
    statements: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, (Let, Reduce)) and s.name in names:
            statements.insert(0, s)
            names = names | used_names(s)
    return tuple(statements)


def distribute(loop: For, first: Block, fresh: NameSupply) -> Block:
    """Compute the reductions of a loop in a loop of their own; `first` are the statements of its body that they need.

    for %i in 8..16 tile 8 { %s = reduce add %k { ... }  store f(%s), %y[%i] }
    ->  local %t: f32[8]
        for %i in 8..16 tile 8 { %s = reduce add %k { ... }  store %s, %t[%i - 8] }
        for %i in 8..16 { store f(%t[%i - 8]), %y[%i] }

    The loop has at most `tile` indices.  Other bindings of `first` are computed again in the second loop, if it needs
    them.  TransformError if the rest stores what `first` reads, or has statements that cannot be moved.
    """
    body, rows = loop.body, loop.range
    if not all(isinstance(s, (Let, Store)) or (isinstance(s, Reduce) and s.value.dtype.is_float) for s in body):
        raise TransformError(f"%{rows.var} has statements other than bindings, stores and reductions of floats")
    if overwritten := stored_buffers(body) & loaded_buffers(first):
        raise TransformError(f"%{min(overwritten)} is stored to while reductions read it")
    index = (var(rows.var) - rows.lo,)
    totals = {s.name: s.value.dtype for s in first if isinstance(s, Reduce)}
    row_loads = {name: Load(dtype, fresh(f"{name}.rows"), index) for name, dtype in totals.items()}
    rest = with_loads(tuple(s for s in body if not isinstance(s, Reduce)), row_loads)
    stored_names = set().union(*(used_names(s) for s in rest if isinstance(s, Store)))
    needed_for_stores = backward_slice(rest, stored_names)
    row_body = tuple(s for s in rest if isinstance(s, Store) or s in needed_for_stores)
    return (
        *(Local(t.buffer, TensorType(t.dtype, (rows.tile,))) for t in row_loads.values()),
        For(rows, with_stores(first, row_loads)),
        For(rows.with_(tile=1), row_body),
    )


def with_stores(body: Block, loads: Mapping[str, Load]) -> Block:
    """Store each of the values named in `loads` right after it is bound, because the next one needs its registers."""

    def stored(s: Stmt) -> Block:
        if isinstance(s, (Let, Reduce)) and (load := loads.get(s.name)):
            return s, Store(load.buffer, load.index, Ref(load.dtype, s.name))
        return (s,)

    return tuple(x for s in body for x in stored(s))


def with_loads(body: Block, loads: Mapping[str, Load]) -> Block:
    """Load the values named in `loads` instead of reading them by name."""

    def read(e: Expr) -> Expr:
        return scalar.transform(e, lambda x: loads.get(x.name, x) if isinstance(x, Ref) else x)

    return tile.map_exprs(body, read)


def distribute_at(loop: For, starts: Collection[int], fresh: NameSupply) -> Block:
    """Distribute a loop over the parts of its body that begin with the statements numbered `starts`.

    for %i in 0..8 { %s = f(%x[%i])  for %k in 0..9 { store %s, %y[%k, %i] } }
    ->  local %s.each: f32[8]
        for %i in 0..8 { %s = f(%x[%i])  store %s, %s.each[%i] }
        for %i in 0..8 { %s = %s.each[%i]  for %k in 0..9 { store %s, %y[%k, %i] } }

    TransformError if the loop is serial, or its body has statements other than loops, bindings and stores.
    """
    body, rows = loop.body, loop.range
    if not loop.parallel:
        raise TransformError(f"the order of the steps of %{rows.var} matters")
    if not all(isinstance(s, (Let, Reduce, For, Store)) for s in body):
        raise TransformError(f"%{rows.var} has statements other than loops, bindings and stores")
    parts = [body[k:end] for k, end in pairwise((0, *sorted(starts), len(body))) if k < end]
    index, kept = (var(rows.var) - rows.lo,), dict[str, Load]()
    loops: list[Stmt] = []
    for k, part in enumerate(parts):
        later = {name for p in parts[k + 1 :] for s in p for name in used_names(s)}
        bound = {s.name: s.value.dtype for s in part if isinstance(s, (Let, Reduce)) and s.name in later}
        read = [Let(name, load) for name, load in kept.items() if any(name in used_names(s) for s in part)]
        kept |= {name: Load(dtype, fresh(f"{name}.each"), index) for name, dtype in bound.items()}
        stores = (Store(kept[name].buffer, index, Ref(dtype, name)) for name, dtype in bound.items())
        loops.append(replace(loop, body=(*read, *part, *stores)))
    locals_ = (Local(load.buffer, TensorType(load.dtype, (rows.extent,))) for load in kept.values())
    return (*locals_, *loops)


def distribute_producers(loop: For, count: int, fresh: NameSupply, row_stride: Callable[[Dim, DType], Dim]) -> Block:
    """Run the first `count` statements of a loop's body in a loop of their own, one index after another.

    for %i in 8..16 tile 8 { local %x: f32[99]  for %k { store f, %x[%k] }  %s = reduce add %r { %x[%r] * %w[%r] } ... }
    ->  local %x.rows: f32[8, 112]
        for %i in 8..16 { for %k { store f, %x.rows[%i - 8, %k] } }
        for %i in 8..16 tile 8 { %s = reduce add %r { %x.rows[%i - 8, %r] * %w[%r] } ... }

    The loop has at most `tile` indices.  A row of a local buffer is padded to `row_stride(its size, dtype)` elements.
    TransformError if the first statements store other buffers than their own, the rest stores what they read, or uses a value of
    theirs as an index.
    """
    rows, first, rest = loop.range, loop.body[:count], loop.body[count:]
    own = {s.buffer: s.type for s in first if isinstance(s, Local)}
    used = loaded_buffers(rest).union(*map(used_names, rest))
    values = {s.name: s.value.dtype for s in first if isinstance(s, (Let, Reduce)) and s.name in used}
    if outside := stored_buffers(first) - own.keys():
        raise TransformError(f"%{min(outside)} is stored to in the loop that computes the operand")
    if overwritten := stored_buffers(rest) & (loaded_buffers(first) - own.keys()):
        raise TransformError(f"%{min(overwritten)} is stored to while the operand is computed from it")
    if indices := values.keys() & set().union(*map(variables, tile.index_exprs(rest))):
        raise TransformError(f"%{min(indices)} is an index")
    row = (var(rows.var) - rows.lo,)
    row_loads = {name: Load(dtype, fresh(f"{name}.rows"), row) for name, dtype in values.items()}
    stored = stored_buffers(first)
    later = [s for s in first if isinstance(s, Local) and s.buffer in used]
    shared = [s for s in later if s.buffer in stored]
    first = with_stores(tuple(s for s in first if s not in later), row_loads)
    rest = (*(s for s in later if s not in shared), *with_loads(rest, row_loads))
    buffers = [Local(e.buffer, TensorType(e.dtype, (rows.tile,))) for e in row_loads.values()]
    for local in shared:
        dtype, size = local.type.dtype, row_stride(product(local.type.physical_shape), local.type.dtype)
        buffer = Local(fresh(f"{local.buffer}.rows"), TensorType(dtype, (rows.tile, size)), local.space)
        first, rest = in_row(first, local, buffer, row), in_row(rest, local, buffer, row)
        buffers.append(buffer)
    return (*buffers, For(rows.with_(tile=1), first), For(rows, rest))


def in_row(body: Block, local: Local, buffer: Local, row: tuple[Dim, ...]) -> Block:
    """Access the elements of `local` in a row of `buffer` instead."""
    accessed = tile.map_accesses(body, local.buffer, lambda index: (*row, local.type.offset(index)))
    return tuple(substitute_names(s, {local.buffer: buffer.buffer}) for s in accessed)


def distribute_sum(total: Reduce, fresh: NameSupply) -> Block:
    """Compute the terms of a sum over one loop in a loop of their own, which stores them.

    %t = reduce add %r in 0..17 { %s = reduce add %k { ... }  yield %s }
    ->  local %e: f32[17]
        for %r in 0..17 { %s = reduce add %k { ... }  store %s, %e[%r] }
        %t = reduce add %l in 0..17 { yield %e[%l] }

    A local buffer that holds the terms already serves.  TransformError if the number of terms is not known.
    """
    (rows,) = total.ranges
    if not isinstance(rows.extent, int):
        raise TransformError(f"the number of terms of %{total.name} is not known")
    again = rows.with_(var=fresh(f"{rows.var}.term"))
    stores = (s for s in total.body if isinstance(s, Store) and s.value == total.value)
    held = next((s for s in stores if s.index == (var(rows.var),)), None)
    buffer = held.buffer if held else fresh(f"{total.name}.terms")
    index, dtype = (0 if held else rows.lo), total.value.dtype
    store = () if held else (Store(buffer, (var(rows.var) - index,), total.value),)
    terms = replace(total, ranges=(again,), body=(), value=Load(dtype, buffer, (var(again.var) - index,)))
    local = () if held else (Local(buffer, TensorType(dtype, (rows.extent,))),)
    return (*local, For(rows, (*total.body, *store)), terms)
