"""GPUs as targets of Triton."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.target import MATRIX_DTYPES, MatrixShape, MemorySpace, Target


@dataclass(frozen=True, kw_only=True)
class GPUTarget(Target):
    """A GPU as Triton names it: `platform` ("cuda" or "hip"), `architecture`, and threads of a warp (wavefront)."""

    platform: str
    architecture: int | str
    warp_threads: int

    def missing_features(self) -> str:
        """Return what is missing to run code for the target, in words."""
        return "an executable for GPUs"


def _gpu(name: str, platform: str, architecture: int | str, warp_threads: int, shared_bytes: int) -> GPUTarget:
    return GPUTarget(
        name=name,
        backend="triton",
        native_dtypes=("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"),
        memory=(
            MemorySpace("registers", 255 * 4, "thread"),
            MemorySpace("shared", shared_bytes, "block"),
            MemorySpace("memory", None, "device"),
        ),
        matrix_shapes=tuple(
            MatrixShape(16, 16, 16, operand, operand, accumulator) for operand, accumulator in MATRIX_DTYPES
        ),
        platform=platform,
        architecture=architecture,
        warp_threads=warp_threads,
    )


GPU_TARGETS = {
    t.name: t for t in (_gpu("sm90", "cuda", 90, 32, 227 << 10), _gpu("gfx942", "hip", "gfx942", 64, 64 << 10))
}
"""Shared memory of a block: CUDA C++ Programming Guide, compute capability 9.0; AMD CDNA 3 ISA, local data share."""
