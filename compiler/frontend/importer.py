"""An FX graph of functional ATen operators, as Graph IR."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from compiler.errors import TilewrightError, TypeRuleError, UnsupportedOp, UnsupportedOpError
from compiler.frontend.calling_convention import module_constants
from compiler.frontend.control_flow import CONTROL_FLOW_OPERATORS
from compiler.frontend.conversions.table import conversions
from compiler.frontend.flex_attention import ATTENTION_OPERATORS
from compiler.frontend.opaque_ops import RANDOM_REASON, has_data_dependent_shape, opaque_reason
from compiler.frontend.promotion import SymbolicScalar
from compiler.frontend.registry import ConversionError, accepts_signed_indices, needs_result_shape
from compiler.frontend.scalar_vmap import broadcast_scalar, vmapped_result
from compiler.frontend.source_location import source_of
from compiler.frontend.unbacked_symbols import ITEM_OPERATORS, UnbackedSymbols, tensor_type
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, input_node
from compiler.ir.graph.partition import symbol_names
from compiler.ir.location import default_loc
from compiler.ir.symbolic.index_expr import var
from compiler.ir.types import TensorType

DROPPED_OPERATORS = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten._functional_assert_async.msg",
})  # fmt: skip
"""Checks of what types, guards and look-ups check already."""

ASSERT_SCALAR = torch.ops.aten._assert_scalar.default

PLACEMENT_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})
"""Arguments about where a tensor lies, which is ours to decide."""

STRIDED_OPERATORS = frozenset(
    {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"}
)
"""Operators that name places in the memory of their first operand."""


FUNCTIONALIZED_OPERATORS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""What calls an operator that writes to its arguments on copies of them, and gives the copies back."""


@dataclass(frozen=True)
class Unresolved:
    """Stands for the value of a node that could not be imported.

    A number without a form is a `problem` only where it is used: most are made for what PyTorch asserts.
    """

    problem: UnsupportedOp | None = None


