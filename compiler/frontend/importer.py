"""An FX graph of functional ATen operators, as Graph IR."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from compiler.errors import TilewrightError, TypeRuleError, Unsupported, UnsupportedOpError
from compiler.frontend.calls import RANDOM, reason_to_call, sized_by_data
from compiler.frontend.control_flow import CONTROL
from compiler.frontend.flex_attention import ATTENTION
from compiler.frontend.per_place import for_all_places, spread
from compiler.frontend.promotion import Scalar
from compiler.frontend.registry import Refusal, conversions, is_shaped, is_signed
from compiler.frontend.results import tensors_of
from compiler.frontend.source import source_of
from compiler.frontend.told import ITEMS, Told, tensor_type
from compiler.ir import ops
from compiler.ir.graph import CONSTANT, Graph, Node, input_node
from compiler.ir.index import var
from compiler.ir.location import building_for
from compiler.ir.partition import names_in
from compiler.ir.types import TensorType

DROPPED = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten._functional_assert_async.msg",
})  # fmt: skip
"""Checks of what types, guards and look-ups check already."""

ASSERTION = torch.ops.aten._assert_scalar.default

PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})
"""Arguments about where a tensor lies, which is ours to decide."""

ADDRESSING = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"})
"""Operators that name places in the memory of their first operand."""


FUNCTIONALIZED = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""What calls an operator that writes to its arguments on copies of them, and gives the copies back."""


@dataclass(frozen=True)
class Missing:
    """Stands for the value of a node that could not be imported.

    A number without a form is a `problem` only where it is used: most are made for what PyTorch asserts.
    """

    problem: Unsupported | None = None


