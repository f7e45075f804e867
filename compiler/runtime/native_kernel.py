"""One kernel as native code by itself, on arrays: to check it and to time it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.codegen.llvm.call_frame import FIRST_SLOT, STATUS, THREADS
from compiler.codegen.llvm.targets import CPUTarget
from compiler.ir.graph.constant import to_storage
from compiler.ir.interpret.arrays import to_interpreter_array
from compiler.ir.interpret.random_inputs import Array
from compiler.ir.interpret.tile import pack_elements, poisoned_array
from compiler.ir.tile.kernel import Kernel, Param
from compiler.ir.types import TensorType
from compiler.runtime.build import Build
from compiler.runtime.cache import ObjectCache
from compiler.runtime.constants import aligned_copy, pack_aligned, unpack
from compiler.runtime.loader import link_objects
from compiler.runtime.threads import kernel_functions, prepare_call


def kernel_frame() -> Any:
    """Return the frame of a call of one kernel, which threads may share; it must outlive the call."""
    frame = (ctypes.c_uint64 * FIRST_SLOT)()
    frame[THREADS] = prepare_call()
    return frame


def bind_kernel(function: int, buffers: int, sizes: Sequence[int], frame: Any) -> Callable[[Sequence[int]], None]:
    """Return a function that calls the kernel at address `function` on the addresses of its buffers."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * buffers, *[ctypes.c_int64] * len(sizes), ctypes.c_void_p)(
        function
    )
    return lambda addresses: call(*addresses, *sizes, ctypes.addressof(frame))


class NativeKernel:
    """A compiled kernel; `native(arrays)` runs it on an array for each parameter and returns its out and inout buffers.

    Arrays have the logical shape of their parameter, in `dtype.numpy`.  Dynamic sizes have the values `sizes`, by default
    their hints.  VerifyError for parameters with a layout that only a program can lay out.
    """

    def __init__(self, kernel: Kernel, target: CPUTarget, sizes: Mapping[str, int] | None = None) -> None:
        self.kernel, self.sizes = kernel, {s.name: s.hint for s in kernel.dynamic_sizes} | dict(sizes or {})
        build = Build(target, ObjectCache(None))
        build.add_kernels([kernel])
        symbol = build.symbols[kernel.name]
        self._library = link_objects([build.objects[symbol]], [symbol], kernel_functions())
        self._address = self._library[symbol]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        buffers, frame = self._buffers(arrays), kernel_frame()
        self._call(buffers, frame)()
        if frame[STATUS]:
            raise IndexError(f"@{self.kernel.name}: an index is out of range")
        written = ((p, b) for p, b in zip(self.kernel.params, buffers, strict=True) if p.role in ("out", "inout"))
        return [to_interpreter_array(unpack(b, t := self.type_of(p)), t.dtype) for p, b in written]

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
            buffers.append(aligned_copy(pack_aligned(np.ascontiguousarray(to_storage(packed, t.dtype)), t)))
        return buffers

    def _call(self, buffers: Sequence[Array], frame: Any) -> Callable[[], object]:
        """Return the call of the kernel on these buffers, which it keeps alive."""
        sizes = [self.sizes[s.name] for s in self.kernel.dynamic_sizes]
        run, addresses = bind_kernel(self._address, len(buffers), sizes, frame), [b.ctypes.data for b in buffers]
        return partial(_call_on, run, addresses, buffers)


def _call_on(run: Callable[[Sequence[int]], None], addresses: Sequence[int], owners: object) -> None:
    """Run a kernel on buffers whose `owners` are kept alive."""
    run(addresses)
