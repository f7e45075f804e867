"""Import of an FX graph of functional ATen operators into Graph IR.

`conversions/` holds what one operator becomes, by family (`registry.converts`); this module walks the graph, resolves
arguments, and decides between a conversion, a subgraph and a call into PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch
from torch.fx.node import map_arg

from compiler.analysis.opaque_calls import opaque_operators
from compiler.errors import TypeRuleError, UnsupportedOp, UnsupportedOpError
from compiler.frontend.calling_convention import module_constants
from compiler.frontend.control_flow import CONTROL_FLOW_OPERATORS
from compiler.frontend.conversions.table import conversions
from compiler.frontend.decompositions import recurrent_decompositions, trace_decomposition
from compiler.frontend.eager_arguments import Permuted, as_number, eager_call_attrs
from compiler.frontend.flex_attention import ATTENTION_OPERATORS
from compiler.frontend.inferred_results import check_result_type, result_tensors, round_statistics
from compiler.frontend.memory_format import storage_order, visiting_order
from compiler.frontend.opaque_ops import (
    DYNAMIC_SHAPE_REASON,
    FUNCTIONALIZED_OPERATORS,
    QUANTIZED_TENSOR_OPERATORS,
    RANDOM_REASON,
    RNG_STATE_OPERATORS,
    fake_result,
    has_data_dependent_shape,
    opaque_dtype_reason,
    opaque_reason,
)
from compiler.frontend.promotion import SymbolicScalar
from compiler.frontend.registry import ConversionError, accepts_signed_indices, needs_result_shape
from compiler.frontend.scalar_vmap import broadcast_scalar, vmapped_result
from compiler.frontend.source_location import source_of
from compiler.frontend.unbacked_symbols import ITEM_OPERATORS, UnbackedSymbols
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, input_node
from compiler.ir.graph.partition import symbol_names
from compiler.ir.location import default_loc
from compiler.ir.symbolic.index_expr import var
from compiler.ir.torch_types import is_supported_dtype
from compiler.ir.types import TensorType

DROPPED_OPERATORS = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten._functional_assert_async.msg",
})  # fmt: skip
"""Assertions that types, Dynamo's guards and bounds checks already cover."""

ASSERT_SCALAR = torch.ops.aten._assert_scalar.default

PLACEMENT_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})
"""Arguments on device and memory layout, which the compiler decides itself."""

