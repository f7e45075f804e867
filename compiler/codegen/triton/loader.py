"""From Triton source to something that runs, or to what a GPU without a GPU here would run."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from compiler.codegen.triton.interpreter_patches import patch_interpreter

GPU_TARGETS: dict[str, tuple[str, int | str, int]] = {"sm90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
"""GPUs by name: Triton's backend, architecture and threads per warp."""


@lru_cache(maxsize=1)
def _source_directory() -> tempfile.TemporaryDirectory[str]:
    """Where modules lie: Triton reads a function's source from its file, even when it is first called."""
    return tempfile.TemporaryDirectory(prefix="tilewright-triton-")


def load_module(source: str) -> ModuleType:
    """The module that `emit_triton` wrote.  With TRITON_INTERPRET=1 (set before Triton is imported) it runs on CPU tensors."""
    patch_interpreter()
    name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    path = Path(_source_directory().name, f"{name}.py")
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_triton(source: str) -> Callable[..., None]:
    """The function that runs a kernel on a tensor for each parameter."""
    launch: Callable[..., None] = load_module(source).launch
    return launch


def compile_offline(source: str, target: str) -> dict[str, int]:
    """Bytes of each artefact ("ptx" and "cubin", or "amdgcn" and "hsaco") for one of `TARGETS`; needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = load_module(source)
    program = ASTSource(module.kernel, module.signature)
    compiled = triton.compile(program, target=GPUTarget(*GPU_TARGETS[target]), options=module.options)
    return {kind: len(text) for kind, text in compiled.asm.items() if kind in ("ptx", "cubin", "amdgcn", "hsaco")}