@dataclass(frozen=True)
class Importer:
    """Imports the nodes of one FX graph; `values` maps those done to a node, a tuple of nodes or a size.

    What draws random numbers takes those `drawn` before it as an operand: PyTorch draws in the order of the program.
    `per_place` graphs compute with single numbers, and are imported for all places of a tensor.
    """

    fallback: str = "error"
    vmapped: bool = False
    values: dict[torch.fx.Node, Any] = field(default_factory=dict)
    unsupported: list[UnsupportedOp] = field(default_factory=list)
    eager_calls: list[UnsupportedOp] = field(default_factory=list)
    unbacked: UnbackedSymbols = field(default_factory=UnbackedSymbols)
    random_token: list[Node] = field(default_factory=list)

    def import_graph(
        self, graph: torch.fx.Graph, inputs: Mapping[torch.fx.Node, Any], lookup_constant: Callable[[str], Node]
    ) -> Sequence[Any]:
        """The values of the graph's outputs.

        `inputs` gives the placeholders' values, `attribute` the node of a tensor held by the module.
        Raises UnsupportedOpError naming every operator that has no conversion.
        """
        self.values.update(inputs)
        self.unbacked.add_inputs(
            symbol_names(tuple(v.result_type if isinstance(v, Node) else v for v in inputs.values()))
        )
        for node in graph.find_nodes(op="call_function", target=ASSERT_SCALAR):
            self.unbacked.record_equation(_asserted_condition(node))
        outputs: Sequence[Any] = ()
        for node in graph.nodes:
            if node.op == "get_attr":
                held = getattr(graph.owning_module, str(node.target), None)
                self.values[node] = (
                    held if isinstance(held, torch.fx.GraphModule) else lookup_constant(str(node.target))
                )
            elif node.op == "call_function":
                self.values[node] = self._import_call(node)
            elif node.op == "output":
                outputs = self._resolve(node.args[0])
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported)
        if self.eager_calls:
            lines = "".join(
                f"\n  {u.target}: {u.reason}" + (f" (at {u.loc})" if u.loc else "") for u in self.eager_calls
            )
            warnings.warn(
                f"{len(self.eager_calls)} operation(s) run in PyTorch inside the compiled program:{lines}", stacklevel=2
            )
        return outputs

    def _resolve(self, argument: Any) -> Any:
        """`argument` with FX nodes replaced by their values and symbolic sizes by `Dim`s."""
        filled = map_arg(argument, self._resolve_node)
        return self._resolve_sizes(filled)

    def _resolve_node(self, node: torch.fx.Node) -> Any:
        value = self.values.get(node, Unresolved())
        if isinstance(value, Unresolved) and value.problem and value.problem not in self.unsupported:
            self.unsupported.append(value.problem)
        return value

    def _resolve_sizes(self, argument: Any) -> Any:
        if isinstance(argument, torch.SymInt):
            return self.unbacked.size_or_scalar(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._resolve_sizes, argument))
        return {k: self._resolve_sizes(v) for k, v in argument.items()} if isinstance(argument, Mapping) else argument

    def _import_call(self, node: torch.fx.Node) -> Any:
        name, value = str(node.target), node.meta.get("val")
        if node.target is ASSERT_SCALAR:
            self.unbacked.record_assertion(_asserted_condition(node), str(node.args[1]))
        if name in DROPPED_OPERATORS or isinstance(value, torch.SymBool) or (value is None and not node.users):
            return None
        try:
            if name in ITEM_OPERATORS and isinstance(value, (torch.SymInt, torch.SymFloat)):
                return self._import_scalar(node, value)
            if isinstance(value, (int, torch.SymInt)):
                return self.unbacked.size_or_scalar(value)
            if isinstance(value, (float, torch.SymFloat)):
                return self.unbacked.float_or_scalar(value)
            if getattr(node.target, "__name__", "") == "getitem":
                return self._import_getitem(node)
            if name == "with_effects":
                return self._import_effect(node)
            if name in ATTENTION_OPERATORS:
                given = self._resolve(node.args)
                return (
                    Unresolved()
                    if _contains(Unresolved, given)
                    else ATTENTION_OPERATORS[name](self._import_vmapped, *given)
                )
            if name in CONTROL_FLOW_OPERATORS:
                return CONTROL_FLOW_OPERATORS[name](
                    self._import_subgraphs, *self._resolve(node.args), **self._resolve(node.kwargs)
                )
            if name not in conversions() or _is_complex(node):
                return self._import_opaque(node)
            return self._convert(node, name)
        except (ConversionError, TypeRuleError) as problem:
            return self._fall_back_or_report(node, str(problem))

    def _import_scalar(self, node: torch.fx.Node, value: torch.SymInt | torch.SymFloat) -> Any:
        (x,) = self._resolve(node.args)
        return x if isinstance(x, Unresolved) else self.unbacked.define_item(x, value)

    def _import_getitem(self, node: torch.fx.Node) -> Any:
        results, index = self._resolve(node.args)
        if isinstance(results, Unresolved):
            return results
        if results[index] is None:
            raise ConversionError(f"result {index} of {node.args[0]} is not computed")
        return results[index]

    def _import_subgraphs(
        self,
        modules: Sequence[torch.fx.GraphModule],
        arguments: Sequence[Any],
        scanned: Collection[int] = (),
        invariant: Collection[int] = (),
    ) -> tuple[list[Graph], tuple[Node, ...]]:
        """Graphs of `modules`, see `control_flow.Inner`; what tells a size that only numbers among the arguments name is an input too."""
        if _contains(Unresolved, tuple(arguments)):
            raise ConversionError("an argument could not be imported")
        types = {
            k: a.type.with_shape(a.shape[1:]) if k in scanned else a.type
            for k, a in enumerate(arguments)
            if isinstance(a, Node) and not (k in invariant and a.op is CONSTANT)
        }
        taken = [arguments[k] for k in types]
        named = symbol_names(tuple(a for a in arguments if not isinstance(a, Node)))
        bound_dims = {d for t in types.values() for d in t.shape}
        for name in sorted(n for n in named if var(n) not in bound_dims):
            known = (v for v in self.values.values() if isinstance(v, Node) and isinstance(v.result_type, TensorType))
            taken += [v for v in known if var(name) in v.shape][:1]
        graphs = []
        for module in modules:
            places = module.graph.find_nodes(op="placeholder")
            inputs = {places[k]: input_node(places[k].name, t) for k, t in types.items()}
            carriers = tuple(input_node(f"size{k}", n.type) for k, n in enumerate(taken[len(inputs) :]))
            importer = Importer(self.fallback)
            given = dict(zip(places, arguments, strict=True)) | inputs
            made = importer.import_graph(module.graph, given, module_constants(module))
            outputs = made if isinstance(made, tuple) else (made,)
            if not all(isinstance(o, Node) for o in outputs) or importer.unbacked.required_definers(outputs):
                raise ConversionError(
                    "a graph inside it gives what is no tensor, or has a size that nothing in it tells"
                )
            self.unbacked.bounds.update(importer.unbacked.bounds)
            graphs.append(Graph((*inputs.values(), *carriers), tuple(outputs), "inner"))
        return graphs, tuple(taken)

    def _import_vmapped(self, module: torch.fx.GraphModule, scalars: Sequence[Node], captured: Sequence[Any]) -> Any:
        """What a graph of single numbers gives for all places, see `flex_attention.PerPlace`."""
        held, importer = module_constants(module), Importer(vmapped=True)
        given = (*scalars, *map(broadcast_scalar, captured))
        places = module.graph.find_nodes(op="placeholder")
        try:
            return importer.import_graph(
                module.graph, dict(zip(places, given, strict=True)), lambda name: broadcast_scalar(held(name))
            )
        except UnsupportedOpError as error:
            raise ConversionError(
                "; ".join(f"of each score {u.target}: {u.reason}" for u in error.unsupported_ops)
            ) from error

    def _convert(self, node: torch.fx.Node, name: str) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if _contains(Unresolved, (args, tuple(kwargs.values()))):
            return Unresolved()
        if not accepts_signed_indices(name):
            _reject_signed_scalars(node.target, args)
        with default_loc(source_of(node)):
            kept = {k: v for k, v in kwargs.items() if k not in PLACEMENT_ARGUMENTS}
            if name in STRIDED_OPERATORS:
                kept["order"] = _memory_order(node.all_input_nodes[0].meta["val"])
            if needs_result_shape(name):
                kept["shape"] = self.unbacked.result_type(node.meta["val"]).shape
            result = conversions()[name](*args, **kept)
            if self.vmapped:
                return vmapped_result(node, (args, tuple(kwargs.values())), result)
        _check_result_type(node, result)
        self.unbacked.record_definitions(node.meta.get("val"), result)
        return result

    def _import_opaque(self, node: torch.fx.Node) -> Any:
        """A call into PyTorch for what is declared to be one; Refusal for anything else."""
        overload, results = node.target, _result_tensors(node.meta.get("val"))
        if str(overload) in FUNCTIONALIZED_OPERATORS:
            raise ConversionError(f"{node.args[0]} has no conversion")
        if not isinstance(overload, torch._ops.OpOverload):
            raise ConversionError("is no plain operator")
        if results and (_is_complex(node) or opaque_reason(overload) or has_data_dependent_shape(overload)):
            return self._eager_call(node, results)
        raise ConversionError(
            "what Python sees of it depends on data" if has_data_dependent_shape(overload) else "has no conversion"
        )

    def _fall_back_or_report(self, node: torch.fx.Node, reason: str) -> Any:
        """Run `node` in PyTorch where that is asked for and possible; else note it as unsupported."""
        problem = UnsupportedOp(str(node.target), reason, source_of(node))
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat)):
            return Unresolved(problem)
        results = _result_tensors(node.meta.get("val"))
        plain = isinstance(node.target, torch._ops.OpOverload) or str(node.target) in FUNCTIONALIZED_OPERATORS
        if self.fallback == "eager" and results and plain:
            try:
                call = self._eager_call(node, results)
            except ConversionError as deeper:
                problem = UnsupportedOp(problem.target, f"{reason}; and {deeper}", problem.loc)
            else:
                self.eager_calls.append(problem)
                return call
        self.unsupported.append(problem)
        return Unresolved()

    def _eager_call(self, node: torch.fx.Node, results: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if _contains(Unresolved, (args, tuple(kwargs.values()))):
            return Unresolved()
        operands, named = _eager_call_args(node.target, args, kwargs)
        draws = isinstance(node.target, torch._ops.OpOverload) and opaque_reason(node.target) == RANDOM_REASON
        operands += self.random_token if draws else []
        types = [self.unbacked.result_type(r) for r in results]
        dtypes, shapes = tuple(t.dtype for t in types), tuple(t.shape for t in types)
        call = ops.eager(*operands, **named, dtypes=dtypes, shapes=shapes, loc=source_of(node))
        found = ops.result_nodes(call)
        if draws:
            self.random_token[:] = found[:1]
        self.unbacked.record_definitions(tuple(results), found)
        if isinstance(node.meta["val"], torch.Tensor):
            return call
        made = iter(found)
        return tuple(v if v is None else next(made) for v in node.meta["val"])

    def _import_effect(self, node: torch.fx.Node) -> Any:
        """The token of an operator without results; it comes after those whose token it takes."""
        token, target, *args = self._resolve(node.args)
        if _result_tensors(node.meta["val"][1:]):
            raise ConversionError(f"{target} has both effects and results")
        operands, named = _eager_call_args(target, tuple(args), self._resolve(node.kwargs))
        before = [token] if isinstance(token, Node) else []
        return (ops.effect(*operands, *before, **named, loc=source_of(node)),)


def _asserted_condition(node: torch.fx.Node) -> Any:
    """What an `ASSERTION` says of sizes, as sympy has it; None where it says nothing of them."""
    value = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
    return value.node.expr if isinstance(value, torch.SymBool) else None


def _reject_signed_scalars(overload: Any, args: Sequence[Any]) -> None:
    """Refusal where a number that may be negative stands for a size or an index."""
    for given, parameter in zip(args, overload._schema.arguments, strict=False):
        if "int" in str(parameter.type) and _contains(SymbolicScalar, (given,)):
            raise ConversionError(
                f"{parameter.name} is a number that may be negative; say torch._check(... >= 0) before it"
            )


def _eager_call_args(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Node], dict[str, Any]]:
    """A call as an opaque op holds it: the tensors among the arguments, and the rest as attributes."""
    operands: list[Node] = []
    template = _argument_template(args, operands)
    names = tuple((k, _argument_template(v, operands)) for k, v in kwargs.items())
    return operands, {"overload": _operator_name(target), "args": template, "kwargs": names}


