"""Programs of Triton kernels: launched one by one on the current stream of a GPU, or run by Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import cache, partial
from typing import Self

import torch

from compiler.codegen.triton.loader import load_triton
from compiler.codegen.triton.targets import GPUTarget
from compiler.ir.tile.program import Program, Step
from compiler.ir.torch_types import as_tensor
from compiler.runtime.arguments import argument_device
from compiler.runtime.constants import pack_once
from compiler.runtime.executable import Executable
from compiler.runtime.gpu_call_stub import GPUCallStub, LaunchSegment
from compiler.runtime.graph_replay import DeviceGraphs
from compiler.runtime.memory import InPlacePairs, grid_in_place_pairs


class GPUExecutable(Executable):
    """A program of Triton kernels, `sources` by name.

    It runs on the device of its arguments, which must be one and the same, and never waits for it.  Kernels are compiled when
    they are first launched on a kind of device, or come from Triton's cache on disk.  Constants are moved to a device once.
    With TRITON_INTERPRET=1 in the environment it runs on CPU tensors; then an index out of range is an IndexError, on a GPU a
    failed device assertion.  With `graphs`, each set of sizes is recorded in its second call and replayed from then on.
    """

    target: GPUTarget

    def __init__(
        self, program: Program, target: GPUTarget, sources: Mapping[str, str], graphs: DeviceGraphs | None = None
    ) -> None:
        super().__init__(program, target)
        self._graphs = graphs
        self._mark: Callable[[], object] | None = None
        modules = {source: load_triton(source) for source in dict.fromkeys(sources.values())}
        self.launchers = {kernel: modules[source] for kernel, source in sources.items()}
        self.size_arguments = {kernel: self.kernel_size_names(kernel) for kernel in program.kernels}
        self.numbers = {name: k for k, name in enumerate(program.buffers)}
        self.constants_on = cache(self._move_constants)
        if not self.size_names:
            self._prepare_calls()

    def with_marks(self, mark: Callable[[], object]) -> Self:
        """Return an executable with the same kernels that calls `mark` as each segment begins and after each step; records no graph."""
        new = copy(self)
        new._graphs, new._mark = None, mark
        new._prepare_calls()
        return new

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        if self.target.device_type == "cuda":
            torch.cuda.synchronize()

    def _in_place_pairs(self) -> InPlacePairs:
        return grid_in_place_pairs(self.program)

    def _prepare_calls(self) -> None:
        """Drop the call stub of the executable that this one is a copy of; copies share constants only."""
        vars(self).pop("_compiled_stub", None)

    def _move_constants(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the constants on `device`, in the layouts that kernels read."""
        types = self.program.buffers
        arrays = ((pack_once(c, types[name]), types[name].dtype) for name, c in self.program.constants.items())
        return tuple(as_tensor(array, dtype).to(device) for array, dtype in arrays)

    def _kernel_segment(
        self, number: int, steps: Sequence[Step], new_tensors: tuple[str, ...], accessed: tuple[str, ...]
    ) -> LaunchSegment:
        return LaunchSegment(steps, new_tensors, accessed)

    def _call_stub(self, unchecked_inputs: frozenset[str] = frozenset()) -> GPUCallStub:
        p, device_type = self.program, self.target.device_type
        bindings = {
            **self.input_checks(),
            "argument_device": partial(argument_device, device_type=device_type),
            "on_device": torch.cuda.device if device_type == "cuda" else nullcontext,
            "constants": self.constants_on,
        }
        sizes = {kernel: [self.size_values[s] for s in names] for kernel, names in self.size_arguments.items()}
        return GPUCallStub(
            p.buffers,
            self.numbers,
            p.inputs,
            p.outputs,
            list(self.segments()),
            unchecked_inputs,
            bindings,
            program=p,
            memory_plan=self.memory_plan,
            launchers=self.launchers,
            size_arguments=sizes,
            mark=self._mark,
            graphs=self._graphs,
        )
