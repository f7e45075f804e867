"""Index arithmetic: where in memory an element of a tile lies, as LLVM values and addresses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from compiler.codegen.llvm.builder import IRBuilder, llvm_type, memory_type
from compiler.codegen.llvm.primitives import emit_cast
from compiler.codegen.llvm.scope import LANE_VAR, Axis, CodegenScope, Coord, StorageBuffer
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, FloorDiv, Min, Mod, constant_term, operands
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.types import boolean, i64


@dataclass
class AddressEmitter(ABC):
    """Computes indices in one scope.  `memo` holds what this block has computed."""

    b: IRBuilder
    scope: CodegenScope
    memo: dict[tuple[object, ...], str] = field(default_factory=dict)

    @abstractmethod
    def bound_element(self, name: str, coord: Coord) -> str:
        """Element `coord` of a value that has a name; indices may hold those of integers."""

    def emit_index(self, d: Dim, coord: Coord) -> str:
        """Index `d` as i64: a scalar, or a vector where it varies across lanes."""
        lane = self.scope.lane_axis(self.scope.varying_axes(d))
        form = self.scope.resolve(d)
        return self.emit_resolved_index(form, coord, lane)

    def emit_resolved_index(self, d: Dim, coord: Coord, lane: Axis | None) -> str:
        """The value of a resolved index; vectors of `lane.lanes` where `lane` is given."""
        lanes = lane.lanes if lane else 0
        ty = llvm_type(i64, lanes)
        number = (lambda n: f"splat (i64 {n})") if lanes else str
        if isinstance(d, int):
            return number(d)
        total = ""
        for mono, coef in d.terms:
            term = ""
            for atom in mono:
                factor = self._emit_atom(atom, coord, lane)
                term = factor if not term else self.b.emit(f"mul nsw {ty} {term}, {factor}")
            if not term:
                term = number(coef)
            elif coef != 1:
                term = self.b.emit(f"mul nsw {ty} {term}, {number(coef)}")
            total = term if not total else self.b.emit(f"add nsw {ty} {total}, {term}")
        return total

    def _emit_atom(self, atom: Atom, coord: Coord, lane: Axis | None) -> str:
        lanes = lane.lanes if lane else 0
        if isinstance(atom, (FloorDiv, Mod, Min)):
            ty = llvm_type(i64, lanes)
            num, den = (self.emit_resolved_index(d, coord, lane) for d in operands(atom))
            if isinstance(atom, Min):
                less = self.b.emit(f"icmp slt {ty} {num}, {den}")
                return self.b.emit(f"select {llvm_type(boolean, lanes)} {less}, {ty} {num}, {ty} {den}")
            # both are index arithmetic on values known not to be negative, or floor and remainder are adjusted
            quotient = self._floor_divide(ty, num, den, lanes)
            if isinstance(atom, FloorDiv):
                return quotient
            back = self.b.emit(f"mul nsw {ty} {quotient}, {den}")
            return self.b.emit(f"sub nsw {ty} {num}, {back}")
        if isinstance(atom, DynamicSize):
            return self.b.splat("i64", size_param_name(atom), lanes) if lanes else size_param_name(atom)
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
            across = lanes if self.scope.lane_axis(bound.axes) else 0
            value = emit_cast(self.b, bound.dtype, i64, self.bound_element(name, coord), across)
            return self.b.splat("i64", value, lanes) if lanes and not across else value
        value = self.scope.ssa_names[name]
        return self.b.splat("i64", value, lanes) if lanes else value

    def _floor_divide(self, ty: str, num: str, den: str, lanes: int) -> str:
        quotient = self.b.emit(f"sdiv {ty} {num}, {den}")
        rest = self.b.emit(f"srem {ty} {num}, {den}")
        zero = "zeroinitializer" if lanes else "0"
        flag = llvm_type(boolean, lanes)
        negative = self.b.emit(f"icmp slt {ty} {rest}, {zero}")
        step = self.b.emit(f"sext {flag} {negative} to {ty}")
        return self.b.emit(f"add nsw {ty} {quotient}, {step}")

    def emit_pointer(self, buffer: StorageBuffer, offset: Dim, coord: Coord, gep_flags: str = "inbounds") -> str:
        """Address of element `offset` (a resolved index without lanes); constants stay in the address mode."""
        fixed = constant_term(offset)
        rest = offset - fixed
        element = memory_type(buffer.type.dtype)
        base = buffer.pointer
        if rest != 0:
            key = ("pointer", buffer.pointer, rest, tuple(coord[v[:-1]] for v in sorted(variables(rest)) if v.endswith("@")),
                   tuple(tuple(coord[a] for a in self.scope.values[v].axes) for v in sorted(variables(rest)) if v in self.scope.values))  # fmt: skip
            if key not in self.memo:
                self.memo[key] = self.b.emit(
                    f"getelementptr inbounds {element}, ptr {base}, i64 {self.emit_resolved_index(rest, coord, None)}"
                )
            base = self.memo[key]
        return base if fixed == 0 else self.b.emit(f"getelementptr {gep_flags} {element}, ptr {base}, i64 {fixed}")


def size_param_name(s: DynamicSize) -> str:
    """The parameter of the kernel's function that holds a size."""
    return f"%size.{s.name}"
