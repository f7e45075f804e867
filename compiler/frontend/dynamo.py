"""Import of the functional ATen graphs, forward and backward, that AOTAutograd passes to a `torch.compile` backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import torch
from torch._dynamo.utils import get_static_address_type
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    InputMutationAOTOutput,
    PlainAOTInput,
    SubclassGetAttrAOTInput,
)

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
from compiler.frontend.memory_format import (
    Permutation,
    argument_permutation,
    inverse,
    permuted_node,
    permuted_view,
    result_permutation,
)
from compiler.frontend.output_aliasing import InputView, input_views, is_alias
from compiler.frontend.promotion import SymbolicScalar
from compiler.frontend.source_location import argument_name
from compiler.frontend.sympy_conversion import to_bounds, to_dim
from compiler.frontend.unbacked_symbols import tensor_type
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, var
from compiler.ir.types import TensorType, u8


@dataclass(frozen=True)
class SizeCarrier:
    """Graph input u8[n] whose shape carries the value n of argument `position`, an int; its elements are not read."""

    position: int

    def feed(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Return the value of the graph input for the arguments of a call, on the device of the first tensor among them."""
        device = next((a.device for a in arguments if isinstance(a, torch.Tensor)), None)
        return torch.empty(arguments[self.position], dtype=torch.uint8, device=device)


@dataclass(frozen=True)
class PassthroughInput:
    """Result that is argument `position` itself."""

    position: int


FunctionalInputSource: TypeAlias = Union[UserInput, SizeCarrier]
FunctionalResult: TypeAlias = Union[GraphOutput, ScalarOutput, ConstantOutput, SizeOutput, PassthroughInput, InputView]


@dataclass(frozen=True)
class FunctionalGraph:
    """Graph over flat arguments with the source of each input and result.

    Outputs that no result names only define an unbacked size.  `bounds` are the inclusive ranges of the symbolic sizes,
    `runtime_assertions` the conditions on unbacked ones.
    """

    graph: Graph
    input_sources: tuple[FunctionalInputSource, ...]
    results: tuple[FunctionalResult, ...]
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    runtime_assertions: tuple[RuntimeAssertion, ...] = ()


