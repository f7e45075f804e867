"""One kernel as native code by itself, on arrays: to check it and to time it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from compiler.codegen.llvm.call_frame import FIRST_SLOT, STATUS, THREADS
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import to_storage
from compiler.ir.interpret.arrays import to_interpreter_array
from compiler.ir.interpret.tile import pack_elements, poisoned_array
from compiler.ir.tile.kernel import Kernel, Param
from compiler.ir.types import TensorType
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.constants import aligned_copy, pack_aligned, unpack
from compiler.runtime.loader import Library, link_objects
from compiler.runtime.threads import kernel_functions, prepare_call


def kernel_frame() -> Any:
    """Return the frame of a call of one kernel, which threads may share; it must outlive the call."""
    frame = (ctypes.c_uint64 * FIRST_SLOT)()
    frame[THREADS] = prepare_call()
    return frame


RunKernel: TypeAlias = Callable[[Sequence[int], Any], None]
"""Calls a kernel on the addresses of its buffers and a frame."""


class KernelLinker:
    """Compiles and links single kernels, each distinct one once.  Their code is loaded as long as the linker is alive."""

    def __init__(self, target: CPUTarget) -> None:
        self.build = Build(target, ObjectCache(None))
        self._libraries: dict[str, Library] = {}

    def bind(self, kernel: Kernel, sizes: Mapping[str, int] = MappingProxyType({})) -> RunKernel:
        """Return the call of `kernel`; dynamic sizes that `sizes` does not give have their hints."""
        self.build.add_kernels([kernel])
        symbol = self.build.symbols[kernel.name]
        if symbol not in self._libraries:
            self._libraries[symbol] = link_objects([self.build.objects[symbol]], [symbol], kernel_functions())
        values = [sizes.get(s.name, s.hint) for s in kernel.dynamic_sizes]
        return bind_kernel(self._libraries[symbol][symbol], len(kernel.params), values)


def bind_kernel(function: int, buffers: int, sizes: Sequence[int]) -> RunKernel:
    """Return the call of the kernel at address `function`."""
    types = [*[ctypes.c_void_p] * buffers, *[ctypes.c_int64] * len(sizes), ctypes.c_void_p]
    call = ctypes.CFUNCTYPE(None, *types)(function)
    return lambda addresses, frame: call(*addresses, *sizes, ctypes.addressof(frame))


class NativeKernel:
    """A compiled kernel; `native(arrays)` runs it on an array for each parameter and returns its out and inout buffers.

    Arrays have the logical shape of their parameter, in `dtype.numpy`.  Dynamic sizes have the values `sizes`, by default
    their hints.  Margins of a parameter hold zeros.
    """

    def __init__(self, kernel: Kernel, target: CPUTarget, sizes: Mapping[str, int] | None = None) -> None:
        self.kernel, self.sizes = kernel, {s.name: s.hint for s in kernel.dynamic_sizes} | dict(sizes or {})
        self._linker = KernelLinker(target)
        self._run = self._linker.bind(kernel, self.sizes)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        buffers, frame = self._buffers(arrays), kernel_frame()
        self._call(buffers, frame)()
        if frame[STATUS]:
            raise IndexError(f"@{self.kernel.name}: an index is out of range")
        written = ((p, b) for p, b in zip(self.kernel.params, buffers, strict=True) if p.role in ("out", "inout"))
        return [_logical_array(b, self.type_of(p)) for p, b in written]

    def bind(self, arrays: Sequence[Array]) -> Callable[[], object]:
        """Return a function that runs the kernel on copies of `arrays`."""
        return self._call(self._buffers(arrays), kernel_frame())

    def type_of(self, param: Param) -> TensorType:
        """Return the static type of a parameter."""
        return param.type.specialize(self.sizes)

    def _buffers(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays as they lie in memory; buffers that the kernel writes first are poisoned."""
        buffers = []
        for p, given in zip(self.kernel.params, arrays, strict=True):
            t = self.type_of(p)
            array = poisoned_array(t) if p.role in ("out", "scratch") else given
            packed = array if array.dtype == t.dtype.numpy else pack_elements(array, t)
            whole = np.zeros(t.parent.static_shape(), packed.dtype)
            whole[t.subview_slices()] = packed
            buffers.append(aligned_copy(pack_aligned(np.ascontiguousarray(to_storage(whole, t.dtype)), t.parent)))
        return buffers

    def _call(self, buffers: Sequence[Array], frame: Any) -> Callable[[], object]:
        """Return the call of the kernel on these buffers, which it keeps alive."""
        return partial(_call_on, self._run, [b.ctypes.data for b in buffers], frame, buffers)


def _logical_array(buffer: Array, type: TensorType) -> Array:
    """Return the array of `type`'s shape that a buffer holds, inside its margins."""
    return to_interpreter_array(unpack(buffer, type.parent)[type.subview_slices()], type.dtype)


def _call_on(run: RunKernel, addresses: Sequence[int], frame: Any, owners: object) -> None:
    """Run a kernel on buffers whose `owners` are kept alive."""
    run(addresses, frame)
