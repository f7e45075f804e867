"""Import of modules and exported programs through `torch.export`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._functorch import predispatch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils._pytree import TreeSpec, tree_leaves

from compiler.errors import USE_TORCH_COMPILE, ArgumentError
from compiler.frontend.calling_convention import (
    ConstantOutput,
    GraphOutput,
    InputSource,
    ResultLeaf,
    ScalarOutput,
    SizeOutput,
    StateInput,
    UserInput,
    as_data,
)
from compiler.frontend.conversions.table import conversions
from compiler.frontend.decompositions import export_decompositions, recurrent_decompositions
from compiler.frontend.importer import DROPPED_OPERATORS, Importer
from compiler.frontend.memory_format import (
    argument_permutation,
    inverse,
    permuted_node,
    permuted_view,
    result_permutation,
)
from compiler.frontend.module_export import export_error, export_module
from compiler.frontend.promotion import SymbolicScalar
from compiler.frontend.sympy_conversion import to_bounds, to_dim
from compiler.frontend.unbacked_symbols import UnbackedSymbols, tensor_type
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.symbolic.index_expr import IndexExpr


@dataclass(frozen=True)
class ImportedProgram:
    """Graph of the user's program with its calling convention.

    `input_sources` gives the source of each graph input, `results` that of each leaf of the result.  Graph outputs that no
    leaf names are written back through `graph.output_aliases`, or define an unbacked size.  `bounds` are the inclusive
    ranges of the symbolic sizes, `runtime_assertions` the conditions on unbacked ones.  `specialized_arguments` maps leaf
    positions to the values that arguments must have.
    """

    graph: Graph
    input_sources: tuple[InputSource, ...]
    results: tuple[ResultLeaf, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    bounds: Mapping[str, tuple[int, int]]
    specialized_arguments: Mapping[int, Any]
    runtime_assertions: tuple[RuntimeAssertion, ...] = ()


def import_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: str = "error",
) -> ImportedProgram:
    """Export `module` on example arguments and import it."""
    return import_exported(export_module(module, args, kwargs or {}, dynamic_shapes), fallback=fallback)


def import_exported(program: ExportedProgram, *, fallback: str = "error") -> ImportedProgram:
    """Import an exported program.

    PyTorch decomposes operators without a conversion.  Parameters become constants that share their memory.
    Raises UnsupportedOpError for unsupported operators, unless `fallback` is "eager" and PyTorch can run them;
    with "strict", for those too that always run in PyTorch.  Waits for other threads, as `export_module` does.
    """
    with compile_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own code
        if needs_decomposition(program):
            program = _decompose(program)
        sources = _ProgramInputs(program)
        importer = Importer(fallback)
        values = importer.import_graph(program.graph, sources.placeholders(), sources.lookup_constant)
        return sources.build_program(values, importer.unbacked)


def _decompose(program: ExportedProgram) -> ExportedProgram:
    """Decompose operators without a conversion.

    ArgumentError where that fails because tensors over one memory are written, else ExportError.
    """
    try:
        with torch.no_grad():
            decomposed: ExportedProgram = program.run_decompositions(export_decompositions(training_operators(program)))
            return decomposed
    except Exception as error:
        shared = isinstance(error, AssertionError) and _names_over_one_memory(program)
        if not shared:
            raise export_error(graph_name(program.graph), error) from error
        problem = f"{' and '.join(shared)} are over one memory, and the model writes one of them"
        remedy = f"pass a clone, or {USE_TORCH_COMPILE}, which takes such tensors"
        raise ArgumentError(f"{problem}: {remedy}") from error


def _names_over_one_memory(program: ExportedProgram) -> list[str]:
    """Return the names of the first tensors, among example arguments and the program's own, that share a storage."""
    leaves = enumerate(tree_leaves(program.example_inputs))
    names: dict[int, list[str]] = {}
    for name, x in ({f"argument {k}": x for k, x in leaves} | program.state_dict | program.constants).items():
        if isinstance(x, torch.Tensor):
            names.setdefault(x.untyped_storage().data_ptr(), []).append(name)
    return next((shared for address, shared in names.items() if address and len(shared) > 1), [])


def needs_decomposition(program: ExportedProgram) -> bool:
    """Return True if an operator has no conversion and no decomposition of its own, is in training mode or of higher order."""
    convertible = conversions().keys() | DROPPED_OPERATORS | set(map(str, recurrent_decompositions()))
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return True
        if getattr(node.target, "__module__", "") == predispatch.__name__:
            return True
        if not isinstance(node.target, torch._ops.OpOverload) or isinstance(node.meta.get("val"), (int, torch.SymInt)):
            continue
        if str(node.target) not in convertible or _is_training_call(node):
            return True
    return False


def training_operators(program: ExportedProgram) -> set[Any]:
    """Return the operators that are called in training mode."""
    return {node.target for node in program.graph.nodes if _is_training_call(node)}