STRIDED_OPERATORS = frozenset(
    {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"}
)
"""Operators that address the storage of their first operand by strides and offset."""


@dataclass(frozen=True)
class Unresolved:
    """Placeholder for the value of a node that could not be imported.

    `problem` is reported at the first use: most numbers without a conversion only feed PyTorch's assertions.
    """

    problem: UnsupportedOp | None = None


@dataclass(frozen=True)
class Importer:
    """Import the nodes of one FX graph; `values` maps those done to a node, a tuple of nodes or a size.

    `fallback` is "eager" to run operators without a conversion in PyTorch (`eager_calls` lists those), "error" to refuse
    them, or "strict" to refuse all that would run there.
    `random_token` holds the result of the last random operator, an operand of the next: PyTorch draws in program order.
    A `vmapped` graph computes with scalars and is imported for all elements of a tensor at once.
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
        """Return the values of the graph's outputs.

        `inputs` maps placeholders to values, `lookup_constant` the name of a tensor attribute of the module to its node.
        Raises UnsupportedOpError naming every operator that has no conversion.
        """
        self.values.update(inputs)
        self.unbacked.add_inputs(
            symbol_names(tuple(v.result_type if isinstance(v, Node) else v for v in inputs.values()))
        )
        for node in graph.find_nodes(op="call_function", target=ASSERT_SCALAR):
            self.unbacked.record_equation(_asserted_condition(node))
        outputs = self._import_nodes(graph, lookup_constant)
        if self.fallback == "strict":
            # results of an operator with several are values of their own where something reads them
            nodes = (*(v for n, v in self.values.items() if n.users), *outputs, *self.random_token)
            opaque = opaque_operators((n for n in nodes if isinstance(n, Node)), expandable=False)
            self.unsupported.extend(UnsupportedOp(o.operator, f"runs in PyTorch: {o.reason}", o.loc) for o in opaque)
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported)
        if self.eager_calls:
            lines = [f"\n  {u.target}: {u.reason}" + (f" (at {u.loc})" if u.loc else "") for u in self.eager_calls]
            count = f"{len(lines)} operation(s) run in PyTorch inside the compiled program:"
            warnings.warn(count + "".join(lines), stacklevel=2)
        return outputs

    def _import_nodes(self, graph: torch.fx.Graph, lookup_constant: Callable[[str], Node]) -> Sequence[Any]:
        """Import a graph whose placeholders have values, and return its outputs."""
        outputs: Sequence[Any] = ()
        for node in graph.nodes:
            if node.op == "get_attr":
                attribute, name = getattr(graph.owning_module, str(node.target), None), str(node.target)
                self.values[node] = attribute if isinstance(attribute, torch.fx.GraphModule) else lookup_constant(name)
            elif node.op == "call_function":
                self.values[node] = self._import_call(node)
            elif node.op == "output":
                outputs = self._resolve(node.args[0])
        return outputs

    def _resolve(self, argument: Any) -> Any:
        """Replace FX nodes in `argument` by their values, and symbolic sizes by `Dim`s."""
        return self._resolve_sizes(map_arg(argument, self._resolve_node))

    def _resolve_node(self, node: torch.fx.Node) -> Any:
        value = self.values.get(node, Unresolved())
        if isinstance(value, Unresolved) and value.problem and value.problem not in self.unsupported:
            self.unsupported.append(value.problem)
        return value

    def _resolve_in_memory_order(self, node: torch.fx.Node) -> Any:
        """Return the value of `node`, permuted if it is a tensor whose elements eager PyTorch visits in another order."""
        value, theirs = self._resolve_node(node), node.meta.get("val")
        if not isinstance(value, Node) or not isinstance(theirs, torch.Tensor):
            return value
        order = visiting_order(theirs)
        return value if order == tuple(range(theirs.ndim)) else Permuted(ops.permute(value, dims=order), order)

    def _resolve_sizes(self, argument: Any) -> Any:
        if isinstance(argument, torch.SymInt):
            return self.unbacked.size_or_scalar(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._resolve_sizes, argument))
        return {k: self._resolve_sizes(v) for k, v in argument.items()} if isinstance(argument, Mapping) else argument

    def _import_call(self, node: torch.fx.Node) -> Any:
        name = str(node.target)
        if name in RNG_STATE_OPERATORS:
            node.meta.setdefault("val", fake_result(node))
        value = node.meta.get("val")
        if node.target is ASSERT_SCALAR:
            self.unbacked.record_assertion(_asserted_condition(node), str(node.args[1]))
        if name in DROPPED_OPERATORS or (value is None and not node.users):
            return None
        try:
            if isinstance(value, torch.SymBool):
                return self.unbacked.condition(value)
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
                args = self._resolve(node.args)
                unresolved = _contains(Unresolved, args)
                return Unresolved() if unresolved else ATTENTION_OPERATORS[name](self._import_vmapped, *args)
            if name == "invoke_subgraph":
                return self._import_inline(node)
            if name in CONTROL_FLOW_OPERATORS:
                args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
                return CONTROL_FLOW_OPERATORS[name](self._import_subgraphs, *args, **kwargs)
            if node.target in recurrent_decompositions():
                return self._import_decomposed(node)
            if name not in conversions() or opaque_dtype_reason(node):
                return self._import_opaque(node)
            return self._convert(node, name)
        except (ConversionError, TypeRuleError) as problem:
            return self._fall_back_or_report(node, str(problem))

    def _import_scalar(self, node: torch.fx.Node, value: torch.SymInt | torch.SymFloat) -> Any:
        (x,) = self._resolve(node.args)
        if isinstance(x, Unresolved):
            return x
        with default_loc(source_of(node)):
            return self.unbacked.define_item(as_number(x, value) if x.dtype.is_opaque else x, value)

    def _import_getitem(self, node: torch.fx.Node) -> Any:
        results, index = self._resolve(node.args)
        if isinstance(results, Unresolved):
            return results
        if results[index] is None and node.users:
            raise ConversionError(f"result {index} of {node.args[0]} is not computed")
        return results[index]

    def _import_subgraphs(
        self, modules: Sequence[torch.fx.GraphModule], arguments: Sequence[Any], scanned: Collection[int] = (),
        invariant: Collection[int] = (),
    ) -> tuple[list[Graph], tuple[Node, ...]]:  # fmt: skip
        """Import subgraphs, see `control_flow.SubgraphImporter`.

        A symbol that occurs only in number arguments gets a size carrier: any imported value with that dimension.
        """
        if _contains(Unresolved, tuple(arguments)):
            raise ConversionError("an argument could not be imported")
        types = {
            k: a.type.with_shape(a.shape[1:]) if k in scanned else a.type
            for k, a in enumerate(arguments)
            if isinstance(a, Node) and not (k in invariant and a.op is CONSTANT)
        }
        operands = [arguments[k] for k in types]
        symbols = symbol_names(tuple(a for a in arguments if not isinstance(a, Node)))
        bound_dims = {d for t in types.values() for d in t.shape}
        for name in sorted(n for n in symbols if var(n) not in bound_dims):
            tensors = (v for v in self.values.values() if isinstance(v, Node) and isinstance(v.result_type, TensorType))
            operands += [v for v in tensors if var(name) in v.shape][:1]
        graphs = []
        for module in modules:
            placeholders = module.graph.find_nodes(op="placeholder")
            inputs = {placeholders[k]: input_node(placeholders[k].name, t) for k, t in types.items()}
            carriers = tuple(input_node(f"size{k}", n.type) for k, n in enumerate(operands[len(inputs) :]))
            importer = Importer(self.fallback)
            values = dict(zip(placeholders, arguments, strict=True)) | inputs
            results = importer.import_graph(module.graph, values, module_constants(module))
            outputs = results if isinstance(results, tuple) else (results,)
            if not all(isinstance(o, Node) for o in outputs) or importer.unbacked.required_definers(outputs):
                raise ConversionError("a subgraph returns a non-tensor, or a size that nothing in it defines")
            self.unbacked.bounds.update(importer.unbacked.bounds)
            graphs.append(Graph((*inputs.values(), *carriers), tuple(outputs), "inner"))
        return graphs, tuple(operands)

    def _import_inline(self, node: torch.fx.Node) -> Any:
        """Import the body of a call of `torch.compiler.nested_compile_region` in place of the call."""
        module, _, *arguments = self._resolve(node.args)
        return self._import_body(module, arguments)

    def _import_decomposed(self, node: torch.fx.Node) -> Any:
        """Import the decomposition of a call in place of the call."""
        module, arguments = trace_decomposition(node, recurrent_decompositions()[node.target])
        return self._import_body(module, self._resolve(arguments))

    def _import_body(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
        """Import the nodes of a module as if they stood in place of its call."""
        inputs = dict(zip(module.graph.find_nodes(op="placeholder"), arguments, strict=True))
        return replace(self, values=inputs)._import_nodes(module.graph, module_constants(module))

    def _import_vmapped(self, module: torch.fx.GraphModule, scalars: Sequence[Node], captured: Sequence[Any]) -> Any:
        """Import a graph of scalars for all elements at once, see `flex_attention.ScalarVmap`."""
        constants, importer = module_constants(module), Importer(vmapped=True)
        arguments = (*scalars, *map(broadcast_scalar, captured))
        inputs = dict(zip(module.graph.find_nodes(op="placeholder"), arguments, strict=True))
        try:
            return importer.import_graph(module.graph, inputs, lambda name: broadcast_scalar(constants(name)))
        except UnsupportedOpError as error:
            problems = (f"in score_mod or mask_mod: {u.target}: {u.reason}" for u in error.unsupported_ops)
            raise ConversionError("; ".join(problems)) from error

    def _convert(self, node: torch.fx.Node, name: str) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if _contains(Unresolved, (args, tuple(kwargs.values()))):
            return Unresolved()
        if not accepts_signed_indices(name):
            _reject_signed_scalars(node.target, args)
        with default_loc(source_of(node)):
            options = {k: v for k, v in kwargs.items() if k not in PLACEMENT_ARGUMENTS}
            if name in STRIDED_OPERATORS:
                options["order"] = storage_order(node.all_input_nodes[0].meta["val"])
            if needs_result_shape(name):
                options["shape"] = self.unbacked.result_type(node.meta["val"]).shape
            conversion = conversions()[name]
            try:
                signature(conversion).bind(*args, **options)
            except TypeError:
                known = f"its arguments are not those that are known: {getattr(node.target, '_schema', name)}"
                raise ConversionError(known) from None
            result = round_statistics(node, conversion(*args, **options))
            if self.vmapped:
                return vmapped_result(node, (args, tuple(kwargs.values())), result)
        check_result_type(node, result)
        self.unbacked.record_definitions(node.meta.get("val"), result)
        return result

    def _import_opaque(self, node: torch.fx.Node) -> Any:
        """Import an operator that is declared opaque as an eager call; ConversionError for others."""
        overload, results = node.target, result_tensors(node.meta.get("val"))
        if str(overload) in FUNCTIONALIZED_OPERATORS:
            raise ConversionError(f"{node.args[0]} has no conversion")
        if not isinstance(overload, torch._ops.OpOverload) and not opaque_reason(overload):
            raise ConversionError("is not an OpOverload")
        data_dependent = has_data_dependent_shape(overload)
        reason = opaque_reason(overload) or opaque_dtype_reason(node) or DYNAMIC_SHAPE_REASON * data_dependent
        if results and reason:
            return self._eager_call(node, results, reason)
        raise ConversionError("its Python-visible result is data-dependent" if data_dependent else "has no conversion")

    def _fall_back_or_report(self, node: torch.fx.Node, reason: str) -> Any:
        """Import `node` as an eager call if `fallback` allows it and PyTorch can run it; else record it."""
        problem = UnsupportedOp(str(node.target), reason, source_of(node))
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return Unresolved(problem)
        results = result_tensors(node.meta.get("val"))
        can_call = isinstance(node.target, torch._ops.OpOverload) or str(node.target) in FUNCTIONALIZED_OPERATORS
        can_call = bool(results) and can_call and str(node.target) not in QUANTIZED_TENSOR_OPERATORS
        can_call = can_call and all(is_supported_dtype(r.dtype) for r in results)
        if self.fallback == "eager" and can_call:
            try:
                call = self._eager_call(node, results, reason)
            except (ConversionError, TypeRuleError) as error:
                problem = UnsupportedOp(problem.target, f"{reason}; and {error}", problem.loc)
            else:
                self.eager_calls.append(problem)
                return call
        self.unsupported.append(replace(problem, can_fall_back=can_call and self.fallback != "eager"))
        return Unresolved()

    def _eager_call(self, node: torch.fx.Node, results: Sequence[torch.Tensor], reason: str) -> Any:
        is_random = opaque_reason(node.target) == RANDOM_REASON
        resolve = self._resolve_in_memory_order if is_random else self._resolve_node
        args, kwargs = (self._resolve_sizes(map_arg(a, resolve)) for a in (node.args, node.kwargs))
        if _contains(Unresolved, (args, tuple(kwargs.values()))):
            return Unresolved()
        operands, attrs = eager_call_attrs(node.target, args, kwargs)
        operands += self.random_token if is_random else []
        types = [self.unbacked.result_type(r) for r in results]
        dtypes, shapes = tuple(t.dtype for t in types), tuple(t.shape for t in types)
        types_of_results = {"dtypes": dtypes, "shapes": shapes}
        call = ops.eager(*operands, **attrs, **types_of_results, reason=reason, loc=source_of(node))
        nodes = ops.result_nodes(call)
        if is_random:
            self.random_token[:] = nodes[:1]
        self.unbacked.record_definitions(tuple(results), nodes)
        if isinstance(node.meta["val"], torch.Tensor):
            return call
        remaining = iter(nodes)
        return tuple(v if v is None else next(remaining) for v in node.meta["val"])

    def _import_effect(self, node: torch.fx.Node) -> Any:
        """Import an operator without results; return its effect token, which orders it after the token it takes."""
        token, target, *args = self._resolve(node.args)
        if result_tensors(node.meta["val"][1:]):
            raise ConversionError(f"{target} has both effects and results")
        operands, attrs = eager_call_attrs(target, tuple(args), self._resolve(node.kwargs))
        operands += [token] if isinstance(token, Node) else []
        return (ops.effect(*operands, **attrs, loc=source_of(node)),)


def _asserted_condition(node: torch.fx.Node) -> Any:
    """Return the sympy condition on sizes of an `ASSERT_SCALAR` node, or None if it has none."""
    value = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
    return value.node.expr if isinstance(value, torch.SymBool) else None


def _reject_signed_scalars(overload: Any, args: Sequence[Any]) -> None:
    """Raise ConversionError if a data-dependent number that may be negative is used as a size or an index."""
    for argument, parameter in zip(args, overload._schema.arguments, strict=False):
        if "int" in str(parameter.type) and _contains(SymbolicScalar, (argument,)):
            problem = f"{parameter.name} is a data-dependent value that may be negative"
            raise ConversionError(f"{problem}; add torch._check(... >= 0) before it")


def _contains(kind: type, argument: Any) -> bool:
    return any(_contains(kind, a) for a in argument) if isinstance(argument, tuple) else isinstance(argument, kind)
