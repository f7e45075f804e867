"""Loads and stores of one vector or element at an address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.codegen.llvm.addresses import AddressEmitter
from compiler.codegen.llvm.builder import intrinsic_suffix, llvm_type, memory_type
from compiler.ir.symbolic.index_atoms import terms
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, minimum, mod, variables
from compiler.ir.types import DType, boolean, f16


@dataclass
class MemoryEmitter(AddressEmitter):
    """Emits accesses to contiguous elements.  In memory a boolean is a byte."""

    def load_vector(
        self, dtype: DType, lanes: int, address: str, mask: str | None = None, passthru: str = "zeroinitializer"
    ) -> str:
        """Load contiguous elements; lanes for which the mask is false hold `passthru`."""
        memory = memory_type(dtype, lanes)
        if not mask:
            return self.b.emit(f"load {memory}, ptr {address}, align {dtype.alignment}")
        return self.b.intrinsic(memory, f"llvm.masked.load.{intrinsic_suffix(dtype, lanes)}.p0",
                                (f"ptr align {dtype.alignment}", address), (llvm_type(boolean, lanes), mask), (memory, passthru))  # fmt: skip

    def store_vector(
        self, dtype: DType, lanes: int, bits: str, address: str, mask: str | None, nontemporal: Dim | None = None
    ) -> None:
        """Store contiguous elements in the lanes for which the mask, if any, is true.

        Without a mask the store is non-temporal if `nontemporal` >= 0, which requires alignment to the vector's size.
        """
        memory = memory_type(dtype, lanes)
        if not mask:
            self._store_unmasked(
                f"store {memory} {bits}, ptr {address}", dtype.alignment, lanes * dtype.bytes, nontemporal
            )
            return
        self.b.intrinsic("void", f"llvm.masked.store.{intrinsic_suffix(dtype, lanes)}.p0",
                         (memory, bits), (f"ptr align {dtype.alignment}", address), (llvm_type(boolean, lanes), mask))  # fmt: skip

    def store_first_lane(self, dtype: DType, lanes: int, bits: str, address: str) -> None:
        """Store lane 0 as a scalar: a masked store of one lane of a narrowed vector writes too many bytes in LLVM 22 (LLVM issue 179489)."""
        first = self.b.emit(f"extractelement {memory_type(dtype, lanes)} {bits}, i64 0")
        self.b.emit_void(f"store {memory_type(dtype)} {first}, ptr {address}, align {dtype.alignment}")

    def _store_unmasked(self, store: str, alignment: int, width: int, nontemporal: Dim | None) -> None:
        """Emit a store of `width` bytes: non-temporal if that is a vector register and `nontemporal` >= 0 at run time."""
        temporal_store, nontemporal_store = f"{store}, align {alignment}", f"{store}, align {width}, !nontemporal !0"
        if nontemporal is None or width not in (16, 32, 64):
            self.b.emit_void(temporal_store)
        elif isinstance(nontemporal, int):
            self.b.emit_void(nontemporal_store if nontemporal >= 0 else temporal_store)
        else:
            flag = self.b.emit(f"icmp slt i64 {self.emit_resolved_index(nontemporal, {}, None)}, 0")
            self.b.if_else(flag, lambda: self.b.emit_void(temporal_store), lambda: self.b.emit_void(nontemporal_store))

    def load_element(self, address: str, dtype: DType, may_hoist: bool = False) -> str:
        """Load one element; an f16 through an integer register.

        The instruction that LLVM takes otherwise, `vpinsrw`, waits for what its register held before: conversions of many
        elements would be one chain.  LLVM does not turn an atomic load of an integer into one of a float.
        """
        if dtype != f16:
            return self.b.emit(f"load {memory_type(dtype)}, ptr {address}, align {dtype.alignment}", may_hoist)
        bits = self.b.emit(f"load atomic i16, ptr {address} monotonic, align {dtype.alignment}", may_hoist)
        return self.b.emit(f"bitcast i16 {bits} to half", may_hoist)

    def load_if(self, condition: str, address: str, dtype: DType) -> str:
        """Load one element; if `condition` is false, load an undefined value from a dummy address instead."""
        return self.load_element(self.address_if(condition, address, dtype, 0), dtype)

    def address_if(self, condition: str, address: str, dtype: DType, lanes: int) -> str:
        """Return `address`, or if `condition` is false a dummy address of `lanes` elements (0: one)."""
        dummy = self.b.alloca(f"{memory_type(dtype, lanes)}, align {dtype.alignment}")
        return self.b.emit(f"select i1 {condition}, ptr {address}, ptr {dummy}")

    def from_memory(self, value: str, dtype: DType, lanes: int) -> str:
        """Return a value that was loaded, in the type of registers."""
        if dtype.kind != "bool":
            return value
        zero = "zeroinitializer" if lanes else "0"
        return self.b.emit(f"icmp ne {memory_type(dtype, lanes)} {value}, {zero}")

    def to_memory(self, value: str, dtype: DType, lanes: int) -> str:
        """Return a value in the type of memory."""
        if dtype.kind != "bool":
            return value
        return self.b.emit(f"zext {llvm_type(dtype, lanes)} {value} to {memory_type(dtype, lanes)}")


def nontemporal_condition(condition: Dim | None, offsets: Iterable[Dim], lanes: int) -> Dim | None:
    """Return a condition that is >= 0 if `condition` is and all `offsets` are multiples of `lanes`, as alignment requires.

    None if some offset may not be a multiple, whatever the dynamic sizes are.
    """
    if condition is None:
        return None
    for mono, coef in dict.fromkeys(t for d in offsets for t in terms(d) if t[1] % lanes):
        size_atoms = tuple(a for a in mono if not variables(IndexExpr((((a,), 1),))))
        if not size_atoms:
            return None
        condition = minimum(condition, -mod(IndexExpr(((size_atoms, coef),)), lanes))
    return condition