def _is_training_call(node: torch.fx.Node) -> bool:
    """Return True for a layer in training mode, which draws random numbers or updates statistics.

    Such layers are recognized by PyTorch's common names for the arguments.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    names = (a.name for a in node.target._schema.arguments)
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    rates = [arguments[k] for k in ("p", "dropout", "dropout_p") if k in arguments]
    return bool(arguments.get("train") or arguments.get("training") or "dropout_p" in arguments) and rates != [0]


class _ProgramInputs:
    """Values of the placeholders of one exported program, and the graph inputs made for them."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.signature = program.graph_signature
        self.mutated_state = {
            s.target
            for s in self.signature.output_specs
            if s.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
        }
        self.constants: dict[tuple[Any, ...], Node] = {}
        self.inputs: list[Node] = []
        self.input_sources: list[InputSource] = []
        self.specialized_arguments: dict[int, Any] = {}

    def placeholders(self) -> dict[torch.fx.Node, Any]:
        """Return the value of each placeholder: a constant, an input, a size or a plain Python value."""
        values: dict[torch.fx.Node, Any] = {}
        nodes = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        position = 0
        for node, spec in zip(nodes, self.signature.input_specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                values[node] = self._user_input(node, spec, position)
                position += 1
            elif spec.kind == InputKind.TOKEN:
                values[node] = None  # effect token; operators with effects raise on import
            else:
                values[node] = self._state_value(node, spec)
        return values

    def _user_input(self, node: torch.fx.Node, spec: InputSpec, position: int) -> Any:
        if isinstance(spec.arg, TensorArgument):
            return self._input(node, UserInput(position, argument_permutation(node.meta["val"])))
        if isinstance(spec.arg, SymIntArgument):
            return to_dim(node.meta["val"])
        value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else node.meta.get("val")
        self.specialized_arguments[position] = value
        return value

    def _input(self, node: torch.fx.Node, source: InputSource) -> Node:
        """Add a graph input and return the value of `node`, its transpose if the input is in another memory order."""
        self.inputs.append(
            input_node(node.name, tensor_type(permuted_view(node.meta["val"], source.permutation), name=node.name))
        )
        self.input_sources.append(source)
        return permuted_node(self.inputs[-1], inverse(source.permutation))

    def _state_value(self, node: torch.fx.Node, spec: InputSpec) -> Any:
        name = str(spec.target)
        tensor = self._tensor(name)
        if name in self.mutated_state:
            return self._input(node, StateInput(name, tensor.detach(), argument_permutation(tensor)))
        return self.constant(tensor, name) if node.users else None

    def _tensor(self, name: str) -> torch.Tensor:
        state, constants = self.program.state_dict, self.program.constants
        tensor = state.get(name, constants.get(name))
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor")
        return tensor

    def constant(self, tensor: torch.Tensor, name: str) -> Node:
        """Return the constant for `tensor`, the same one for all views of its memory with the same layout."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        if key not in self.constants:
            self.constants[key] = constant_node(as_data(tensor, name))
        return self.constants[key]

    def lookup_constant(self, name: str) -> Node:
        """Return the constant for a tensor attribute of the graph module."""
        return self.constant(attrgetter(name)(self.program.graph_module), name)

    def build_program(self, values: Sequence[Any], unbacked: UnbackedSymbols) -> ImportedProgram:
        """Return the imported program, given the values of its outputs and the unbacked symbols."""
        outputs: list[Node] = []
        results: list[ResultLeaf] = []
        aliases: dict[int, int] = {}
        names = {o.name: k for k, o in enumerate(self.input_sources) if isinstance(o, StateInput)}
        arguments = {n.attrs["name"]: k for k, n in enumerate(self.inputs)}
        (output,) = self.program.graph.find_nodes(op="output")
        for value, returned, spec in zip(values, output.args[0], self.signature.output_specs, strict=True):
            if spec.kind == OutputKind.USER_OUTPUT:
                leaf = _result_leaf(value, len(outputs), returned)
                results.append(leaf)
                if isinstance(leaf, GraphOutput):
                    outputs.append(permuted_node(value, inverse(leaf.permutation)))
                elif isinstance(value, SymbolicScalar):
                    outputs.append(value.node)
                continue
            if spec.kind == OutputKind.TOKEN:
                continue
            target = str(spec.target)
            k = arguments[target] if spec.kind == OutputKind.USER_INPUT_MUTATION else names[target]
            aliases[len(outputs)] = k
            outputs.append(permuted_node(value, self.input_sources[k].permutation))
        outputs += unbacked.required_definers(outputs, [r.dim for r in results if isinstance(r, SizeOutput)])
        spec_in, spec_out = self.program.call_spec
        return ImportedProgram(
            Graph(tuple(self.inputs), tuple(outputs), graph_name(self.program.graph), aliases), tuple(self.input_sources), tuple(results),
            spec_in, spec_out, {**unbacked.bounds, **self._symbol_bounds()}, self.specialized_arguments, tuple(unbacked.runtime_assertions),
        )  # fmt: skip

    def _symbol_bounds(self) -> dict[str, tuple[int, int]]:
        return {str(symbol): to_bounds(r) for symbol, r in self.program.range_constraints.items()}


def graph_name(graph: torch.fx.Graph) -> str:
    """Return the class name of the exported module."""
    stacks = (n.meta.get("nn_module_stack") or {} for n in graph.nodes)
    outermost = (str(kind) for s in stacks for path, kind in s.values() if path == "")
    return next(outermost, "graph").split(".")[-1].split("'")[0]


def _result_leaf(value: Any, index: int, returned: Any) -> ResultLeaf:
    """Return the source of a leaf that the FX graph takes from node `returned`; `index` is the next output's."""
    if isinstance(value, Node):
        return GraphOutput(index, result_permutation(returned.meta.get("val")))
    if isinstance(value, SymbolicScalar):
        return ScalarOutput(index)
    return SizeOutput(value) if isinstance(value, IndexExpr) else ConstantOutput(value)
