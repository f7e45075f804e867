"""Graphs from `torch.compile`: functional ATen as AOTAutograd hands it to a backend, forward and backward alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import torch
from torch._dynamo.utils import get_static_address_type
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

from compiler.frontend.calling_convention import (
    ConstantOutput,
    GraphOutput,
    ScalarOutput,
    SizeOutput,
    UserInput,
    as_data,
    module_constants,
)
from compiler.frontend.importer import Importer
from compiler.frontend.output_aliasing import InputView, input_views
from compiler.frontend.promotion import SymbolicScalar
from compiler.frontend.sympy_conversion import to_bounds, to_dim
from compiler.frontend.unbacked_symbols import tensor_type
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, var
from compiler.ir.types import TensorType, u8


@dataclass(frozen=True)
class SizeCarrier:
    """Graph input that only carries a size: a vector with as many elements as argument `position`, an int, says."""

    position: int


@dataclass(frozen=True)
class PassthroughInput:
    """Result that is argument `position` itself."""

    position: int


FunctionalInputSource: TypeAlias = Union[UserInput, SizeCarrier]
FunctionalResult: TypeAlias = Union[GraphOutput, ScalarOutput, ConstantOutput, SizeOutput, PassthroughInput, InputView]


@dataclass(frozen=True)
class FunctionalGraph:
    """A graph over flat arguments: what feeds its inputs, where each result comes from, the ranges of symbolic sizes.

    Outputs that no result names only tell a size; `conditions` are what must hold of sizes that data tells.
    """

    graph: Graph
    input_sources: tuple[FunctionalInputSource, ...]
    results: tuple[FunctionalResult, ...]
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    runtime_assertions: tuple[RuntimeAssertion, ...] = ()


def import_functional(
    module: torch.fx.GraphModule, *, frozen: Sequence[tuple[int, torch.Tensor]] = (), fallback: str = "error"
) -> FunctionalGraph:
    """Import a functional ATen graph.

    Arguments named in `frozen` become constants, the others inputs; integers that are no tensor's size come in as the size
    of a witness.  Raises UnsupportedOpError as `import_exported` does.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    constants = {placeholders[k]: constant_node(as_data(tensor, placeholders[k].name)) for k, tensor in frozen}
    inputs = _select_inputs(placeholders, constants)
    values = {n: to_dim(n.meta["val"]) for n in placeholders if isinstance(n.meta["val"], (int, torch.SymInt))}
    values |= {placeholders[f.position]: node for f, node in inputs if isinstance(f, UserInput)}
    values |= {n: None for n in placeholders if _is_effect_token(n)}
    importer = Importer(fallback)
    outputs = importer.import_graph(module.graph, {**values, **constants}, module_constants(module))
    unbacked = importer.unbacked
    feeds, nodes = tuple(f for f, _ in inputs), tuple(n for _, n in inputs)
    bounds = _symbol_bounds(placeholders)
    (output,) = module.graph.find_nodes(op="output")
    views = input_views(placeholders, importer.values, output.args[0], unbacked.dim)
    passed = {node: PassthroughInput(feed.position) for feed, node in inputs}
    computed = [v.node if isinstance(v, SymbolicScalar) else v for k, v in enumerate(outputs) if k not in views]
    unique = list(dict.fromkeys(v for v in computed if isinstance(v, Node) and v not in nodes))
    results = tuple(passed.get(v) or views.get(k) or _result_source(v, unique) for k, v in enumerate(outputs))
    dims = [
        d
        for r in results
        for d in ((r.dim,) if isinstance(r, SizeOutput) else r.dims if isinstance(r, InputView) else ())
    ]
    graph = Graph(nodes, (*unique, *unbacked.required_definers(unique, dims)), "compiled")
    return FunctionalGraph(graph, feeds, results, {**unbacked.bounds, **bounds}, tuple(unbacked.runtime_assertions))


def _symbol_bounds(placeholders: Sequence[torch.fx.Node]) -> dict[str, tuple[int, int]]:
    """The ranges of the symbolic sizes, which Dynamo guards."""
    found: dict[str, tuple[int, int]] = {}
    for n in placeholders:
        value = n.meta["val"]
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                env = size.node.shape_env
                for symbol in size.node.expr.free_symbols:
                    found[str(symbol)] = to_bounds(env.bound_sympy(symbol))
    return found


