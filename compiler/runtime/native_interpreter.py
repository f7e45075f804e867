"""Scalar programs of kernels as native code, run on the arrays that the interpreter takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from compiler.codegen.llvm.call_frame import STATUS
from compiler.codegen.llvm.targets import host_target
from compiler.errors import VerifyError
from compiler.ir import scalar
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import to_storage
from compiler.ir.interpret.arrays import to_interpreter_array
from compiler.ir.interpret.tile import all_sizes
from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel
from compiler.ir.types import DType
from compiler.math.expansions import EXPANSIONS, expand
from compiler.runtime.constants import aligned_empty
from compiler.runtime.native_kernel import KernelLinker, kernel_frame
from compiler.transforms.unschedule import unscheduled

GUARD_BYTES = 1 << 16
"""Bytes before and after each array, so that an index that is off by a little is seen and breaks nothing else."""


@dataclass
class NativeInterpreter:
    """Runs kernels as `run_kernel` does: their scalar programs, as native code.

    Independent of tile passes: what a schedule says of a kernel is left out.
    """

    linker: KernelLinker = field(default_factory=lambda: KernelLinker(host_target()))

    def __call__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> None:
        """Run `kernel` on arrays by parameter name; IndexError if a `check` fails, VerifyError for stores outside a buffer."""
        values = all_sizes(kernel, buffers, sizes or {})
        plain = with_expanded_math(unscheduled(kernel))
        memory = {p.name: GuardedArray.copy_of(buffers[p.name], p.type.dtype) for p in plain.params}
        run, frame = self.linker.bind(plain, values), kernel_frame()
        run([m.elements.ctypes.data for m in memory.values()], frame)
        if frame[STATUS]:
            raise IndexError(f"@{kernel.name}: an index is out of range")
        for p in plain.params:
            if not memory[p.name].is_intact:
                raise VerifyError(f"@{kernel.name} stores outside %{p.name}")
            if p.is_written:
                buffers[p.name][...] = to_interpreter_array(memory[p.name].elements, p.type.dtype)


def with_expanded_math(kernel: Kernel) -> Kernel:
    """Return the kernel with elementary functions as arithmetic in their place."""

    def rule(e: Expr) -> Expr:
        if not (isinstance(e, PrimitiveCall) and e.primitive in EXPANSIONS):
            return e
        wide = e.dtype.compute
        return expand(PrimitiveCall(wide, e.primitive, tuple(a.to(wide) for a in e.operands))).to(e.dtype)

    return kernel.with_body(tile.map_exprs(kernel.body, lambda value: scalar.transform(value, rule)))


@dataclass(frozen=True)
class GuardedArray:
    """Elements in storage, between bytes that no kernel should change."""

    memory: Array
    elements: Array

    @staticmethod
    def copy_of(array: Array, dtype: DType) -> GuardedArray:
        """Return a copy of `array`, whose elements are `dtype.numpy`."""
        stored = to_storage(array, dtype)
        memory = aligned_empty((stored.nbytes + 2 * GUARD_BYTES,), np.dtype(np.uint8))
        memory[:GUARD_BYTES] = memory[GUARD_BYTES + stored.nbytes :] = 0xFF  # NaN in every float type
        elements = memory[GUARD_BYTES : GUARD_BYTES + stored.nbytes].view(stored.dtype).reshape(stored.shape)
        elements[...] = stored
        return GuardedArray(memory, elements)

    @property
    def is_intact(self) -> bool:
        """True if nothing was written outside the elements."""
        guards = self.memory[:GUARD_BYTES], self.memory[GUARD_BYTES + self.elements.nbytes :]
        return all(bool((g == 0xFF).all()) for g in guards)
