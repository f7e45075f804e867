"""Runs a kernel as machine code on NumPy arrays, for comparing with the interpreter."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.call_frame import FIRST_SLOT, STATUS, THREADS
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import CPU_TARGETS
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import to_storage
from compiler.ir.interpret.arrays import to_interpreter_array
from compiler.ir.interpret.random_inputs import random_array, special_array
from compiler.ir.interpret.tile import poisoned_array, run_kernel
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel, Param, map_ranges
from compiler.ir.types import TensorType
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.manager import run_pipeline
from compiler.runtime import loader, threads
from compiler.runtime.constants import pack
from compiler.runtime.memory import ALIGNMENT

GUARD_BYTES = 64
"""Bytes around each buffer that no kernel may change: all ones, which is NaN to floats."""


@lru_cache(maxsize=1)
def runnable_targets() -> tuple[str, ...]:
    """The targets this machine can run."""
    llvm.initialize_native_target()
    has = llvm.get_host_cpu_features()
    if not llvm.get_process_triple().startswith("x86_64"):
        return ("host",)
    needs = {
        t.name: re.findall(r"\+([\w.]+)", t.features) for t in CPU_TARGETS.values() if t.triple.startswith("x86_64")
    }
    return tuple(
        name for name, features in needs.items() if all(has.get(f, f in ("cx8", "fxsr", "mmx")) for f in features)
    )


@lru_cache(maxsize=8)
def compile_kernel(kernel: Kernel, target: str) -> loader.Library:
    """The kernel as the function `tested`; tiles that are not full are peeled first."""
    kernel = replace(run_pipeline(kernel, "peel"), name="tested")
    verify_kernel(kernel)
    code = emit_object(emit_kernel(kernel, target_by_name(target)), target_by_name(target))
    return loader.link_objects([code], ["tested"], threads.kernel_functions())


class KernelOutcome(dict[str, Array]):
    """The out and inout buffers by name, those for work, and whether a `check` failed."""

    check_failed = False

    def __init__(self) -> None:
        super().__init__()
        self.scratch = dict[str, Array]()


def run_native(kernel: Kernel, inputs: Sequence[Array], target: str = "host") -> KernelOutcome:
    """The kernel on copies of `inputs`, one per parameter that is read."""
    library = compile_kernel(kernel, target)
    given = iter(inputs)
    memory = {
        p.name: _guarded_memory(p, next(given) if p.role != "out" else poisoned_array(p.type)) for p in kernel.params
    }
    frame = (ctypes.c_int64 * FIRST_SLOT)()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(memory) + 1))(library["tested"])
    frame[THREADS] = count = threads.prepare_call()
    function(*(_address(raw) + GUARD_BYTES for raw in memory.values()), ctypes.addressof(frame))
    result = KernelOutcome()
    result.check_failed = frame[STATUS] != 0
    assert frame[STATUS] in (0, 1)
    assert list(frame[1:]) == [0, 0, count]
    for p in kernel.params:
        raw = memory[p.name][_start(memory[p.name]) :]
        end = GUARD_BYTES + int(p.type.nbytes)
        assert np.all(raw[:GUARD_BYTES] == 255), f"bytes before %{p.name} were changed"
        assert np.all(raw[end : end + GUARD_BYTES] == 255), f"bytes behind %{p.name} were changed"
        if p.role in ("out", "inout", "scratch"):
            (result.scratch if p.role == "scratch" else result)[p.name] = _logical_array(p.type, raw[GUARD_BYTES:end])
    return result


def as_scalar_loops(kernel: Kernel) -> Kernel:
    """The same kernel with every loop one step at a time."""
    return kernel.with_body(map_ranges(kernel.body, lambda r, _: r.with_(tile=1, lanes=0, unroll=1)))


def run_interpreter(kernel: Kernel, inputs: Sequence[Array]) -> KernelOutcome:
    """What the definition of Tile IR says of the kernel with its tiles, lanes and threads taken away."""
    return _interpreted(as_scalar_loops(kernel), tuple((a.tobytes(), a.dtype, a.shape) for a in inputs))


@lru_cache(maxsize=64)
def _interpreted(kernel: Kernel, inputs: tuple[tuple[bytes, np.dtype[Any], tuple[int, ...]], ...]) -> KernelOutcome:
    """The same for all tilings and targets: interpreted once.  Its arrays cannot be written."""
    given = iter(np.frombuffer(data, dtype).reshape(shape).copy() for data, dtype, shape in inputs)
    buffers = {p.name: poisoned_array(p.type) if p.role == "out" else next(given) for p in kernel.params}
    result = KernelOutcome()
    try:
        run_kernel(kernel, buffers)
    except IndexError:
        result.check_failed = True
    result.update({p.name: buffers[p.name] for p in kernel.params if p.role in ("out", "inout")})
    for array in result.values():
        array.flags.writeable = False
    return result


def kernel_inputs(kernel: Kernel, seed: int = 0, special: bool = False, high: int = 8) -> list[Array]:
    """Random arrays for the parameters that are read, or arrays of the values that break careless code."""
    read = [p.type for p in kernel.params if p.role != "out"]
    if special:
        return [special_array(t, 3 * k) for k, t in enumerate(read)]
    rng = np.random.default_rng(seed)
    return [random_array(t, rng, high=high) for t in read]


def assert_same_bits(want: Array, got: Array, where: str = "", zero_sign: bool = True) -> None:
    """The same values, NaN for NaN and, unless told otherwise, zero sign for zero sign."""
    same = want == got
    if want.dtype.kind == "f":
        same |= np.isnan(want) & np.isnan(got)
        same &= (np.signbit(want) == np.signbit(got)) | np.isnan(want) | (not zero_sign)
    place = tuple(int(k) for k in np.argwhere(~same)[0]) if not np.all(same) else ()
    assert np.all(same), (
        f"{where}: {np.sum(~same)} of {same.size} differ; at {place} {got[place]!r} instead of {want[place]!r}"
    )


def _guarded_memory(param: Param, array: Array) -> Array:
    """Memory that holds `array` in the parameter's layout between two guards, the array aligned."""
    dtype = param.type.dtype
    bits = to_storage(array, dtype)
    physical = pack(bits, param.type.layout) if param.type.layout else bits
    size = int(param.type.nbytes)
    raw = np.full(size + 2 * GUARD_BYTES + ALIGNMENT, 255, np.uint8)
    start = _start(raw) + GUARD_BYTES
    raw[start : start + size] = np.ascontiguousarray(physical).reshape(-1).view(np.uint8)
    return raw


