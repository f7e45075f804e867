"""Timer of GPU kernels in isolation, to compare alternatives for the same computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import load_triton
from compiler.ir.tile.kernel import Kernel, Param, dim_hint
from compiler.ir.torch_types import to_torch

Clock = Callable[[Callable[[], object]], float]
"""Returns the seconds of one call of a function that launches kernels."""


def device_seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a call on the device, with cold caches."""
    from triton.testing import do_bench

    return float(do_bench(call, return_mode="median")) / 1e3


class GPUKernelTimer:
    """`timer(kernels)` returns the seconds of one call of each of some kernels with the same parameters.

    Dynamic sizes have their hints.  Inputs are random floats; integers are 0, which is a valid index.  A kernel that Triton cannot
    compile for the device takes forever.
    """

    def __init__(self, device: str = "cuda", clock: Clock = device_seconds) -> None:
        self.device, self.clock = device, clock

    def __call__(self, kernels: Sequence[Kernel], cold_bytes: int = 0) -> list[float]:
        tensors = [self.random_tensor(p) for p in kernels[0].params]
        return [self.seconds(kernel, tensors) for kernel in kernels]

    def seconds(self, kernel: Kernel, tensors: Sequence[torch.Tensor]) -> float:
        """Return the seconds of one kernel on tensors for its parameters; infinity if it does not run."""
        from triton.errors import TritonError

        launch = load_triton(emit_triton(kernel))
        sizes = [s.hint for s in kernel.dynamic_sizes]
        try:
            return self.clock(lambda: launch(*tensors, *sizes))
        except (RuntimeError, TritonError):  # such as out of registers or shared memory
            return float("inf")

    def random_tensor(self, p: Param) -> torch.Tensor:
        """Return memory for a parameter, with its elements in the order of its layout."""
        shape = tuple(map(dim_hint, p.type.physical_shape))
        dtype = to_torch(p.type.dtype)
        if not p.type.dtype.is_float:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randn(shape, device=self.device).to(dtype)