def _operator_name(target: Any) -> str:
    """Where `torch.ops` has an operator."""
    return f"higher_order.{target}" if isinstance(target, torch._ops.HigherOrderOperator) else str(target)


def _memory_order(t: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a (fake) tensor that has its memory for itself, in the order in which they lie there; Refusal for others."""
    order, steps = tuple(range(t.ndim)), t.stride()
    if all(isinstance(s, int) for s in steps):
        order = tuple(sorted(order, key=lambda d: (-steps[d], t.shape[d] != 1)))
    if t.storage_offset() != 0 or not t.permute(order).is_contiguous():
        raise ConversionError(
            "it names places in memory that has gaps or other elements; use reshape, permute, expand or slicing"
        )
    return order


def _is_complex(node: torch.fx.Node) -> bool:
    """Whether `node` reads or makes complex numbers."""
    made = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(t, torch.Tensor) and t.is_complex() for value in made for t in tree_leaves(value))


def _contains(kind: type, argument: Any) -> bool:
    return any(_contains(kind, a) for a in argument) if isinstance(argument, tuple) else isinstance(argument, kind)


def _result_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that make up the value of a node, None left out; none where something else is among them."""
    found = [v for v in value if v is not None] if isinstance(value, (list, tuple)) else [value]
    return found if all(isinstance(t, torch.Tensor) for t in found) else []


def _argument_template(argument: Any, operands: list[Node]) -> Any:
    """`argument` as attributes hold it (see `ops.eager`); tensors are appended to `operands`."""
    if isinstance(argument, Node):
        operands.append(argument)
        return f"%{len(operands) - 1}"
    if isinstance(argument, SymbolicScalar):
        operands.append(argument.node)
        return f"#{len(operands) - 1}"
    if isinstance(argument, tuple):
        return tuple(_argument_template(a, operands) for a in argument)
    if isinstance(argument, torch.device):
        return f"device:{argument}"
    if isinstance(argument, torch._ops.OpOverload):
        return f"operator:{argument}"
    if isinstance(argument, str):
        return f"text:{argument}"
    return str(argument) if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)) else argument


def _check_result_type(node: torch.fx.Node, result: Any) -> None:
    """A conversion must give the dtypes and sizes that PyTorch found."""
    expected: Any = node.meta.get("val")
    pairs = zip(expected, result, strict=False) if isinstance(result, tuple) else [(expected, result)]
    for theirs, ours in pairs:
        if ours is None or not isinstance(theirs, torch.Tensor):
            continue
        wanted = tensor_type(theirs)
        clash = any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(wanted.shape, ours.shape, strict=False)
        )
        if wanted.dtype != ours.dtype or wanted.rank != ours.type.rank or clash:
            raise TilewrightError(
                f"{node.target} was converted to {ours.type}, but PyTorch makes it {wanted} (a bug; please report)"
            )
