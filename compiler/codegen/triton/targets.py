"""GPUs as targets of Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from compiler.analysis.local_blocks import addressing_problem
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


def _gpu(platform: str, architecture: int | str, warp_threads: int, shared_kib: int) -> GPUTarget:
    return GPUTarget(
        name=gpu_name(architecture),
        backend="triton",
        native_dtypes=("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"),
        memory=(
            MemorySpace("registers", 255 * 4, "thread"),
            MemorySpace("shared", shared_kib << 10, "block"),
            MemorySpace("memory", None, "device"),
        ),
        matrix_shapes=tuple(
            MatrixShape(16, 16, 16, operand, operand, accumulator) for operand, accumulator in MATRIX_DTYPES
        ),
        platform=platform,
        architecture=architecture,
        warp_threads=warp_threads,
    )


SHARED_KIB: Mapping[int | str, int] = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99, "gfx90a": 64, "gfx942": 64}
"""Shared memory of a block in KiB: CUDA C++ Programming Guide, table of compute capabilities; AMD CDNA ISA, local data share."""

GPU_TARGETS = {
    t.name: t
    for t in (_gpu("cuda", a, 32, n) if isinstance(a, int) else _gpu("hip", a, 64, n) for a, n in SHARED_KIB.items())
}
