"""GPUs as targets of Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from compiler.analysis.local_blocks import addressing_problem
from compiler.cost.gpu_contraction import oversized_product, reduction_seconds
from compiler.cost.machine import GPU, shipped_machine
from compiler.ir.tile.kernel import Kernel
from compiler.target import MATRIX_DTYPES, MatrixShape, MemorySpace, Target


@dataclass(frozen=True, kw_only=True)
class GPUTarget(Target):
    """A GPU as Triton names it: `platform` ("cuda" or "hip"), `architecture`, and threads of a warp (wavefront)."""

    platform: str
    architecture: int | str
    warp_threads: int

    def kernel_problem(self, kernel: Kernel) -> str:
        """Return how a kernel addresses a local buffer, which is a block in registers."""
        return addressing_problem(kernel)

    def row_problem(self, kernel: Kernel) -> str:
        """Return which product has no block with whole rows of local buffers that fits."""
        return oversized_product(kernel, self.machine) if isinstance(self.machine, GPU) else ""

    def reduction_seconds(self, kernel: Kernel) -> float:
        """Return the seconds of products in their best blocks, and of serial loops that wait for memory."""
        return reduction_seconds(kernel, self.machine) if isinstance(self.machine, GPU) else 0.0

    @property
    def device_type(self) -> str:
        """PyTorch calls AMD's GPUs "cuda" as well; Triton's interpreter runs on the CPU."""
        return "cpu" if is_interpreted() else "cuda"

    def missing_features(self) -> str:
        """Return what is missing to run code for the target, in words."""
        if not find_spec("triton"):
            return "Triton (install tilewright[gpu])"
        here = "" if is_interpreted() else present_gpu()
        if here is None:
            return "a GPU (with TRITON_INTERPRET=1 in the environment from the start, kernels run on CPU tensors)"
        return f"a GPU of this architecture (here is {here})" if here not in ("", self.name) else ""


def is_interpreted() -> bool:
    """Return True if Triton runs kernels in its interpreter: TRITON_INTERPRET=1 was set when it was imported."""
    from triton.language import sum as library_function
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(library_function, InterpretedFunction)


def present_gpu() -> str | None:
    """Return the name of the target that stands for the current GPU, or None without a GPU."""
    import triton

    try:
        gpu = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no driver is active
        return None
    return gpu_name(gpu.arch)


def gpu_name(architecture: int | str) -> str:
    """Return the name of the target with an architecture as Triton has it: 90, "gfx942" or "gfx942:sramecc+:xnack-"."""
    return f"sm{architecture}" if isinstance(architecture, int) else architecture.split(":")[0]


def _gpu(architecture: int | str, description: str) -> GPUTarget:
    """Return a target whose capacities and matrix units are those of the shipped `description`."""
    gpu = shipped_machine(description)
    assert isinstance(gpu, GPU)
    shapes = (MatrixShape(16, 16, 16, x, x, total) for x, total in MATRIX_DTYPES if gpu.matrix_flops(x))
    return GPUTarget(
        name=gpu_name(architecture),
        backend="triton",
        native_dtypes=("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"),
        memory=(
            MemorySpace("registers", gpu.thread_registers * 4, "thread"),
            MemorySpace("shared", gpu.block_shared_bytes, "block"),
            MemorySpace("memory", None, "device"),
        ),
        matrix_shapes=tuple(shapes),
        machine=gpu,
        platform="cuda" if isinstance(architecture, int) else "hip",
        architecture=architecture,
        warp_threads=gpu.warp_threads,
    )


DESCRIPTIONS: Mapping[int | str, str] = {
    80: "a100", 86: "rtx3090", 89: "rtx4090", 90: "h100", 100: "b200", 120: "rtx5090", "gfx90a": "mi210", "gfx942": "mi300x",
}  # fmt: skip
"""Shipped description of the usual GPU of an architecture; `Options(machine="h200")` names another one."""

GPU_TARGETS = {t.name: t for t in (_gpu(architecture, name) for architecture, name in DESCRIPTIONS.items())}
