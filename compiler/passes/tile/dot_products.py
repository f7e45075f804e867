"""Dot products: contractions of narrow elements, a few neighbours of which are multiplied at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.ir import scalar
from compiler.ir.scalar import Const, Load
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import floordiv, mod, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of, uncast
from compiler.ir.tile.kernel import Kernel, Range, Reduce
from compiler.ir.types import TensorType, packed_dtype
from compiler.passes.base import Context, TilePass, register
from compiler.target import MatrixShape


@register
@dataclass(frozen=True)
class DotProducts(TilePass):
    """Multiply packed elements where the target adds the products of a few neighbours in one instruction.

    in %x: bf16[8, 64], const %w: bf16[48, 64]
    %s = reduce add %k in 0..64 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      ->
    in %x: bf16x2[8, 32], const %w: bf16x2[48, 32]
    %s = reduce add %k in 0..32 { yield dot<f32>(%x[%i, %k], %w[%j, %k]) }

    Operands must be contiguous along the reduction, except constants, which are packed when the program is built.  Sums are
    reassociated.  Integer results are the same.
    """

    name = "dot-products"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not context.matrix_shapes:
            return ir
        table, plans = context.accesses(ir), dict[int, DotPlan]()
        for stmt in tile.walk(ir.body):
            contraction = contraction_of(stmt)
            match = contraction and match_operands(contraction, context.matrix_shapes)
            if contraction and match:
                plan = plan_dot(table, contraction.reduction, *match)
                if isinstance(plan, DotPlan):
                    plans[id(stmt)] = plan
                else:
                    context.missed(self, f"%{contraction.reduction.name}: {plan}")
        while inconsistent := {k for k, p in plans.items() if not all_reads_agree(table, p, plans.values())}:
            for k in inconsistent:
                context.missed(self, f"%{plans.pop(k).old.name}: an operand is read in single elements too")
        if not plans:
            return ir
        for p in plans.values():
            lhs, rhs = p.types.values()
            context.applied(
                self, f"%{p.old.name}: adds {lhs.dtype.count} products of {lhs.dtype} and {rhs.dtype} at once"
            )
        types = {name: t for p in plans.values() for name, t in p.types.items()}
        params = tuple(replace(p, type=types.get(p.name, p.type)) for p in ir.params)
        body = tile.expand_stmts(ir.body, lambda s: (plans[id(s)].new,) if id(s) in plans else (s,))
        return replace(ir, params=params, body=body)


@dataclass(frozen=True)
class DotPlan:
    """A contraction `old` rewritten to `new`, for parameters of the packed `types`."""

    old: Reduce
    new: Reduce
    types: Mapping[str, TensorType]


def match_operands(c: Contraction, shapes: Collection[MatrixShape]) -> tuple[Load, Load, int] | None:
    """Return the loads that a contraction multiplies, in the order of an instruction, and how many products that adds."""
    lhs, rhs = (uncast(e) for e in (c.lhs, c.rhs))
    if isinstance(lhs, Load) and isinstance(rhs, Load) and lhs.buffer != rhs.buffer:
        for x, y in ((lhs, rhs), (rhs, lhs)):
            for s in shapes:
                if (s.lhs, s.rhs, s.accumulator) == (x.dtype.name, y.dtype.name, c.accumulator.name):
                    return x, y, s.k
    return None


def plan_dot(table: Accesses, stmt: Reduce, lhs: Load, rhs: Load, count: int) -> DotPlan | str:
    """Return how to add `count` products at once, along the first range that allows it; else the reason why none does."""
    reasons = []
    for r in reversed(stmt.ranges):
        try:
            return pack_along(table, stmt, r, lhs, rhs, count)
        except CannotPack as reason:
            reasons.append(f"{reason}")
    return "; ".join(dict.fromkeys(reasons))


class CannotPack(Exception):
    """Why neighbours along a range cannot be packed."""


def pack_along(table: Accesses, stmt: Reduce, r: Range, lhs: Load, rhs: Load, count: int) -> DotPlan:
    """Pack `count` neighbours along `r`; CannotPack if operands or range do not allow that."""
    if r.lo != 0 or r.extent % count != 0 or stmt.body or r.tile > 1:
        raise CannotPack(f"the range of %{r.var} does not consist of groups of {count}")
    operands = [pack_load(table, x, r, count) for x in (lhs, rhs)]
    ranges = tuple(q.with_(hi=floordiv(q.hi, count)) if q is r else q for q in stmt.ranges)
    value = scalar.call_primitive("dot", *(load for load, _ in operands), dtype=stmt.value.dtype)
    return DotPlan(stmt, replace(stmt, ranges=ranges, value=value), {load.buffer: t for load, t in operands})


def pack_load(table: Accesses, load: Load, r: Range, count: int) -> tuple[Load, TensorType]:
    """Return a load of packed neighbours along `r`, and the type that its buffer needs."""
    type_, dtype = table.types[load.buffer], packed_dtype(load.dtype, count)
    dims = [k for k, d in enumerate(load.index) if r.var in variables(d)]
    if len(dims) != 1 or coefficient(load.index[dims[0]], r.var) != 1:
        raise CannotPack(f"%{load.buffer} has no dimension along %{r.var}")
    dim, role = dims[0], table.roles[load.buffer]
    start = load.index[dim] - var(r.var)
    is_masked_inside = load.mask is not None and r.var in load.mask.used_names
    if mod(start, count) != 0 or type_.shape[dim] % count != 0 or is_masked_inside:
        raise CannotPack(f"%{load.buffer} does not consist of groups of {count} along %{r.var}")
    packed = type_.repacked(dim, dtype) if role == "const" else type_.packed(dim, dtype) if role == "in" else None
    if packed is None:
        raise CannotPack(f"%{load.buffer} is not contiguous along %{r.var}")
    index = tuple(floordiv(start, count) + var(r.var) if k == dim else d for k, d in enumerate(load.index))
    if load.other is not None and load.other != Const(load.dtype, 0.0 if load.dtype.is_float else 0):
        raise CannotPack(f"%{load.buffer} is replaced by {load.other} where it is masked")
    other = Const(dtype, 0) if load.other is not None else None
    return Load(dtype, load.buffer, index, load.mask, other), packed


def all_reads_agree(table: Accesses, plan: DotPlan, plans: Collection[DotPlan]) -> bool:
    """Return True if all accesses to the operands of `plan` are reads of contractions that pack them in the same way."""
    return all(
        any(p.old is a.stmt and p.types.get(a.buffer) == t for p in plans)
        for name, t in plan.types.items()
        for a in table.all
        if a.buffer == name
    )
