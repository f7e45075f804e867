"""Calls traced by AOTAutograd as under `torch.compile`, without Dynamo, and compiled by a given function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from functorch.compile import aot_function
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatefulSymbolicContext
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Call: TypeAlias = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""First argument, further ones, and keyword arguments of a call."""

PLAIN_TYPES = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments whose text says all about them."""


class RankError(Exception):
    """A result of a traced graph has another rank than in the trace."""


class RankChecker(torch.fx.Interpreter):
    """Run a traced graph in PyTorch; RankError if a result has another rank than in the trace."""

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        for value, traced in zip(tree_leaves(result), tree_leaves(n.meta.get("val")), strict=False):
            if isinstance(value, torch.Tensor) and isinstance(traced, torch.Tensor) and value.dim() != traced.dim():
                raise RankError(f"{n.target} has rank {value.dim()}, traced as {traced.dim()}")
        return result


def apply_call(function: Callable[..., Any], call: Call) -> Any:
    """Return the result of `function` for the arguments of a call."""
    first, args, kwargs = call
    return function(first, *args, **kwargs)


def call_as_aot_eager(function: Callable[..., Any], call: Call, dynamic_shapes: bool) -> Any:
    """Return the result of PyTorch's backend "aot_eager", which runs the traced graph as it is."""
    return trace_and_call(function, call, lambda module, _: RankChecker(module).run, {}, dynamic_shapes)[1]


def trace_and_call(
    function: Callable[..., Any],
    call: Call,
    fw_compiler: Callable[..., Any],
    decompositions: Mapping[Any, Callable[..., Any]],
    dynamic_shapes: bool,
) -> tuple[Callable[..., Any], Any]:
    """Return `function` as traced by AOTAutograd and compiled by `fw_compiler`, and its result.

    The first takes the tensors of a call.  As Dynamo does, it is traced again once a number is specialized, and the graph
    holds PyTorch's assertions on unbacked symbols.
    """
    leaves, spec = tree_flatten(call)
    positions = [k for k, v in enumerate(leaves) if isinstance(v, torch.Tensor)]

    def of_tensors(*tensors: torch.Tensor) -> Any:
        replaced = list(leaves)
        for k, t in zip(positions, tensors, strict=True):
            replaced[k] = t
        return apply_call(function, tree_unflatten(replaced, spec))

    def compile_with_assertions(module: torch.fx.GraphModule, arguments: Any) -> Any:
        insert_deferred_runtime_asserts(module, shape_env, "sample")
        return fw_compiler(module, arguments)

    tensors = [leaves[k] for k in positions]
    while True:
        shape_env = ShapeEnv()
        traced = aot_function(of_tensors, fw_compiler=compile_with_assertions, decompositions=dict(decompositions))
        context = TracingContext(FakeTensorMode(shape_env=shape_env))
        # where a number is specialized, PyTorch has noted which one, for the next attempt
        with suppress(TensorifyScalarRestartAnalysis), tracing(context):
            for t in tensors if not dynamic_shapes else ():
                context.tensor_to_context[t] = StatefulSymbolicContext(
                    [DimDynamic.STATIC] * t.dim(),
                    tensor_source=ConstantSource("sample"),
                    shape_env_to_source_to_symbol_cache={},
                )
            return traced, traced(*tensors)


def tensors_of(call: Call) -> list[torch.Tensor]:
    """Return the tensors among the arguments of a call, in the order in which a traced function takes them."""
    return [v for v in tree_leaves(call) if isinstance(v, torch.Tensor)]


def trace_key(call: Call) -> Hashable | None:
    """Return what a trace of a call depends on: all but the elements of tensors.

    None if an argument is neither of `PLAIN_TYPES` nor a strided tensor.  Calls with equal keys have the same trace if their tensors share no memory.
    """
    leaves, spec = tree_flatten(call)
    if not all((type(v) is torch.Tensor and v.layout is torch.strided) or isinstance(v, PLAIN_TYPES) for v in leaves):
        return None
    return (spec, *(_tensor_key(v) if isinstance(v, torch.Tensor) else repr(v) for v in leaves))


def _tensor_key(t: torch.Tensor) -> Hashable:
    bits = t.requires_grad, t.is_conj(), t.is_neg()
    return t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, bits
