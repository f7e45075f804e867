"""Index arithmetic: LLVM values for index expressions, and the addresses of tile elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

from compiler.codegen.llvm.builder import IRBuilder, llvm_type, memory_type
from compiler.codegen.llvm.primitives import emit_cast
from compiler.codegen.llvm.scope import LANE_VAR, Axis, CodegenScope, Coord, StorageBuffer
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import (
    Atom,
    DynamicSize,
    FloorDiv,
    Min,
    Mod,
    Monomial,
    Var,
    constant_term,
    operands,
)
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, substitute, variables
from compiler.ir.types import boolean, i64

PrefetchedLines: TypeAlias = list[tuple[str, int, Dim]]
"""Base pointer, cache level and offset in elements of each prefetched line."""


@dataclass
class AddressEmitter(ABC):
    """Emits the indices of one scope.  `memo` holds the values that the current block has computed."""

    b: IRBuilder
    scope: CodegenScope
    memo: dict[tuple[object, ...], str] = field(default_factory=dict)

    @abstractmethod
    def bound_element(self, name: str, coord: Coord) -> str:
        """Return element `coord` of a named value; an index may use named integers."""

    def emit_size(self, s: DynamicSize) -> str:
        """Return the value of a dynamic size as i64."""
        return size_param_name(s)

    def emit_index(self, d: Dim, coord: Coord) -> str:
        """Emit index `d` as i64: a scalar, or a vector if it varies across lanes."""
        return self.emit_resolved_index(self.scope.resolve(d), coord, self.scope.lane_axis(self.scope.varying_axes(d)))

    def emit_resolved_index(self, d: Dim, coord: Coord, lane: Axis | None) -> str:
        """Emit a resolved index: a scalar, or a vector of `lane.lanes` elements if `lane` is given."""
        lanes = lane.lanes if lane else 0
        if isinstance(d, int):
            return integer(d, lanes)
        total = ""
        for term in d.terms:
            value = self._emit_term(term, coord, lane)
            total = value if not total else self._emit_sum([total, value], lanes)
        return total

    def _emit_term(self, term: tuple[Monomial, int], coord: Coord, lane: Axis | None) -> str:
        """Emit a product of atoms and a coefficient."""
        (mono, coef), lanes, value = term, lane.lanes if lane else 0, ""
        ty = llvm_type(i64, lanes)
        for atom in mono:
            factor = self._emit_atom(atom, coord, lane)
            value = factor if not value else self.b.emit(f"mul nsw {ty} {value}, {factor}", may_hoist=not lanes)
        if not value:
            return integer(coef, lanes)
        return value if coef == 1 else self.b.emit(f"mul nsw {ty} {value}, {integer(coef, lanes)}", may_hoist=not lanes)

    def _emit_sum(self, values: Iterable[str], lanes: int = 0) -> str:
        """Add values from left to right."""
        ty = llvm_type(i64, lanes)
        return reduce(lambda x, y: self.b.emit(f"add nsw {ty} {x}, {y}", may_hoist=not lanes), values)

    def _emit_atom(self, atom: Atom, coord: Coord, lane: Axis | None) -> str:
        lanes = lane.lanes if lane else 0
        if isinstance(atom, (FloorDiv, Mod, Min)):
            ty = llvm_type(i64, lanes)
            quotient = self._divide_lanes(atom, coord, lane) if lane and not isinstance(atom, Min) else None
            if quotient and isinstance(atom, FloorDiv):
                return quotient
            x, y = (self.emit_resolved_index(d, coord, lane) for d in operands(atom))
            if isinstance(atom, Min):
                less = self.b.emit(f"icmp slt {ty} {x}, {y}")
                return self.b.emit(f"select {llvm_type(boolean, lanes)} {less}, {ty} {x}, {ty} {y}")
            quotient = quotient or self._floor_divide(ty, x, y, lanes)
            if isinstance(atom, FloorDiv):
                return quotient
            multiple = self.b.emit(f"mul nsw {ty} {quotient}, {y}")
            return self.b.emit(f"sub nsw {ty} {x}, {multiple}")
        if isinstance(atom, DynamicSize):
            return self.b.splat("i64", self.emit_size(atom), lanes) if lanes else self.emit_size(atom)
        name = atom.name
        if name == LANE_VAR or (lane and name == f"{lane.var}@"):
            assert lane is not None
            start = 0 if name == LANE_VAR else coord[lane.var] * lane.lanes
            return "<" + ", ".join(f"i64 {start + k}" for k in range(lane.lanes)) + ">"
        if name.endswith("@"):
            value = str(coord[name[:-1]])
            return f"splat (i64 {value})" if lanes else value
        if name in self.scope.values:
            bound = self.scope.values[name]
            bound_lanes = lanes if self.scope.lane_axis(bound.axes) else 0
            value = emit_cast(self.b, bound.dtype, i64, self.bound_element(name, coord), bound_lanes)
            return self.b.splat("i64", value, lanes) if lanes and not bound_lanes else value
        value = self.scope.ssa_names[name]
        return self.b.splat("i64", value, lanes) if lanes else value

    def _divide_lanes(self, atom: FloorDiv | Mod, coord: Coord, lane: Axis) -> str | None:
        """Return the quotients of equidistant numbers in lanes, at most one more than the first one's; None for other numbers.

        A scalar division and a comparison then replace a division for each lane.
        """
        ends = [v for v in (LANE_VAR, f"{lane.var}@") if v in variables(atom.num)]
        if len(ends) != 1 or not isinstance(atom.den, int):
            return None
        step, first = coefficient(atom.num, ends[0]), substitute(atom.num, {ends[0]: 0})
        if (
            not isinstance(step, int)
            or not 0 < step * (lane.lanes - 1) < atom.den
            or self.scope.lane_axis(self.scope.varying_axes(first))
        ):
            return None
        start = 0 if ends[0] == LANE_VAR else coord[lane.var] * lane.lanes
        number = self.emit_resolved_index(first + step * start, coord, None)
        quotient = self._floor_divide("i64", number, str(atom.den), 0)
        remainder = self.b.emit(f"sub nsw i64 {number}, {self.b.emit(f'mul nsw i64 {quotient}, {atom.den}')}")
        ty, limits = llvm_type(i64, lane.lanes), ", ".join(f"i64 {atom.den - step * k}" for k in range(lane.lanes))
        wraps = self.b.emit(f"icmp sge {ty} {self.b.splat('i64', remainder, lane.lanes)}, <{limits}>")
        carry = self.b.emit(f"zext {llvm_type(boolean, lane.lanes)} {wraps} to {ty}")
        return self.b.emit(f"add nsw {ty} {self.b.splat('i64', quotient, lane.lanes)}, {carry}")

    def _floor_divide(self, ty: str, num: str, den: str, lanes: int) -> str:
        """Divide by a positive number, rounding down: `sdiv` truncates, so subtract 1 if the remainder is negative."""
        quotient = self.b.emit(f"sdiv {ty} {num}, {den}")
        remainder = self.b.emit(f"srem {ty} {num}, {den}")
        negative = self.b.emit(f"icmp slt {ty} {remainder}, {'zeroinitializer' if lanes else '0'}")
        correction = self.b.emit(f"sext {llvm_type(boolean, lanes)} {negative} to {ty}")
        return self.b.emit(f"add nsw {ty} {quotient}, {correction}")

    def emit_pointer(self, buffer: StorageBuffer, offset: Dim, coord: Coord, gep_flags: str = "inbounds") -> str:
        """Emit the address of element `offset`, a resolved index without lanes.

        What the innermost loop does not change is added before it, because LLVM hoists no address where it expects to run out
        of registers.  The constant term is added last, so that instruction selection folds it into the addressing mode.
        """
        constant = constant_term(offset)
        variable = offset - constant
        element, base = memory_type(buffer.type.dtype), buffer.pointer
        if isinstance(variable, IndexExpr):
            key = ("pointer", base, variable, self._position(variable, coord))
            if key not in self.memo:
                parts = self._split_invariant(variable, coord)
                flags = " inbounds" if len(parts) == 1 else ""  # a part alone may lead out of the buffer
                for part in parts:
                    index = self._emit_sum(part)
                    base = self.b.emit(f"getelementptr{flags} {element}, ptr {base}, i64 {index}", may_hoist=True)
                self.memo[key] = base
            base = self.memo[key]
        return self.b.emit(f"getelementptr {gep_flags} {element}, ptr {base}, i64 {constant}") if constant else base

    def _split_invariant(self, index: IndexExpr, coord: Coord) -> list[list[str]]:
        """Return the terms that the innermost loop does not change, and the others; neither if there are none."""
        parts: dict[bool, list[str]] = {True: [], False: []}
        for term in index.terms:
            value = self._emit_pointer_term(term, coord)
            parts[self.b.is_invariant(value)].append(value)
        return [values for values in parts.values() if values]

    def _emit_pointer_term(self, term: tuple[Monomial, int], coord: Coord) -> str:
        """Emit a term of an address; one that divides, which takes many instructions, once in a block."""
        if all(isinstance(atom, (Var, DynamicSize)) for atom in term[0]):
            return self._emit_term(term, coord, None)
        key = ("pointer", term, self._position(IndexExpr((term,)), coord))
        if key not in self.memo:
            self.memo[key] = self._emit_term(term, coord, None)
        return self.memo[key]

    def _position(self, index: IndexExpr, coord: Coord) -> tuple[object, ...]:
        """Return what a resolved index depends on at `coord`: coordinates of its axes, and of the integers that it names."""
        names, values = sorted(variables(index)), self.scope.values
        own = tuple(coord[v[:-1]] for v in names if v.endswith("@"))
        return own, tuple(tuple(coord[a] for a in values[v].axes) for v in names if v in values)


def integer(n: int, lanes: int) -> str:
    """Return an i64, or a vector of them, as an operand."""
    return f"splat (i64 {n})" if lanes else str(n)


def size_param_name(s: DynamicSize) -> str:
    """Return the name of the parameter that passes a dynamic size to a kernel's function."""
    return f"%size.{s.name}"