def import_functional(
    module: torch.fx.GraphModule, *, frozen: Sequence[tuple[int, torch.Tensor]] = (), names: Mapping[int, str] | None = None,
    fallback: str = "error",
) -> FunctionalGraph:  # fmt: skip
    """Import a functional ATen graph.

    Arguments in `frozen`, given by position and value, become constants, the others inputs.  An integer that is no
    tensor's size comes in as a size carrier.  Errors call arguments as `names` does, where it has their position.
    Raises UnsupportedOpError as `import_exported` does.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    user_names = {n: (names or {}).get(k, n.name) for k, n in enumerate(placeholders)}
    constants = {placeholders[k]: constant_node(as_data(tensor, user_names[placeholders[k]])) for k, tensor in frozen}
    inputs = _select_inputs(user_names, constants)
    logical = [(s, permuted_node(n, inverse(s.permutation)) if isinstance(s, UserInput) else n) for s, n in inputs]
    values = {n: to_dim(n.meta["val"]) for n in placeholders if isinstance(n.meta["val"], (int, torch.SymInt))}
    values |= {placeholders[s.position]: node for s, node in logical if isinstance(s, UserInput)}
    values |= {n: None for n in placeholders if _is_effect_token(n)}
    importer = Importer(fallback)
    outputs = importer.import_graph(module.graph, {**values, **constants}, module_constants(module))
    unbacked = importer.unbacked
    sources, nodes = tuple(s for s, _ in inputs), tuple(n for _, n in inputs)
    bounds = _symbol_bounds(placeholders)
    (output,) = module.graph.find_nodes(op="output")
    arguments = {node: source.position for source, node in logical}
    stored: dict[tuple[Node, Permutation], Node] = {}
    views = input_views(
        placeholders,
        importer.values,
        output.args[0],
        unbacked.dim,
        store=lambda n: ScalarOutput(_stored_index(stored, n, ())),
    )
    results = tuple(
        PassthroughInput(arguments[v])
        if v in arguments and is_alias(returned, placeholders[arguments[v]])
        else views.get(k) or _result_source(v, returned, stored)
        for k, (v, returned) in enumerate(zip(outputs, output.args[0], strict=True))
    )
    unique = tuple(stored.values())
    dims = [r.dim for r in results if isinstance(r, SizeOutput)]
    dims += [d for r in results if isinstance(r, InputView) for d in r.dims]
    graph = Graph(nodes, (*unique, *unbacked.required_definers(unique, dims)), "compiled")
    return FunctionalGraph(graph, sources, results, {**unbacked.bounds, **bounds}, tuple(unbacked.runtime_assertions))


def _symbol_bounds(placeholders: Sequence[torch.fx.Node]) -> dict[str, tuple[int, int]]:
    """Return the inclusive ranges of the symbolic sizes, which Dynamo guards."""
    values = (n.meta["val"] for n in placeholders)
    sizes = (size for v in values for size in (v.shape if isinstance(v, torch.Tensor) else (v,)))
    nodes = [size.node for size in sizes if isinstance(size, torch.SymInt)]
    ranges = {str(symbol): n.shape_env.bound_sympy(symbol) for n in nodes for symbol in n.expr.free_symbols}
    # PyTorch gives no range for the symbolic length of a jagged tensor's rows
    return {name: to_bounds(r) for name, r in ranges.items() if r is not None}


def argument_names(graph: torch.fx.GraphModule, captured: torch.fx.GraphModule) -> dict[int, str]:
    """Return what the user's program calls the arguments of `graph`, from AOTAutograd, by position, as far as it has a name.

    `captured` is Dynamo's graph.
    """
    captured_names = list(map(argument_name, captured.graph.find_nodes(op="placeholder")))

    def name(described: AOTInput | None) -> str:
        match described:
            case PlainAOTInput(idx=k):
                return captured_names[k]
            case SubclassGetAttrAOTInput(base=base, attr=attribute) if name(base):
                return f"{name(base)}.{attribute}"
        return getattr(described, "target", "")  # of a parameter or buffer that is an attribute of `captured`

    names = {k: name(n.meta.get("desc")) for k, n in enumerate(graph.graph.find_nodes(op="placeholder"))}
    return {k: found for k, found in names.items() if found}


def unmutated_weights(
    graph: torch.fx.GraphModule, captured: torch.fx.GraphModule, inputs: Sequence[Any]
) -> list[tuple[int, torch.Tensor]]:
    """Return position and tensor of those arguments of `graph`, from AOTAutograd, that are weights it only reads.

    `captured` and `inputs` are Dynamo's graph and its inputs.  Depending on Dynamo's settings, weights are attributes of
    the former or tensors among the latter.
    """
    held: dict[str | int, torch.Tensor] = dict(captured.named_parameters(remove_duplicate=False))
    held |= captured.named_buffers(remove_duplicate=False)
    held |= {k: tensor for k, tensor in enumerate(inputs) if get_static_address_type(tensor)}
    (output,) = graph.graph.find_nodes(op="output")
    written = {d.mutated_input for d in output.meta["desc"] if isinstance(d, InputMutationAOTOutput)}
    origins = [(k, n.meta["desc"]) for k, n in enumerate(graph.graph.find_nodes(op="placeholder"))]
    weights = [(k, held.get(getattr(d, "target", getattr(d, "idx", -1)))) for k, d in origins if d not in written]
    return [(k, tensor) for k, tensor in weights if tensor is not None and not tensor.is_inference()]


def _select_inputs(
    user_names: Mapping[torch.fx.Node, str], constants: dict[torch.fx.Node, Node]
) -> list[tuple[FunctionalInputSource, Node]]:
    """Return the graph inputs: the tensors that are used, and a carrier of every size that they do not define.

    `user_names` holds all placeholders, with the names that errors give them.
    """
    placeholders = list(user_names)
    typed = [
        (k, n, tensor_type(n.meta["val"], name=user_names[n]))
        for k, n in enumerate(placeholders)
        if isinstance(n.meta["val"], torch.Tensor) and n not in constants
    ]
    chosen: list[tuple[FunctionalInputSource, Node]] = [
        _user_input(k, n) for k, n, _ in typed if n.users and not _is_effect_token(n)
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
    """True for an argument that only orders side effects; it is None in a call."""
    return bool(n.users) and all(str(u.target) == "with_effects" and u.args[0] is n for u in n.users)


def _integer_argument_symbols(placeholders: Sequence[torch.fx.Node]) -> set[str]:
    """Return the symbols of the integer arguments that are used."""
    dims = [to_dim(n.meta["val"]) for n in placeholders if isinstance(n.meta["val"], torch.SymInt) and n.users]
    return {name for d in dims if isinstance(d, IndexExpr) for name in TensorType(u8, (d,)).symbols}


def _size_carrier(
    size: IndexExpr, placeholders: Sequence[torch.fx.Node], unused: Sequence[tuple[int, torch.fx.Node, TensorType]]
) -> tuple[FunctionalInputSource, Node]:
    """Return an argument whose shape or value is `size`; `unused` are tensors that the graph does not read."""
    for k, n, t in unused:
        if size in t.shape:
            return _user_input(k, n)
    for k, n in enumerate(placeholders):
        if isinstance(n.meta["val"], torch.SymInt) and to_dim(n.meta["val"]) == size:
            return SizeCarrier(k), input_node(n.name, TensorType(u8, (size,)))
    raise AssertionError(f"no argument has dimension {size}")


def _user_input(position: int, n: torch.fx.Node) -> tuple[UserInput, Node]:
    """Return the graph input of a tensor argument, in the order of its memory."""
    value: torch.Tensor = n.meta["val"]
    source = UserInput(position, argument_permutation(value))
    return source, input_node(n.name, tensor_type(permuted_view(value, source.permutation)))


def _result_source(value: Any, returned: Any, stored: dict[tuple[Node, Permutation], Node]) -> FunctionalResult:
    """Return the source of a result that the FX graph takes from node `returned`.

    `stored` are the graph outputs so far, by value and permutation; a new one is added.
    """
    if isinstance(value, SymbolicScalar):
        return ScalarOutput(_stored_index(stored, value.node, ()))
    if isinstance(value, Node):
        permutation = result_permutation(returned.meta["val"])
        return GraphOutput(_stored_index(stored, value, permutation), permutation)
    return SizeOutput(value) if isinstance(value, IndexExpr) else ConstantOutput(value)


def _stored_index(stored: dict[tuple[Node, Permutation], Node], value: Node, permutation: Permutation) -> int:
    """Return the number of the graph output that holds `value` in the order `permutation`; a new one is added to `stored`."""
    stored.setdefault((value, permutation), permuted_node(value, inverse(permutation)))
    return list(stored).index((value, permutation))
