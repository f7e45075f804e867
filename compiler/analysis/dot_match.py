"""Match of contractions that dot products of packed elements can compute: which neighbours of both operands to pack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from compiler.analysis.accesses import Accesses
from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, floordiv, mod, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of, uncast
from compiler.ir.tile.kernel import Kernel, Let, Range, Reduce, Stmt
from compiler.ir.tile.substitution import substitute_indices
from compiler.ir.types import DType, TensorType, packed_dtype, u8, with_innermost
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


@dataclass(frozen=True)
class WordField:
    """The bits of `mask` that begin at bit `start` of an integer `word`, as an integer `dtype` of 8 bits."""

    dtype: DType
    word: Expr
    start: Dim
    mask: int

    @property
    def used_names(self) -> frozenset[str]:
        """Names that the word and the start depend on."""
        return self.word.used_names | variables(self.start)

    def pack(self, r: Range, count: int) -> Expr:
        """Return the fields of `count` neighbours along `r`, which are bytes of one word; CannotPack if they are others.

        %w[%k//8] >> (%k%4*8 + %k//4%2*4) & 15  ->  bitcast<u8x4>(%w[%k//2] >> %k%2*4 & 0x0f0f0f0f)
        """
        steps = [{r.var: var(r.var) * count + k} for k in range(count)]
        words = [substitute_expr(self.word, s) for s in steps]
        starts = [substitute(self.start, s) for s in steps]
        packed = packed_dtype(self.dtype, count)
        if packed.bits != self.word.dtype.bits or words.count(words[0]) < count:
            raise CannotPack(f"neighbours along %{r.var} lie in several words")
        if any(s - starts[0] != self.dtype.bits * k for k, s in enumerate(starts)):
            raise CannotPack(f"neighbours along %{r.var} are not the bytes of a word")
        masks = sum(self.mask << self.dtype.bits * k for k in range(count))
        shifted = words[0] >> scalar.index_value(starts[0]).to(self.word.dtype)
        return (shifted & as_signed(masks, packed.bits)).bitcast(packed)


Operand: TypeAlias = Load | WordField
"""What a dot product may read: an element of a buffer, or a byte of a word."""


def match_field(e: Expr) -> WordField | None:
    """Return the field of a word that an integer of 8 bits without sign is; None for others."""
    if not (isinstance(e, PrimitiveCall) and e.primitive == "cast" and e.dtype == u8):
        return None
    x, mask = e.operands[0], 255
    if isinstance(x, PrimitiveCall) and x.primitive == "and" and isinstance(x.operands[1], Const):
        mask, x = int(x.operands[1].value), x.operands[0]
    start: Dim = 0
    while isinstance(x, PrimitiveCall) and x.primitive == "shr":
        amount = scalar.as_index(uncast(x.operands[1]))
        if amount is None:
            return None
        x, start = x.operands[0], start + amount
    is_field = x.dtype.is_integer and bool(variables(start)) and 0 <= mask <= 255
    return WordField(e.dtype, x, start, mask) if is_field else None


def as_signed(bits: int, width: int) -> int:
    """Return the signed integer of `width` bits."""
    return bits - (1 << width) if bits >> width - 1 else bits


def substitute_expr(e: Expr, values: Mapping[str, Dim]) -> Expr:
    """Return `e` with other indices for variables."""
    return substitute_indices(Let("", e), values).value


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
    shared = lhs.used_names & rhs.used_names
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
) -> tuple[Operand, Operand, int] | None:
    """Return what a contraction multiplies, in the order of an instruction, and how many products that adds.

    `roles` are those of all buffers.  Constants may be narrower than what the instruction multiplies.
    """
    lhs, rhs = as_operand(c.lhs), as_operand(c.rhs)
    if lhs is None or rhs is None:
        return None
    found = find_widening_shape(shapes, lhs.dtype, rhs.dtype, c.accumulator)
    if found is None:
        return None
    shape, dtypes = found
    for x, d in zip((lhs, rhs), dtypes, strict=True):
        if x.dtype != d and not (isinstance(x, Load) and roles[x.buffer] == "const"):
            return None
    return (lhs, rhs, shape.k) if f"{dtypes[0]}" == shape.lhs else (rhs, lhs, shape.k)


def as_operand(e: Expr) -> Operand | None:
    """Return the load that a factor widens, or the field of a word; None for others."""
    narrow = uncast(e)
    return narrow if isinstance(narrow, Load) else match_field(narrow)


def match_dot(table: Accesses, stmt: Reduce, lhs: Operand, rhs: Operand, count: int) -> DotMatch | NoDot:
    """Return how to add `count` products at once, along the last range that allows it, or why none does."""
    reasons = []
    for r in reversed(stmt.ranges):
        try:
            return pack_along(table, stmt, r, lhs, rhs, count)
        except CannotPack as reason:
            reasons.append(f"{reason}")
    return NoDot(stmt, "; ".join(dict.fromkeys(reasons)))


def pack_along(table: Accesses, stmt: Reduce, r: Range, lhs: Operand, rhs: Operand, count: int) -> DotMatch:
    """Pack `count` neighbours along `r`; CannotPack if operands or range do not allow that."""
    if r.lo != 0 or not isinstance(r.extent, int) or r.extent % count or stmt.body or r.tile > 1:
        raise CannotPack(f"the range of %{r.var} does not consist of groups of {count}")
    types = dict[str, TensorType]()
    operands = [pack_operand(table, x, r, count, types) for x in (lhs, rhs)]
    if not any(isinstance(e, Load) for e in operands):
        raise CannotPack(f"neither operand is contiguous along %{r.var}")
    ranges = tuple(q.with_(hi=r.extent // count) if q is r else q for q in stmt.ranges)
    value = scalar.call_primitive("dot", *operands, dtype=stmt.value.dtype)
    return DotMatch(stmt, replace(stmt, ranges=ranges, value=value), types)


def pack_operand(table: Accesses, x: Operand, r: Range, count: int, types: dict[str, TensorType]) -> Expr:
    """Return `count` neighbours along `r`, packed; adds the type that the buffer of a load needs to `types`."""
    if isinstance(x, WordField):
        return x.pack(r, count)
    packed, type_ = pack_load(table, x, r, count)
    if types.setdefault(x.buffer, type_) != type_:
        raise CannotPack(f"%{x.buffer} would be packed along two dimensions")
    return packed


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
