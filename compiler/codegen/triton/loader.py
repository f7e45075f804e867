"""Load Triton source as a function, or compile it for a GPU that is not here."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from compiler.codegen.triton.interpreter_patches import interpreted_launch, patch_interpreter
from compiler.codegen.triton.resources import KernelResources, kernel_resources
from compiler.codegen.triton.targets import GPUTarget, is_interpreted


@lru_cache(maxsize=1)
def _source_directory() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of generated modules: Triton reads a function's source from its file when it is first called."""
    return tempfile.TemporaryDirectory(prefix="tilewright-triton-")


def load_module(source: str) -> ModuleType:
    """Import a module that `emit_triton` wrote; with TRITON_INTERPRET=1, set before Triton is imported, it runs on CPU tensors."""
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
    """Return the function that launches a kernel on a tensor for each parameter and an int for each dynamic size."""
    launch: Callable[..., None] = load_module(source).launch
    return interpreted_launch(launch) if is_interpreted() else launch


@dataclass(frozen=True)
class OfflineKernel:
    """A kernel compiled for a GPU that is not here: assembly ("ptx" or "amdgcn") and binary ("cubin" or "hsaco") by kind."""

    artefacts: Mapping[str, bytes]
    resources: KernelResources


def compile_sources(sources: Mapping[str, str], target: GPUTarget) -> dict[str, OfflineKernel]:
    """Compile kernels by name without a GPU, those with the same source once."""
    compiled = {source: compile_offline(source, target) for source in dict.fromkeys(sources.values())}
    return {name: compiled[source] for name, source in sources.items()}


ALIGNMENT = 16
"""Bytes that addresses of parameters are multiples of: PyTorch's allocator aligns to more, Triton specializes what it is given."""


def compile_offline(source: str, target: GPUTarget) -> OfflineKernel:
    """Compile without a GPU, as Triton does for parameters that are aligned to `ALIGNMENT` bytes."""
    import triton
    from triton.backends import compiler as backends
    from triton.compiler import ASTSource

    module = load_module(source)
    machine = backends.GPUTarget(target.platform, target.architecture, target.warp_threads)
    types = module.signature.values()
    aligned = {(k,): [["tt.divisibility", ALIGNMENT]] for k, type_ in enumerate(types) if type_.startswith("*")}
    program = ASTSource(module.kernel, module.signature, attrs=aligned)
    compiled = triton.compile(program, target=machine, options=module.options)
    kept = {kind: text for kind, text in compiled.asm.items() if kind in ("ptx", "cubin", "amdgcn", "hsaco")}
    artefacts = {kind: text.encode() if isinstance(text, str) else text for kind, text in kept.items()}
    metadata = compiled.metadata
    return OfflineKernel(artefacts, kernel_resources(artefacts, target, metadata.shared, metadata.num_warps))