@dataclass(frozen=True)
class Importer:
    """Imports the nodes of one FX graph; `values` maps those done to a node, a tuple of nodes or a size.

    What draws random numbers takes those `drawn` before it as an operand: PyTorch draws in the order of the program.
    `per_place` graphs compute with single numbers, and are imported for all places of a tensor.
    """

    fallback: str = "error"
    per_place: bool = False
    values: dict[torch.fx.Node, Any] = field(default_factory=dict)
    unsupported: list[Unsupported] = field(default_factory=list)
    eager: list[Unsupported] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    drawn: list[Node] = field(default_factory=list)

    def run(
        self, graph: torch.fx.Graph, inputs: Mapping[torch.fx.Node, Any], attribute: Callable[[str], Node]
    ) -> Sequence[Any]:
        """The values of the graph's outputs.

        `inputs` gives the placeholders' values, `attribute` the node of a tensor held by the module.
        Raises UnsupportedOpError naming every operator that has no conversion.
        """
        self.values.update(inputs)
        self.told.take(names_in(tuple(v.result if isinstance(v, Node) else v for v in inputs.values())))
        for node in graph.find_nodes(op="call_function", target=ASSERTION):
            self.told.equate(_asserted(node))
        outputs: Sequence[Any] = ()
        for node in graph.nodes:
            if node.op == "get_attr":
                held = getattr(graph.owning_module, str(node.target), None)
                self.values[node] = held if isinstance(held, torch.fx.GraphModule) else attribute(str(node.target))
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                outputs = self._resolve(node.args[0])
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported)
        if self.eager:
            lines = "".join(f"\n  {u.target}: {u.reason}" + (f" (at {u.loc})" if u.loc else "") for u in self.eager)
            warnings.warn(
                f"{len(self.eager)} operation(s) run in PyTorch inside the compiled program:{lines}", stacklevel=2
            )
        return outputs

    def _resolve(self, argument: Any) -> Any:
        """`argument` with FX nodes replaced by their values and symbolic sizes by `Dim`s."""
        filled = map_arg(argument, self._value)
        return self._sizes(filled)

    def _value(self, node: torch.fx.Node) -> Any:
        value = self.values.get(node, Missing())
        if isinstance(value, Missing) and value.problem and value.problem not in self.unsupported:
            self.unsupported.append(value.problem)
        return value

    def _sizes(self, argument: Any) -> Any:
        if isinstance(argument, torch.SymInt):
            return self.told.size(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._sizes, argument))
        return {k: self._sizes(v) for k, v in argument.items()} if isinstance(argument, Mapping) else argument

    def _call(self, node: torch.fx.Node) -> Any:
        name, value = str(node.target), node.meta.get("val")
        if node.target is ASSERTION:
            self.told.asserts(_asserted(node), str(node.args[1]))
        if name in DROPPED or isinstance(value, torch.SymBool) or (value is None and not node.users):
            return None
        try:
            if name in ITEMS and isinstance(value, (torch.SymInt, torch.SymFloat)):
                return self._number(node, value)
            if isinstance(value, (int, torch.SymInt)):
                return self.told.size(value)
            if isinstance(value, (float, torch.SymFloat)):
                return self.told.number(value)
            if getattr(node.target, "__name__", "") == "getitem":
                return self._item(node)
            if name == "with_effects":
                return self._effect(node)
            if name in ATTENTION:
                given = self._resolve(node.args)
                return Missing() if _contains(Missing, given) else ATTENTION[name](self._per_place, *given)
            if name in CONTROL:
                return CONTROL[name](self._inner, *self._resolve(node.args), **self._resolve(node.kwargs))
            if name not in conversions() or _is_complex(node):
                return self._call_in_pytorch(node)
            return self._convert(node, name)
        except (Refusal, TypeRuleError) as problem:
            return self._refuse(node, str(problem))

    def _number(self, node: torch.fx.Node, value: torch.SymInt | torch.SymFloat) -> Any:
        (x,) = self._resolve(node.args)
        return x if isinstance(x, Missing) else self.told.item(x, value)

    def _item(self, node: torch.fx.Node) -> Any:
        results, index = self._resolve(node.args)
        if isinstance(results, Missing):
            return results
        if results[index] is None:
            raise Refusal(f"result {index} of {node.args[0]} is not computed")
        return results[index]

    def _inner(
        self,
        modules: Sequence[torch.fx.GraphModule],
        arguments: Sequence[Any],
        entries: Collection[int] = (),
        fixed: Collection[int] = (),
    ) -> tuple[list[Graph], tuple[Node, ...]]:
        """Graphs of `modules`, see `control_flow.Inner`; what tells a size that only numbers among the arguments name is an input too."""
        if _contains(Missing, tuple(arguments)):
            raise Refusal("an argument could not be imported")
        types = {
            k: a.type.with_shape(a.shape[1:]) if k in entries else a.type
            for k, a in enumerate(arguments)
            if isinstance(a, Node) and not (k in fixed and a.op is CONSTANT)
        }
        taken = [arguments[k] for k in types]
        named = names_in(tuple(a for a in arguments if not isinstance(a, Node)))
        told = {d for t in types.values() for d in t.shape}
        for name in sorted(n for n in named if var(n) not in told):
            known = (v for v in self.values.values() if isinstance(v, Node) and isinstance(v.result, TensorType))
            taken += [v for v in known if var(name) in v.shape][:1]
        graphs = []
        for module in modules:
            places = module.graph.find_nodes(op="placeholder")
            inputs = {places[k]: input_node(places[k].name, t) for k, t in types.items()}
            carriers = tuple(input_node(f"size{k}", n.type) for k, n in enumerate(taken[len(inputs) :]))
            importer = Importer(self.fallback)
            given = dict(zip(places, arguments, strict=True)) | inputs
            made = importer.run(module.graph, given, tensors_of(module))
            outputs = made if isinstance(made, tuple) else (made,)
            if not all(isinstance(o, Node) for o in outputs) or importer.told.telling(outputs):
                raise Refusal("a graph inside it gives what is no tensor, or has a size that nothing in it tells")
            self.told.bounds.update(importer.told.bounds)
            graphs.append(Graph((*inputs.values(), *carriers), tuple(outputs), "inner"))
        return graphs, tuple(taken)

    def _per_place(self, module: torch.fx.GraphModule, numbers: Sequence[Node], others: Sequence[Any]) -> Any:
        """What a graph of single numbers gives for all places, see `flex_attention.PerPlace`."""
        held, importer = tensors_of(module), Importer(per_place=True)
        given = (*numbers, *map(spread, others))
        places = module.graph.find_nodes(op="placeholder")
        try:
            return importer.run(module.graph, dict(zip(places, given, strict=True)), lambda name: spread(held(name)))
        except UnsupportedOpError as error:
            raise Refusal("; ".join(f"of each score {u.target}: {u.reason}" for u in error.items)) from error

    def _convert(self, node: torch.fx.Node, name: str) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if _contains(Missing, (args, tuple(kwargs.values()))):
            return Missing()
        if not is_signed(name):
            _require_sizes(node.target, args)
        with building_for(source_of(node)):
            kept = {k: v for k, v in kwargs.items() if k not in PLACEMENT}
            if name in ADDRESSING:
                kept["order"] = _memory_order(node.all_input_nodes[0].meta["val"])
            if is_shaped(name):
                kept["shape"] = self.told.type(node.meta["val"]).shape
            result = conversions()[name](*args, **kept)
            if self.per_place:
                return for_all_places(node, (args, tuple(kwargs.values())), result)
        _check(node, result)
        self.told.learn(node.meta.get("val"), result)
        return result

    def _call_in_pytorch(self, node: torch.fx.Node) -> Any:
        """A call into PyTorch for what is declared to be one; Refusal for anything else."""
        overload, results = node.target, _tensors(node.meta.get("val"))
        if str(overload) in FUNCTIONALIZED:
            raise Refusal(f"{node.args[0]} has no conversion")
        if not isinstance(overload, torch._ops.OpOverload):
            raise Refusal("is no plain operator")
        if results and (_is_complex(node) or reason_to_call(overload) or sized_by_data(overload)):
            return self._eager_call(node, results)
        raise Refusal("what Python sees of it depends on data" if sized_by_data(overload) else "has no conversion")

    def _refuse(self, node: torch.fx.Node, reason: str) -> Any:
        """Run `node` in PyTorch where that is asked for and possible; else note it as unsupported."""
        problem = Unsupported(str(node.target), reason, source_of(node))
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat)):
            return Missing(problem)
        results = _tensors(node.meta.get("val"))
        plain = isinstance(node.target, torch._ops.OpOverload) or str(node.target) in FUNCTIONALIZED
        if self.fallback == "eager" and results and plain:
            try:
                call = self._eager_call(node, results)
            except Refusal as deeper:
                problem = Unsupported(problem.target, f"{reason}; and {deeper}", problem.loc)
            else:
                self.eager.append(problem)
                return call
        self.unsupported.append(problem)
        return Missing()

    def _eager_call(self, node: torch.fx.Node, results: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if _contains(Missing, (args, tuple(kwargs.values()))):
            return Missing()
        operands, named = _call_of(node.target, args, kwargs)
        draws = isinstance(node.target, torch._ops.OpOverload) and reason_to_call(node.target) == RANDOM
        operands += self.drawn if draws else []
        types = [self.told.type(r) for r in results]
        dtypes, shapes = tuple(t.dtype for t in types), tuple(t.shape for t in types)
        call = ops.eager(*operands, **named, dtypes=dtypes, shapes=shapes, loc=source_of(node))
        found = ops.results(call)
        if draws:
            self.drawn[:] = found[:1]
        self.told.learn(tuple(results), found)
        if isinstance(node.meta["val"], torch.Tensor):
            return call
        made = iter(found)
        return tuple(v if v is None else next(made) for v in node.meta["val"])

    def _effect(self, node: torch.fx.Node) -> Any:
        """The token of an operator without results; it comes after those whose token it takes."""
        token, target, *args = self._resolve(node.args)
        if _tensors(node.meta["val"][1:]):
            raise Refusal(f"{target} has both effects and results")
        operands, named = _call_of(target, tuple(args), self._resolve(node.kwargs))
        before = [token] if isinstance(token, Node) else []
        return (ops.effect(*operands, *before, **named, loc=source_of(node)),)


def _asserted(node: torch.fx.Node) -> Any:
    """What an `ASSERTION` says of sizes, as sympy has it; None where it says nothing of them."""
    value = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
    return value.node.expr if isinstance(value, torch.SymBool) else None


def _require_sizes(overload: Any, args: Sequence[Any]) -> None:
    """Refusal where a number that may be negative stands for a size or an index."""
    for given, parameter in zip(args, overload._schema.arguments, strict=False):
        if "int" in str(parameter.type) and _contains(Scalar, (given,)):
            raise Refusal(f"{parameter.name} is a number that may be negative; say torch._check(... >= 0) before it")


def _call_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Node], dict[str, Any]]:
    """A call as an opaque op holds it: the tensors among the arguments, and the rest as attributes."""
    operands: list[Node] = []
    template = _template(args, operands)
    names = tuple((k, _template(v, operands)) for k, v in kwargs.items())
    return operands, {"overload": _name(target), "args": template, "kwargs": names}


