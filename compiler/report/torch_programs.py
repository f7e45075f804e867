"""Programs of a function that `torch.compile` compiled: one for each graph that Dynamo captured.

fast = torch.compile(model, backend="tilewright")
fast(x)
for program in compiler.compiled_programs(fast):
    print(program, program.profile(), program.remarks)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from compiler.codegen.backend import target_by_name
from compiler.driver.partitioned_graph import AnyCompiled
from compiler.driver.specialization import MAX_SIZE
from compiler.frontend.dynamo_backend import backend_of
from compiler.ir.interpret.random_inputs import random_array
from compiler.ir.symbolic.index_atoms import SMALL_SIZE_HINT
from compiler.ir.torch_types import as_tensor
from compiler.report.inspection import Inspection
from compiler.report.profile import Profile
from compiler.report.report import Report

PROGRAMS = "_tilewright_programs"
"""Attribute of a backend object: the program of each function that runs one of its graphs."""


class TorchProgram(Inspection):
    """A graph that Dynamo captured; `kind` is "inference", "forward" or "backward", `compile_id` as in PyTorch's logs.

    Profiles and reports run it on random tensors of the shapes of the last call, for weights too.
    """

    def __init__(self, compiled_graph: AnyCompiled, kind: str, compile_id: str) -> None:
        self.kind, self.compile_id = kind, compile_id
        super().__init__(compiled_graph, {})

    def example_tensors(self) -> Sequence[torch.Tensor]:
        compiled, rng = self.compiled_graph, np.random.default_rng(0)
        bounds = {name: compiled.bounds.get(name, (0, MAX_SIZE)) for name in compiled.graph.symbols}
        sizes = {
            name: min(max(low, SMALL_SIZE_HINT), high) for name, (low, high) in bounds.items()
        } | compiled.last_sizes
        types = [n.type.specialize(sizes) for n in compiled.graph.inputs]
        device = target_by_name(compiled.options.target).device_type
        return [as_tensor(random_array(t, rng, 0, 1), t.dtype).to(device) for t in types]

    def profile(self, inputs: Sequence[torch.Tensor] | None = None, repeats: int = 20) -> Profile:
        """Return the time of every kernel in calls with `inputs` of the graph, random ones by default."""
        return self.profile_inputs(self.example_tensors() if inputs is None else inputs, repeats)

    def report(self, repeats: int = 20) -> Report:
        """Return kernels, remarks, memory and times of this program."""
        return self.report_for(self.profile(repeats=repeats))

    def __repr__(self) -> str:
        return f"<{self.kind} graph {self.compile_id}: {self.workload.kernels} kernels>"


def record_program(backend: Any, run: Callable[..., Any], program: TorchProgram) -> None:
    """Let `compiled_programs` find `program` as long as Dynamo keeps `run`, which runs it."""
    if backend is not None:
        vars(backend).setdefault(PROGRAMS, WeakKeyDictionary())[run] = program


def compiled_programs(function: Any) -> list[TorchProgram]:
    """Return the programs of what `torch.compile` returned, in the order in which Dynamo captured their graphs.

    Graphs are captured in calls: there are none before the first.  A backward graph comes with the first backward pass.
    """
    return list(vars(backend_of(function)).get(PROGRAMS, {}).values())
