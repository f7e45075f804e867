"""The backend "tilewright" of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

from compiler.driver import CompiledGraph, compile_graph
from compiler.frontend.decompositions import for_autograd
from compiler.frontend.dynamo import Functional, Passed, Witness, import_functional
from compiler.frontend.results import GraphOutput, Literal
from compiler.ir.index import evaluate
from compiler.options import as_options


def tilewright(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what `torch.compile(model, backend="tilewright", options={...})` captured, for inference and training.

    `options` are the fields of `compiler.Options`; operations without a conversion run in PyTorch unless they say
    otherwise.  There is one mode, so `mode` changes nothing.
    """
    chosen = as_options({"fallback": "eager", **(options or {})})

    def compile_functional(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        with _disable_current_modes():  # AOTAutograd's fake tensors, while constants are folded
            imported = import_functional(graph, fallback=chosen.fallback)
            return boxed(imported, compile_graph(imported.graph, chosen))

    backend = aot_autograd(
        fw_compiler=compile_functional, decompositions=for_autograd(), partition_fn=min_cut_rematerialization_partition
    )
    return backend(module, inputs)


def boxed(imported: Functional, compiled: CompiledGraph) -> Callable[[list[Any]], list[Any]]:
    """A function that takes its arguments in a list and empties it, so that they can be freed early."""
    feeds = [(f.position, isinstance(f, Witness)) for f in imported.feeds]
    kept = sorted({r.position for r in imported.results if isinstance(r, Passed)})

    def run(arguments: list[Any]) -> list[Any]:
        tensors = [torch.empty(arguments[k], dtype=torch.uint8) if witness else arguments[k] for k, witness in feeds]
        passed = {k: arguments[k] for k in kept}
        arguments.clear()
        outputs = compiled(tensors) if imported.graph.outputs else []
        results: list[Any] = []
        for r in imported.results:
            if isinstance(r, GraphOutput):
                results.append(outputs[r.index])
            elif isinstance(r, Passed):
                results.append(passed[r.position])
            else:
                results.append(r.value if isinstance(r, Literal) else evaluate(r.dim, compiled.sizes(tensors)))
        return results

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of this calling convention
    return run