def _name(target: Any) -> str:
    """Where `torch.ops` has an operator."""
    return f"higher_order.{target}" if isinstance(target, torch._ops.HigherOrderOperator) else str(target)


def _memory_order(t: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a (fake) tensor that has its memory for itself, in the order in which they lie there; Refusal for others."""
    order, steps = tuple(range(t.ndim)), t.stride()
    if all(isinstance(s, int) for s in steps):
        order = tuple(sorted(order, key=lambda d: (-steps[d], t.shape[d] != 1)))
    if t.storage_offset() != 0 or not t.permute(order).is_contiguous():
        raise Refusal(
            "it names places in memory that has gaps or other elements; use reshape, permute, expand or slicing"
        )
    return order


def _is_complex(node: torch.fx.Node) -> bool:
    """Whether `node` reads or makes complex numbers."""
    made = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(t, torch.Tensor) and t.is_complex() for value in made for t in tree_leaves(value))


def _contains(kind: type, argument: Any) -> bool:
    return any(_contains(kind, a) for a in argument) if isinstance(argument, tuple) else isinstance(argument, kind)


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that make up the value of a node, None left out; none where something else is among them."""
    found = [v for v in value if v is not None] if isinstance(value, (list, tuple)) else [value]
    return found if all(isinstance(t, torch.Tensor) for t in found) else []


def _template(argument: Any, operands: list[Node]) -> Any:
    """`argument` as attributes hold it (see `ops.eager`); tensors are appended to `operands`."""
    if isinstance(argument, Node):
        operands.append(argument)
        return f"%{len(operands) - 1}"
    if isinstance(argument, Scalar):
        operands.append(argument.node)
        return f"#{len(operands) - 1}"
    if isinstance(argument, tuple):
        return tuple(_template(a, operands) for a in argument)
    if isinstance(argument, torch.device):
        return f"device:{argument}"
    if isinstance(argument, torch._ops.OpOverload):
        return f"operator:{argument}"
    if isinstance(argument, str):
        return f"text:{argument}"
    return str(argument) if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)) else argument


def _check(node: torch.fx.Node, result: Any) -> None:
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