def _start(raw: Array) -> int:
    return -raw.ctypes.data % ALIGNMENT


def _address(raw: Array) -> int:
    return int(raw.ctypes.data) + _start(raw)


def _logical_array(type_: TensorType, raw: Array) -> Array:
    """The array that lies in `raw`, as interpreters hold it."""
    dtype = type_.dtype
    values: Any = raw.view(dtype.storage)
    if type_.layout:
        number = np.arange(1, int(np.prod(type_.static_shape())) + 1).reshape(type_.static_shape())
        order = pack(number, type_.layout).reshape(-1)  # 0 where the layout pads
        dense = np.empty(number.size, values.dtype)
        dense[order[order > 0] - 1] = values[order > 0]
        values = dense
    return to_interpreter_array(values, dtype).reshape(type_.static_shape())


def check_kernel(text: str, target: str = "host", *, seed: int = 0, special: bool = False, high: int = 8) -> None:
    """Machine code against the interpreter: bit for bit, or for sums against float64 within the error of any order of adding."""
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    inputs = kernel_inputs(kernel, seed, special, high)
    got = run_native(kernel, inputs, target)
    if "f32" in text and re.search(r"reduce (add|mul)", text):
        exact = parse_kernel(text.replace("f32", "f64"))
        given = [
            a.astype(p.type.dtype.numpy)
            for a, p in zip(inputs, (p for p in exact.params if p.role != "out"), strict=True)
        ]
        truth = run_interpreter(exact, given)
        for name, array in got.items():
            np.testing.assert_allclose(array, truth[name], rtol=2e-5, atol=2e-5, err_msg=name)
        return
    want = run_interpreter(kernel, inputs)
    assert want.check_failed == got.check_failed
    for name, array in want.items():
        assert_same_bits(array, got[name], name, zero_sign=not re.search(r"reduce (min|max)", text))
