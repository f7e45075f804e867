"""Match of contractions that dot products of packed elements can compute: which neighbours of both operands to pack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, Load
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import floordiv, mod, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of, uncast
from compiler.ir.tile.kernel import Kernel, Range, Reduce, Stmt
from compiler.ir.types import TensorType, packed_dtype, with_innermost
from compiler.target import MatrixShape, find_widening_shape


@dataclass(frozen=True)
class DotMatch:
    """A contraction `old` that becomes `new`, for parameters of the packed `types`."""

    old: Reduce
    new: Reduce
    types: Mapping[str, TensorType]


@dataclass(frozen=True)
class NoDot:
    """Reason why a contraction `stmt` of dtypes that the target multiplies takes one product at a time."""

    stmt: Reduce
    reason: str


class CannotPack(Exception):
    """Reason why neighbours along a range cannot be packed."""


def match_dots(table: Accesses, shapes: Collection[MatrixShape]) -> list[DotMatch | NoDot]:
    """Return every contraction of a kernel whose operands the target multiplies a few at a time, or why it cannot here."""
    found = list(_single_matches(table, shapes))
    while inconsistent := {id(m) for m in found if isinstance(m, DotMatch) and not _all_reads_agree(table, m, found)}:
        reason = "an operand is read in single elements too"
        found = [NoDot(m.old, reason) if isinstance(m, DotMatch) and id(m) in inconsistent else m for m in found]
    return found


def products_at_once(kernel: Kernel, stmt: Stmt, shapes: Collection[MatrixShape]) -> int:
    """Return how many products of a contraction one instruction would add, in the best layouts of its operands; 1 without one.

    Only parameters are read packed.
    """
    if not shapes:
        return 1
    contraction, roles = contraction_of(stmt), {p.name: p.role for p in kernel.params}
    if contraction is None or any(e.buffer not in roles for e in contraction.reduction.value.loads):
        return 1
    found = match_operands(roles, contraction, shapes)
    if found is None:
        return 1
    lhs, rhs, count = found
    shared = frozenset.intersection(*(frozenset().union(*map(variables, x.index)) for x in (lhs, rhs)))
    lengths = [r.extent for r in contraction.reduction.ranges if r.var in shared]
    return count if any(isinstance(n, int) and n % count == 0 for n in lengths) else 1


def with_dots(kernel: Kernel, dots: Collection[DotMatch]) -> Kernel:
    """Return the kernel with these contractions over packed elements."""
    types = {name: t for m in dots for name, t in m.types.items()}
    new = {id(m.old): m.new for m in dots}
    params = tuple(replace(p, type=types.get(p.name, p.type)) for p in kernel.params)
    return replace(kernel, params=params, body=tile.expand_stmts(kernel.body, lambda s: (new.get(id(s), s),)))


def _single_matches(table: Accesses, shapes: Collection[MatrixShape]) -> Iterator[DotMatch | NoDot]:
    """Yield a match for each contraction by itself."""
    for stmt in tile.walk(table.kernel.body) if shapes else ():
        contraction = contraction_of(stmt)
        operands = contraction and match_operands(table.roles, contraction, shapes)
        if contraction and operands:
            yield match_dot(table, contraction.reduction, *operands)


def _all_reads_agree(table: Accesses, dot: DotMatch, found: Collection[DotMatch | NoDot]) -> bool:
    """Return True if all accesses to the operands that `dot` packs are reads of contractions that pack them in the same way."""
    dots = [m for m in found if isinstance(m, DotMatch)]
    return all(
        any(m.old is a.stmt and m.types.get(a.buffer) == t for m in dots)
        for name, t in dot.types.items()
        for a in table.all
        if a.buffer == name and t != table.types[name]
    )


def match_operands(
    roles: Mapping[str, str], c: Contraction, shapes: Collection[MatrixShape]
) -> tuple[Load, Load, int] | None:
    """Return the loads that a contraction multiplies, in the order of an instruction, and how many products that adds.

    `roles` are those of all buffers.  Constants may be narrower than what the instruction multiplies.
    """
    lhs, rhs = uncast(c.lhs), uncast(c.rhs)
    if not isinstance(lhs, Load) or not isinstance(rhs, Load):
        return None
    found = find_widening_shape(shapes, lhs.dtype, rhs.dtype, c.accumulator)
    if found is None:
        return None
    shape, dtypes = found
    if any(x.dtype != d and roles[x.buffer] != "const" for x, d in zip((lhs, rhs), dtypes, strict=True)):
        return None
    return (lhs, rhs, shape.k) if f"{dtypes[0]}" == shape.lhs else (rhs, lhs, shape.k)


def match_dot(table: Accesses, stmt: Reduce, lhs: Load, rhs: Load, count: int) -> DotMatch | NoDot:
    """Return how to add `count` products at once, along the last range that allows it, or why none does."""
    reasons = []
    for r in reversed(stmt.ranges):
        try:
            return pack_along(table, stmt, r, lhs, rhs, count)
        except CannotPack as reason:
            reasons.append(f"{reason}")
    return NoDot(stmt, "; ".join(dict.fromkeys(reasons)))


def pack_along(table: Accesses, stmt: Reduce, r: Range, lhs: Load, rhs: Load, count: int) -> DotMatch:
    """Pack `count` neighbours along `r`; CannotPack if operands or range do not allow that."""
    if r.lo != 0 or not isinstance(r.extent, int) or r.extent % count or stmt.body or r.tile > 1:
        raise CannotPack(f"the range of %{r.var} does not consist of groups of {count}")
    operands = [pack_load(table, x, r, count) for x in (lhs, rhs)]
    if lhs.buffer == rhs.buffer and operands[0][1] != operands[1][1]:
        raise CannotPack(f"%{lhs.buffer} would be packed along two dimensions")
    if not any(isinstance(e, Load) for e, _ in operands):
        raise CannotPack(f"neither operand is contiguous along %{r.var}")
    ranges = tuple(q.with_(hi=r.extent // count) if q is r else q for q in stmt.ranges)
    value = scalar.call_primitive("dot", *(e for e, _ in operands), dtype=stmt.value.dtype)
    types = {x.buffer: t for x, (_, t) in zip((lhs, rhs), operands, strict=True)}
    return DotMatch(stmt, replace(stmt, ranges=ranges, value=value), types)


def pack_load(table: Accesses, load: Load, r: Range, count: int) -> tuple[Expr, TensorType]:
    """Return a load of packed neighbours along `r`, or elements packed in registers, and the type that its buffer needs."""
    type_, dtype, role = table.types[load.buffer], packed_dtype(load.dtype, count), table.roles[load.buffer]
    dims = [k for k, d in enumerate(load.index) if r.var in variables(d)]
    dim = dims[-1] if dims else 0
    arranged = with_innermost(type_, dim) if role == "const" else type_
    if coefficient(arranged.offset(load.index), r.var) != 1:
        return pack_rows(table, load, r, count), type_
    index = [substitute(d, {r.var: var(r.var) * count}) for d in load.index]
    if mod(index[dim], count) != 0 or type_.shape[dim] % count != 0:
        raise CannotPack(f"%{load.buffer} does not consist of groups of {count} along %{r.var}")
    index[dim] = floordiv(index[dim], count)
    if load.mask is not None and r.var in load.mask.used_names:
        raise CannotPack(f"%{load.buffer} is masked along %{r.var}")
    if load.other is not None and load.other != Const(load.dtype, 0.0 if load.dtype.is_float else 0):
        raise CannotPack(f"%{load.buffer} is replaced by {load.other} where it is masked")
    packed = type_.repacked(dim, dtype) if role == "const" else type_.packed(dim, dtype) if role == "in" else None
    if packed is None:
        raise CannotPack(f"%{load.buffer} is not contiguous along %{r.var}")
    other = Const(dtype, 0) if load.other is not None else None
    return Load(dtype, load.buffer, tuple(index), load.mask, other), packed


def pack_rows(table: Accesses, load: Load, r: Range, count: int) -> Expr:
    """Return `count` neighbours along `r`, across which the buffer is contiguous, packed in registers: lanes do that at once.

    %w[%k, %j]  ->  pack<bf16x2>(%w[%k*2, %j], %w[%k*2 + 1, %j])
    """
    offset = table.types[load.buffer].offset(load.index)
    lanes = (v for v in variables(offset) - {r.var} if v in table.parallel_loops)
    if (
        load.mask is not None
        or coefficient(offset, r.var) is None
        or not any(coefficient(offset, v) == 1 for v in lanes)
    ):
        raise CannotPack(f"%{load.buffer} is contiguous neither along %{r.var} nor across it")
    indices = ([substitute(d, {r.var: var(r.var) * count + k}) for d in load.index] for k in range(count))
    elements = [replace(load, index=tuple(index)) for index in indices]
    return scalar.call_primitive("pack", *elements, dtype=packed_dtype(load.dtype, count))
