"""The backend "tilewright" of `torch.compile`.

Importing it sets `torch._dynamo.config.allow_rnn`, so that Dynamo traces recurrent layers, under every backend of the process:
Dynamo decides while it traces, before it calls a backend, and `torch.compile` forwards no `backend_ctx_ctor`.  If the setting is
reset to False afterwards, recurrent layers run in PyTorch under every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import profiler
from torch.utils._python_dispatch import _disable_current_modes

from compiler.codegen.triton.targets import gpu_name
from compiler.driver.compiled_graph import CompiledGraph, infer_sizes
from compiler.driver.partitioned_graph import PartitionedGraph, compile_graph
from compiler.driver.plugins import load_plugins
from compiler.frontend.calling_convention import ConstantOutput, GraphOutput, ScalarOutput
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import (
    FunctionalGraph,
    PassthroughInput,
    argument_names,
    import_functional,
    unmutated_weights,
)
from compiler.frontend.dynamo_backend import current_backend, current_compile_id
from compiler.frontend.output_aliasing import InputView
from compiler.frontend.recurrent_ops import decompose_recurrent_layers
from compiler.ir.symbolic.index_expr import Dim, evaluate
from compiler.options import as_options
from compiler.report.profiler_ranges import ProfiledGraph
from compiler.report.torch_programs import TorchProgram, record_program

BoxedFunction: TypeAlias = Callable[[list[Any]], list[Any]]
"""A function that takes its arguments in a list and empties the list, so that they can be freed early."""

MODES: Mapping[str | None, Mapping[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"effort": "tune"},
    "max-autotune-no-cudagraphs": {"effort": "tune"},
}
"""Options that each mode of `torch.compile` stands for.  On a CPU a call is one native call in every mode, so there is no overhead to reduce."""

torch._dynamo.config.allow_rnn = True


def tilewright(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph captured by `torch.compile(model, backend="tilewright", options={...})`, for inference or training.

    `options` are the fields of `compiler.Options`; `fallback` is "eager" by default: ops without a conversion run in PyTorch.
    The default `target` is that of the device of `inputs`.  With `freezing`, weights are constants in inference.  `mode` is one
    of `MODES`.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(str, filter(None, MODES)))}, but is {mode}")
    load_plugins()
    defaults = {"fallback": "eager", "target": target_of_device(inputs)}
    settings = as_options({**defaults, **MODES[mode], **(options or {})})
    dynamo_backend, compile_id = current_backend(), current_compile_id()

    def compile_fx_graph(
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        frozen: Sequence[tuple[int, torch.Tensor]] = (),
        kind: str = "inference",
    ) -> BoxedFunction:
        with _disable_current_modes():  # AOTAutograd's fake tensors, while constants are folded
            names = argument_names(graph, module)
            imported = import_functional(graph, frozen=frozen, names=names, fallback=settings.fallback)
            compiled = compile_graph(imported.graph, settings, imported.bounds, imported.runtime_assertions)
        run = as_boxed_function(imported, compiled)
        record_program(dynamo_backend, run, TorchProgram(compiled, kind, compile_id))
        return run

    def compile_frozen(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> BoxedFunction:
        weights = unmutated_weights(graph, module, inputs)

        def recompile() -> BoxedFunction:
            warnings.warn("frozen weights have changed; recompiling with weights as inputs", stacklevel=3)
            return compile_fx_graph(graph, arguments)

        return guard_frozen_weights(compile_fx_graph(graph, arguments, weights), weights, recompile)

    decompose_recurrent_layers(module)
    backend = aot_autograd(
        fw_compiler=partial(compile_fx_graph, kind="forward"),
        bw_compiler=partial(compile_fx_graph, kind="backward"),
        inference_compiler=compile_frozen if settings.freezing else compile_fx_graph,
        decompositions=autograd_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return backend(module, inputs)


def target_of_device(inputs: Sequence[Any]) -> str:
    """Return the name of the target for the GPU that the first tensor on one is on; "host" without any."""
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda), None)
    if device is None:
        return "host"
    gpu = torch.cuda.get_device_properties(device)
    return gpu_name(gpu.gcnArchName if torch.version.hip else 10 * gpu.major + gpu.minor)


def guard_frozen_weights(
    frozen_function: BoxedFunction, weights: Sequence[tuple[int, torch.Tensor]], recompile: Callable[[], BoxedFunction]
) -> BoxedFunction:
    """Return a function that calls `frozen_function` while the arguments at the positions in `weights` are those tensors.

    After a weight was replaced or written to, it calls the result of `recompile`, which runs once.  Writes are seen through
    PyTorch's version counter, which writes through `.data` or NumPy do not change; an assignment to `.data` is seen by the
    address.  Shapes, strides and dtypes are compared by Dynamo's guards.
    """
    # the storages are kept, so that no other weight gets such an address
    states = [(k, tensor, tensor._version, tensor.data_ptr(), tensor.untyped_storage()) for k, tensor in weights]
    recompiled = cache(recompile)

    def run(arguments: list[Any]) -> list[Any]:
        for k, tensor, version, address, _ in states:
            if arguments[k] is not tensor or tensor._version != version or tensor.data_ptr() != address:
                return recompiled()(arguments)
        return frozen_function(arguments)

    return _mark_boxed(run)


def as_boxed_function(imported: FunctionalGraph, compiled_graph: CompiledGraph | PartitionedGraph) -> BoxedFunction:
    """Return the function that AOTAutograd calls: adapts its arguments and results to those of `compiled_graph`.

    Dispatch modes are off while it runs: under one, kernels of PyTorch that conjugate are wrong (pytorch/pytorch#198118).
    AOTAutograd makes first calls in a mode that warns of aliases among results of custom operators; here these are copied.
    """
    sources = imported.input_sources
    profiled_graph = ProfiledGraph(compiled_graph)
    returned = sorted({r.position for r in imported.results if isinstance(r, (PassthroughInput, InputView))})

    def run(arguments: list[Any]) -> list[Any]:
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                return run(arguments)
        tensors = [s.feed(arguments) for s in sources]
        passed_through = {k: arguments[k] for k in returned}
        arguments.clear()
        graph = profiled_graph if profiler._is_profiler_enabled else compiled_graph
        outputs, sizes = (
            graph.call_with_sizes(tensors)
            if imported.graph.outputs
            else ([], lambda: infer_sizes(imported.graph.inputs, tensors))
        )
        results: list[Any] = []
        for r in imported.results:
            if isinstance(r, GraphOutput):
                results.append(r.view(outputs[r.index]))
            elif isinstance(r, ScalarOutput):
                results.append(outputs[r.index].item())
            elif isinstance(r, PassthroughInput):
                results.append(passed_through[r.position])
            elif isinstance(r, InputView):
                offset = int(outputs[r.offset.index]) if isinstance(r.offset, ScalarOutput) else r.offset
                results.append(_view_input(passed_through[r.position], r, offset, sizes()))
            else:
                results.append(r.value if isinstance(r, ConstantOutput) else evaluate(r.dim, sizes()))
        return results

    return _mark_boxed(run)


def _view_input(argument: torch.Tensor, view: InputView, offset: Dim, sizes: Mapping[str, int]) -> torch.Tensor:
    shape, strides = ([evaluate(d, sizes) for d in dims] for dims in (view.shape, view.strides))
    return argument.as_strided(shape, strides, evaluate(offset, sizes))


def _mark_boxed(run: BoxedFunction) -> BoxedFunction:
    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd recognises this calling convention
    return run
