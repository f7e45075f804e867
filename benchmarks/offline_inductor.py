"""Inductor's Triton kernels for an H100 that is not here: PyTorch traces fake CUDA tensors, and Inductor is told of a device.

Inductor compiles every configuration that it would time on the device.  Products and convolutions stay calls of cuBLAS and cuDNN,
as in its default mode, so its kernels are only those around them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config as inductor_config
import torch.utils._triton
from torch import nn
from torch._dynamo import device_interface
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

from compiler.cost.machine import GPU

CAPABILITY = (9, 0)
"""Compute capability of the device that Inductor is told of."""

LIBRARY_CALL = re.compile(r"extern_kernels\.\w+\(|= torch\.ops\.aten\.\w+")
"""A call of another library in the code that Inductor writes."""


class FakeDevice:
    """The context manager `torch.cuda.device` without a device."""

    def __init__(self, index: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def device_functions(gpu: GPU) -> dict[str, Any]:
    """Return what `torch.cuda` says of a device with the properties of `gpu`."""
    properties = SimpleNamespace(
        name="H100", gcnArchName="", major=CAPABILITY[0], minor=CAPABILITY[1],
        multi_processor_count=gpu.multiprocessors, regs_per_multiprocessor=gpu.register_file,
        max_threads_per_multi_processor=gpu.resident_threads, max_threads_per_block=1024, warp_size=gpu.warp_threads,
        shared_memory_per_block_optin=gpu.block_shared_bytes, total_memory=80 << 30, L2_cache_size=gpu.l2,
    )  # fmt: skip
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: CAPABILITY,
        "synchronize": lambda device=None: None,
        "device": FakeDevice,
    }


@contextmanager
def told_of_device(gpu: GPU, kernels: list[Any]) -> Iterator[None]:
    """Let Inductor compile for `gpu`, one kernel after another; compiled kernels are added to `kernels` and never loaded."""

    def compile_all(self: CachingAutotuner, *args: Any, **options: Any) -> None:
        kernels.extend(self._precompile_config(c).kernel for c in self.configs)

    told = device_functions(gpu)
    own = set(vars(device_interface.CudaInterface)) - {"is_available"}
    interface: dict[str, Any] = {k: v if isinstance(v, type) else staticmethod(v) for k, v in told.items() if k in own}
    interface |= {
        "get_compute_capability": staticmethod(lambda device=None: 10 * CAPABILITY[0] + CAPABILITY[1]),
        "maybe_exchange_device": staticmethod(lambda device: 0),
    }
    told |= {"get_rng_state": lambda device=None: torch.empty(16, dtype=torch.uint8), "set_rng_state": lambda *x: None}
    config: dict[str, Any] = {"compile_threads": 1, "force_disable_caches": True}
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], gpu.warp_threads),
        get_current_device=lambda: 0,
    )
    with ExitStack() as stack:
        stack.enter_context(patch.object(triton_driver, "_active", driver))
        stack.enter_context(patch.multiple(torch.cuda, **told))
        stack.enter_context(patch.multiple(device_interface.CudaInterface, **interface))
        stack.enter_context(patch.object(torch.version, "cuda", "12.8"))
        stack.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", lambda device=0: 0, create=True))
        stack.enter_context(patch.object(triton_helpers, "set_driver_to_gpu", lambda: None))
        stack.enter_context(patch.object(CachingAutotuner, "precompile", compile_all))
        stack.enter_context(inductor_config.patch(config))
        forget_devices()
        stack.callback(forget_devices)
        yield


def forget_devices() -> None:
    """Let PyTorch ask again which device Triton compiles for."""
    for function in vars(torch.utils._triton).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@dataclass(frozen=True)
class InductorProgram:
    """What Inductor compiles for a model: binaries of kernels in all configurations, the code that calls them, and seconds."""

    binaries: tuple[bytes, ...]
    code: str
    seconds: float

    @property
    def library_calls(self) -> int:
        """Calls of cuBLAS, cuDNN and other kernels of PyTorch."""
        return len(LIBRARY_CALL.findall(self.code))


def compile_with_inductor(model: nn.Module, args: Sequence[Any], gpu: GPU) -> InductorProgram:
    """Compile a model for a GPU that is not here."""
    kernels: list[Any] = []

    def on_device(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")

    def call(*tensors: torch.Tensor) -> tuple[Any, ...]:
        weights = dict(zip(names, tensors, strict=False))
        return tuple(tree_leaves(torch.func.functional_call(exported, weights, tensors[len(names) :])))

    start = time.perf_counter()
    exported: Any = torch.export.export(model.eval(), tuple(args)).module()
    gpu_device = torch.device("cuda", 0)
    for node in exported.graph.nodes:  # devices are arguments of any name, or of none
        given = (node.args, node.kwargs)
        node.args, node.kwargs = map_aggregate(given, lambda x: gpu_device if isinstance(x, torch.device) else x)
    exported.recompile()
    with told_of_device(gpu, kernels), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        weights = dict((*exported.named_parameters(), *exported.named_buffers()))
        names = list(weights)
        inputs = [on_device(x) for x in (*weights.values(), *args)]
        graph = make_fx(call, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
        with tracing(TracingContext(mode)):
            compiled: Any = compile_fx_inner(graph, inputs)
    seconds = time.perf_counter() - start
    return InductorProgram(tuple(k.cubin_raw or b"" for k in kernels), compiled.source_code, seconds)
