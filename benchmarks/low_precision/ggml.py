"""llama.cpp's products of one row with weights of Q8_0 and Q4_0, through the libraries in the package llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.low_precision.nbits import IntegerWeights
from benchmarks.peers import PeerCall

BLOCK = 32
"""Weights with one scale in Q8_0 and Q4_0."""

F32, TYPES = 0, {4: 2, 8: 8}
"""Numbers of ggml's types: f32, and by their bits Q4_0 and Q8_0."""

POOL_BYTES = 1 << 22
"""Memory for the descriptions of tensors and of a graph."""


class InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_cpu_init": (None, ()),
    "ggml_init": (c_void_p, (InitParams,)),
    "ggml_new_tensor_2d": (c_void_p, (c_void_p, c_int, c_int64, c_int64)),
    "ggml_mul_mat": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "ggml_new_graph": (c_void_p, (c_void_p,)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, (c_void_p, c_void_p)),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_graph_compute": (c_int, (c_void_p, c_void_p)),
    "ggml_backend_cpu_init": (c_void_p, ()),
    "ggml_backend_cpu_set_n_threads": (None, (c_void_p, c_int)),
    "ggml_backend_cpu_buffer_type": (c_void_p, ()),
    "ggml_backend_cpu_reg": (c_void_p, ()),
    "ggml_backend_reg_dev_get": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, ctypes.c_char_p)),
}
"""Type of the result and of the arguments of each function."""


class Library:
    """The functions of SIGNATURES, without `ggml_`.  ImportError without the package."""

    def __init__(self) -> None:
        if (package := find_spec("llama_cpp")) is None or not package.submodule_search_locations:
            raise ImportError("llama-cpp-python is not installed")
        folder = Path(package.submodule_search_locations[0]) / "lib"
        parts = [ctypes.CDLL(str(folder / f"libggml-{p}.so"), ctypes.RTLD_GLOBAL) for p in ("base", "cpu")]
        for name, (result, arguments) in SIGNATURES.items():
            function = next(getattr(p, name) for p in parts if hasattr(p, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self.cpu_init()

    def __getattr__(self, name: str) -> Any:  # for type checkers
        raise AttributeError(name)

    def new_context(self) -> int:
        """Return a context whose tensors have no memory yet."""
        return self.init(InitParams(POOL_BYTES, None, True))  # type: ignore[no-any-return]  # ctypes

    def weights_buffer_type(self, bits: int) -> int:
        """Return the type of buffer whose weights the CPU multiplies fastest: rearranged, where it does that."""
        lookup = self.backend_reg_get_proc_address(self.backend_cpu_reg(), b"ggml_backend_dev_get_extra_bufts")
        extra = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(lookup)(
            self.backend_reg_dev_get(self.backend_cpu_reg(), 0)
        )
        rearranged = extra[0] if extra and bits == 4 else None  # Q8_0 has no rearranged form on x86
        return rearranged or self.backend_cpu_buffer_type()  # type: ignore[no-any-return]  # ctypes


library = cache(Library)


def blocks(weights: IntegerWeights) -> np.ndarray[Any, Any]:
    """Return weights as u8[n, blocks, bytes]: an f16 scale, then the codes.

    Of 4 bits, a byte holds one code of the first half of a block and one of the second, each plus 8.
    """
    groups, (count, columns) = weights.scale.shape[1], weights.codes.shape
    scale = weights.scale.half().repeat_interleave(columns // BLOCK // groups, 1).reshape(count, -1, 1)
    codes = weights.codes.to(torch.int8).reshape(count, -1, BLOCK).numpy().view(np.uint8)
    if weights.bits == 4:
        halves = (codes + 8) & 15
        codes = halves[..., : BLOCK // 2] | halves[..., BLOCK // 2 :] << 4
    return np.concatenate((scale.numpy().view(np.uint8), codes), axis=2)


def ggml_call(layers: Sequence[IntegerWeights], x: Tensor) -> PeerCall:
    """Return a call that multiplies a row by one layer after the other; ggml rounds activations to 8 bits."""
    ggml = library()
    weights_context, context = ggml.new_context(), ggml.new_context()
    weights = [ggml.new_tensor_2d(weights_context, TYPES[w.bits], *reversed(w.codes.shape)) for w in layers]
    ggml.backend_alloc_ctx_tensors_from_buft(weights_context, ggml.weights_buffer_type(layers[0].bits))
    for tensor, w in zip(weights, layers, strict=True):
        data = blocks(w)
        ggml.backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
    first = y = ggml.new_tensor_2d(context, F32, *reversed(x.shape))
    graph, machine = ggml.new_graph(context), ggml.backend_cpu_init()
    for tensor in weights:
        y = ggml.mul_mat(context, tensor, y)
    ggml.build_forward_expand(graph, y)
    ggml.backend_alloc_ctx_tensors_from_buft(context, ggml.backend_cpu_buffer_type())
    ggml.backend_tensor_set(first, x.data_ptr(), 0, x.nbytes)
    ggml.backend_cpu_set_n_threads(machine, torch.get_num_threads())
    result = torch.empty(len(x), len(layers[-1].codes))

    def call() -> Tensor:
        if ggml.backend_graph_compute(machine, graph):
            raise RuntimeError("ggml could not compute the graph")
        ggml.backend_tensor_get(y, result.data_ptr(), 0, result.nbytes)
        return result

    return call