def unmutated_weights(
    graph: torch.fx.GraphModule, captured: torch.fx.GraphModule, inputs: Sequence[Any]
) -> list[tuple[int, torch.Tensor]]:
    """The arguments of AOTAutograd's `graph` that are tensors of the user's modules and that it only reads, by position.

    `captured` and `inputs` are what Dynamo gave to the backend; weights are among either's tensors, as Dynamo is set up.
    """
    held: dict[str | int, torch.Tensor] = dict(captured.named_parameters(remove_duplicate=False))
    held |= captured.named_buffers(remove_duplicate=False)
    held |= {k: tensor for k, tensor in enumerate(inputs) if get_static_address_type(tensor)}
    (output,) = graph.graph.find_nodes(op="output")
    written = {d.mutated_input for d in output.meta["desc"] if isinstance(d, InputMutationAOTOutput)}
    origins = [(k, n.meta["desc"]) for k, n in enumerate(graph.graph.find_nodes(op="placeholder"))]
    found = [(k, held.get(getattr(d, "target", getattr(d, "idx", -1)))) for k, d in origins if d not in written]
    return [(k, tensor) for k, tensor in found if tensor is not None and not tensor.is_inference()]


def _select_inputs(
    placeholders: Sequence[torch.fx.Node], constants: dict[torch.fx.Node, Node]
) -> list[tuple[FunctionalInputSource, Node]]:
    """The graph inputs: tensors that are used, and whatever else it takes to tell every size."""
    typed = [
        (k, n, tensor_type(n.meta["val"]))
        for k, n in enumerate(placeholders)
        if isinstance(n.meta["val"], torch.Tensor) and n not in constants
    ]
    chosen: list[tuple[FunctionalInputSource, Node]] = [
        (UserInput(k), input_node(n.name, t)) for k, n, t in typed if n.users and not _is_effect_token(n)
    ]
    sizes: list[Dim] = [d for _, node in chosen for d in node.shape]
    needed = {s for _, node in chosen for s in node.type.symbols} | _integer_argument_symbols(placeholders)
    for name in sorted(needed):
        if var(name) in sizes:
            continue
        chosen.append(_size_carrier(var(name), placeholders, [t for t in typed if not t[1].users]))
        sizes += chosen[-1][1].shape
    return chosen


def _is_effect_token(n: torch.fx.Node) -> bool:
    """Whether an argument only tells in which order effects happen; it is None in a call."""
    return bool(n.users) and all(str(u.target) == "with_effects" and u.args[0] is n for u in n.users)


def _integer_argument_symbols(placeholders: Sequence[torch.fx.Node]) -> set[str]:
    """The symbols of integer arguments that are used."""
    dims = [to_dim(n.meta["val"]) for n in placeholders if isinstance(n.meta["val"], torch.SymInt) and n.users]
    return {name for d in dims if isinstance(d, IndexExpr) for name in TensorType(u8, (d,)).symbols}


def _size_carrier(
    size: IndexExpr, placeholders: Sequence[torch.fx.Node], unused: Sequence[tuple[int, torch.fx.Node, TensorType]]
) -> tuple[FunctionalInputSource, Node]:
    """An argument that tells `size`."""
    for k, n, t in unused:
        if size in t.shape:
            return UserInput(k), input_node(n.name, t)
    for k, n in enumerate(placeholders):
        if isinstance(n.meta["val"], torch.SymInt) and to_dim(n.meta["val"]) == size:
            return SizeCarrier(k), input_node(n.name, TensorType(u8, (size,)))
    raise AssertionError(f"no argument tells the size {size}")


def _result_source(value: Any, outputs: Sequence[Node]) -> FunctionalResult:
    if isinstance(value, Node):
        return GraphOutput(outputs.index(value))
    if isinstance(value, SymbolicScalar):
        return ScalarOutput(outputs.index(value.node))
    return SizeOutput(value) if isinstance(value, IndexExpr) else ConstantOutput(value)
