"""The backend "tilewright" of `torch.compile`.

Importing it lets Dynamo trace recurrent layers, for other backends of the process too: Dynamo decides while it traces, before it
asks a backend for anything, and `torch.compile` passes no `backend_ctx_ctor` on.  Whoever sets `torch._dynamo.config.allow_rnn`
to False afterwards has layers run in PyTorch under every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

from compiler.driver.compiled_graph import CompiledGraph, infer_sizes
from compiler.driver.partitioned_graph import PartitionedGraph, compile_graph
from compiler.frontend.calling_convention import ConstantOutput, GraphOutput, ScalarOutput
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import (
    FunctionalGraph,
    PassthroughInput,
    SizeCarrier,
    import_functional,
    unmutated_weights,
)
from compiler.frontend.output_aliasing import InputView
from compiler.frontend.recurrent_ops import decompose_recurrent_layers
from compiler.ir.symbolic.index_expr import evaluate
from compiler.options import as_options

BoxedFunction: TypeAlias = Callable[[list[Any]], list[Any]]
"""A function that takes its arguments in a list and empties it, so that they can be freed early."""

torch._dynamo.config.allow_rnn = True


def tilewright(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what `torch.compile(model, backend="tilewright", options={...})` captured, for inference and training.

    `options` are the fields of `compiler.Options`; operations without a conversion run in PyTorch unless they say
    otherwise.  With `freezing`, weights are constants wherever no gradient is asked for.  There is one mode, so `mode`
    changes nothing.
    """
    chosen = as_options({"fallback": "eager", **(options or {})})

    def compile_fx_graph(
        graph: torch.fx.GraphModule, arguments: Sequence[Any], frozen: Sequence[tuple[int, torch.Tensor]] = ()
    ) -> BoxedFunction:
        with _disable_current_modes():  # AOTAutograd's fake tensors, while constants are folded
            imported = import_functional(graph, frozen=frozen, fallback=chosen.fallback)
            return as_boxed_function(
                imported, compile_graph(imported.graph, chosen, imported.bounds, imported.runtime_assertions)
            )

    def compile_frozen(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> BoxedFunction:
        weights = unmutated_weights(graph, module, inputs)

        def recompile() -> BoxedFunction:
            warnings.warn("weights have changed since they were frozen, and are inputs from now on", stacklevel=3)
            return compile_fx_graph(graph, arguments)

        return guard_frozen_weights(compile_fx_graph(graph, arguments, weights), weights, recompile)

    decompose_recurrent_layers(module)
    backend = aot_autograd(
        fw_compiler=compile_fx_graph,
        inference_compiler=compile_frozen if chosen.freezing else compile_fx_graph,
        decompositions=autograd_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return backend(module, inputs)


def guard_frozen_weights(
    frozen_function: BoxedFunction, weights: Sequence[tuple[int, torch.Tensor]], recompile: Callable[[], BoxedFunction]
) -> BoxedFunction:
    """`frozen` while the arguments at these positions are the tensors it knows, unchanged; else what `thaw` gives, once.

    PyTorch counts how often a tensor was written, but not through `.data` or NumPy.
    """
    known = [(k, tensor, tensor._version) for k, tensor in weights]
    general = cache(recompile)

    def run(arguments: list[Any]) -> list[Any]:
        for k, tensor, version in known:
            if arguments[k] is not tensor or tensor._version != version:
                return general()(arguments)
        return frozen_function(arguments)

    return _mark_boxed(run)


def as_boxed_function(imported: FunctionalGraph, compiled_graph: CompiledGraph | PartitionedGraph) -> BoxedFunction:
    """The compiled graph as AOTAutograd calls it."""
    feeds = [(f.position, isinstance(f, SizeCarrier)) for f in imported.input_sources]
    kept = sorted({r.position for r in imported.results if isinstance(r, (PassthroughInput, InputView))})

    def run(arguments: list[Any]) -> list[Any]:
        tensors = [torch.empty(arguments[k], dtype=torch.uint8) if witness else arguments[k] for k, witness in feeds]
        passed = {k: arguments[k] for k in kept}
        arguments.clear()
        outputs, sizes = (
            compiled_graph.call_with_sizes(tensors)
            if imported.graph.outputs
            else ([], lambda: infer_sizes(imported.graph.inputs, tensors))
        )
        results: list[Any] = []
        for r in imported.results:
            if isinstance(r, GraphOutput):
                results.append(outputs[r.index])
            elif isinstance(r, ScalarOutput):
                results.append(outputs[r.index].item())
            elif isinstance(r, PassthroughInput):
                results.append(passed[r.position])
            elif isinstance(r, InputView):
                results.append(_view(passed[r.position], r, sizes()))
            else:
                results.append(r.value if isinstance(r, ConstantOutput) else evaluate(r.dim, sizes()))
        return results

    return _mark_boxed(run)


def _view(argument: torch.Tensor, view: InputView, sizes: Mapping[str, int]) -> torch.Tensor:
    """The view of an argument for the sizes of a call."""
    shape, strides = ([evaluate(d, sizes) for d in dims] for dims in (view.shape, view.strides))
    return argument.as_strided(shape, strides, evaluate(view.offset, sizes))


def _mark_boxed(run: BoxedFunction) -> BoxedFunction:
    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of this calling convention
    return run
