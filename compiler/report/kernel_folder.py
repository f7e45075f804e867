"""A compiled program for a GPU as a folder that needs no compiler: its kernels in Triton, and PyTorch that launches them.

run.py              allocates and launches; `python run.py` runs it on the example inputs
kernels/NAME.py     one kernel, with the function that launches it
kernels/NAME.cubin  the same for the target (.hsaco for AMD), and NAME.ptx (.amdgcn)
tensors.pt          constants in the layouts that kernels read, and the example inputs
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import kwlist
from pathlib import Path
from typing import Any

import torch

from compiler.codegen.triton.loader import OfflineKernel, compile_sources
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.targets import GPUTarget, is_interpreted
from compiler.errors import TargetError
from compiler.ir.tile.dynamic_sizes import bind_sizes, specialize_buffers
from compiler.ir.tile.program import OpaqueCall, Program
from compiler.ir.tile.substitution import unused_name
from compiler.ir.torch_types import as_tensor
from compiler.runtime.constants import pack_once
from compiler.runtime.executable import workspace_buffers
from compiler.runtime.gpu_call_stub import GPUCallStub, LaunchSegment
from compiler.runtime.memory import grid_in_place_pairs, plan_memory

DRIVER_TEMPLATE = '''\
"""{name} for {target}, as kernels that PyTorch launches.

With TRITON_INTERPRET=1 in the environment it runs on CPU tensors, unless a kernel calls libdevice.
"""

from functools import cache
from pathlib import Path

import torch
from kernels import {kernels}

TENSORS = torch.load(Path(__file__).with_name("tensors.pt"))


@cache
def constants(device):
    return tuple(x.to(device) for x in TENSORS["constants"])


{function}

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for result in run(*(x.to(device) for x in TENSORS["inputs"])):
        print(result)
'''


@dataclass(kw_only=True)
class DriverStub(GPUCallStub):
    """Generator of a function that stands alone: constants in it are literals, and its arguments fit.

    `names` are the Python names of buffers and kernels.
    """

    names: Mapping[str, str]

    def source(self) -> str:
        """Return the source of the function."""
        arguments = ", ".join(self._variable(name) for name in self.inputs)
        return f"def run({arguments}):\n" + "".join(f"    {line}\n" for line in self._body())

    def _body(self) -> list[str]:
        first, lines = self._variable(self.inputs[0]), super()._body()
        return [f"device = {first}.device", f"with torch.cuda.device_of({first}):", *lines[2:]]

    def _emit_checks(self) -> None:
        """Emit no checks: the inputs fit."""

    def _variable(self, name: str) -> str:
        return self.names[name]

    def _bind(self, kind: str, name: str, value: Any) -> str:
        return repr(value)

    def _launcher(self, kernel: str) -> str:
        return f"{self.names[kernel]}.launch"


RESERVED = (*kwlist, "TENSORS", "constants", "device", "workspace", "torch", "run", "cache", "Path", "range")
"""Names of `DRIVER_TEMPLATE` and of generated code."""


def python_names(program: Program) -> dict[str, str]:
    """Return a Python name for each kernel and buffer that resembles its own."""
    names: dict[str, str] = {}
    used = {*RESERVED}
    for name in (*program.kernels, *program.buffers):
        text = re.sub(r"\W", "_", name)
        names[name] = unused_name(text if text.isidentifier() else f"_{text}", used)
        used.add(names[name])
    return names


def write_kernel_folder(
    program: Program, target: GPUTarget, inputs: Sequence[torch.Tensor], name: str, folder: Path
) -> dict[str, OfflineKernel]:
    """Write a scheduled program for inputs of these sizes; return its kernels compiled for the target, none in the interpreter.

    TargetError for a program that calls PyTorch's own operators, or has no kernel, or no input that says where it runs.
    """
    if calls := [s.node or s.op for s in program.steps if isinstance(s, OpaqueCall)]:
        raise TargetError(f"{', '.join(calls)} run in PyTorch, so kernels alone do not make the program")
    if not program.inputs or not program.kernels:
        raise TargetError("a program without inputs or kernels cannot be written as kernels")
    sources, names = emit_program(program), python_names(program)
    sizes = bind_sizes((program.buffers[n] for n in program.inputs), (tuple(x.shape) for x in inputs))
    kernels = folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "run.py").write_text(driver_source(specialize_buffers(program, sizes), sizes, name, target))
    packed = [as_tensor(pack_once(c, t := program.buffers[n]), t.dtype) for n, c in program.constants.items()]
    torch.save({"constants": packed, "inputs": [x.cpu() for x in inputs]}, folder / "tensors.pt")
    for kernel, source in sources.items():
        (kernels / f"{names[kernel]}.py").write_text(source)
    compiled = {} if is_interpreted() else compile_sources(sources, target)
    for kernel, binary in compiled.items():
        for kind, data in binary.artefacts.items():
            (kernels / f"{names[kernel]}.{kind}").write_bytes(data)
    return compiled


def driver_source(program: Program, sizes: Mapping[str, int], name: str, target: GPUTarget) -> str:
    """Return the module that runs a program whose buffers have the sizes `sizes`."""
    names = python_names(program)
    stub = DriverStub(
        program.buffers,
        {},
        program.inputs,
        program.outputs,
        [LaunchSegment(program.steps, program.outputs, ())],
        frozenset(),
        {},
        program=program,
        memory_plan=plan_memory(program, workspace_buffers(program), grid_in_place_pairs(program)),
        launchers={},
        size_arguments={n: [sizes[s.name] for s in k.dynamic_sizes] for n, k in program.kernels.items()},
        names=names,
    )
    imports = ", ".join(names[kernel] for kernel in program.kernels)
    return DRIVER_TEMPLATE.format(name=name, target=target.name, kernels=imports, function=stub.source())
