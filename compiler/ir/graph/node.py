"""Ops and nodes: what an op declares, and one use of it in a graph."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from compiler.errors import Loc, TypeRuleError
from compiler.ir import location
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.structure import Leaf, Structure
from compiler.ir.scalar import Number
from compiler.ir.symbolic.index_expr import IndexExpr
from compiler.ir.types import DTYPES, DType, TensorType, boolean, f32, is_valid_extent

REQUIRED: Any = object()
"""Default of an attribute that must be given."""


OPERAND_KINDS: Mapping[str, Callable[[DType], bool]] = {
    "any": lambda d: d.kind != "complex",
    "every": lambda d: True,
    "float": lambda d: d.is_float,
    "number": lambda d: d.is_float or d.is_integer,
    "integer": lambda d: d.is_integer,
    "bits": lambda d: d.is_integer or d.kind == "bool",
    "bool": lambda d: d.kind == "bool",
    "tuple": lambda d: False,  # a node with several results
}


@dataclass(frozen=True)
class OperandSpec:
    """A formal operand: its name and the dtypes it takes.

    Operands marked `free` (written with `!`, as in "indices!: integer") need not share the others' dtype; bool-only
    operands never do.  `optional` ones ("bias?: float") may be left out from the end; one `variadic` ("xs*: any") takes the rest.
    """

    name: str
    kind: str
    optional: bool = False
    variadic: bool = False
    independent_dtype: bool = False


@dataclass(frozen=True)
class Signature:
    """What a type rule sees: the operands' types and the attributes."""

    op: str
    types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]

    @property
    def dtype(self) -> DType:
        """dtype of the first operand that is not a bool choice."""
        return next((t.dtype for t in self.types if t.dtype != boolean), self.types[0].dtype)

    def error(self, why: str) -> TypeRuleError:
        """The error for operands that break a rule."""
        return TypeRuleError(f"{self.op}({', '.join(map(str, self.types))}): {why}")


TypeRule = Callable[[Signature], TensorType | tuple[TensorType, ...]]


@dataclass(frozen=True)
class SampleInput:
    """Operand types and attributes to try an op on; `low`/`high` bound the random operand values."""

    types: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = -4.0
    high: float = 4.0


@dataclass(frozen=True, eq=False)
class Op:
    """One declared op; compares by identity and builds nodes when called.

    `reference` takes and returns torch tensors (in any float dtype; tests run it in float64) and is written
    independently of `structure`, or comparing the two would prove nothing.
    """

    name: str
    operand_specs: tuple[OperandSpec, ...]
    structure: Structure
    type_rule: TypeRule
    attr_defaults: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    aten: tuple[str, ...] = ()
    samples: tuple[SampleInput, ...] = ()
    commutative: bool = False

    def __call__(self, *operands: Node | float, loc: Loc | None = None, **attrs: Any) -> Node:
        """Build a node; TypeRuleError where operands or attributes do not fit.  Of patterns, build a pattern."""
        pattern = next((o for o in operands if hasattr(o, "apply_op")), None)
        if pattern is not None:
            return pattern.apply_op(self, operands, attrs)  # type: ignore[no-any-return]
        single = [o for o in operands if isinstance(o, Node) and isinstance(o.result_type, TensorType)]
        typed = next((o for o in single if o.type.dtype != boolean), single[0] if single else None)
        nodes = tuple(
            o if isinstance(o, Node) else scalar_constant(o, typed.type.dtype if typed else None) for o in operands
        )
        full = self.bind_attrs(attrs)
        signature = Signature(self.name, tuple(n.result_type for n in nodes), full)  # type: ignore[misc]  # `check` rules tuples out
        self.check_operands(signature)
        loc = loc or location.current_loc() or next((n.loc for n in reversed(nodes) if n.loc), None)
        return Node(self, nodes, full, self.infer_type(signature), loc=loc)

    def bind_attrs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """`given` completed by the defaults, lists frozen to tuples."""
        unknown = sorted(set(given) - set(self.attr_defaults))
        missing = sorted(k for k, v in self.attr_defaults.items() if v is REQUIRED and k not in given)
        if unknown or missing:
            problem = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
            raise TypeRuleError(f"{self.name}: {problem} (attributes are {', '.join(self.attr_defaults) or 'none'})")
        full = {k: freeze(given.get(k, v)) for k, v in self.attr_defaults.items()}
        for k in given:
            if k in self.numeric_attrs and not isinstance(full[k], (numbers.Number, IndexExpr)):
                raise TypeRuleError(f"{self.name}: {k} is a number, not {full[k]!r}")
            if k in self.integer_attrs and not all(map(is_int_like, flatten_nested(full[k]))):
                raise TypeRuleError(f"{self.name}: {k} takes whole numbers, not {full[k]!r}")
        return full

    @cached_property
    def attr_examples(self) -> Mapping[str, tuple[Any, ...]]:
        """What is known of each attribute: its default, and what the samples give."""
        known = [self.attr_defaults, *(s.attrs for s in self.samples)]
        return {k: tuple(freeze(a[k]) for a in known if k in a and a[k] is not REQUIRED) for k in self.attr_defaults}

    @cached_property
    def numeric_attrs(self) -> frozenset[str]:
        """The attributes that are numbers in all examples."""
        return frozenset(
            k for k, found in self.attr_examples.items() if found and all(isinstance(v, numbers.Number) for v in found)
        )

    @cached_property
    def integer_attrs(self) -> frozenset[str]:
        """The attributes that are whole numbers, or lists of them, in all examples: sizes, places and dimensions."""
        parts = {k: list(flatten_nested(found)) for k, found in self.attr_examples.items()}
        return frozenset(k for k, values in parts.items() if values and all(map(is_int_like, values)))

    def infer_type(self, s: Signature) -> TensorType | tuple[TensorType, ...]:
        """What the type rule says; TypeRuleError also where it stumbles over attributes that make no sense."""
        try:
            found = self.type_rule(s)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise TypeRuleError(f"{self.name}: {why} (given {dict(s.attrs)})") from error
        for t in found if isinstance(found, tuple) else (found,):
            if wrong := [d for d in t.shape if not is_valid_extent(d)]:
                raise s.error(f"a dimension cannot have {wrong[0]} elements")
        return found

    def check_operands(self, s: Signature) -> None:
        """Count and dtypes of the operands; TypeRuleError where they do not fit."""
        if self.operand_specs and self.operand_specs[-1].variadic:
            formal = [
                *self.operand_specs[:-1],
                *[self.operand_specs[-1]] * (len(s.types) - len(self.operand_specs) + 1),
            ]
        else:
            formal = list(self.operand_specs[: len(s.types)])
        least = sum(not (o.optional or o.variadic) for o in self.operand_specs)
        if len(formal) != len(s.types) or len(s.types) < least:
            raise s.error(f"takes {least if least == len(self.operand_specs) else f'{least} or more'} operands")
        shared: DType | None = None
        for o, t in zip(formal, s.types, strict=True):
            if isinstance(t, tuple) != (o.kind == "tuple"):
                raise s.error(
                    f"operand {o.name} "
                    + (
                        "has several results; read one with item"
                        if isinstance(t, tuple)
                        else "must have several results"
                    )
                )
            if o.kind == "tuple":
                continue
            if not OPERAND_KINDS[o.kind](t.dtype):
                raise s.error(f"operand {o.name} must be {o.kind}, not {t.dtype}")
            if o.kind == "bool" or o.independent_dtype:
                continue
            if shared is not None and t.dtype != shared:
                raise s.error(f"operand {o.name} is {t.dtype} beside {shared}; insert a cast")
            shared = t.dtype

    def __repr__(self) -> str:
        return f"<op {self.name}>"


OPS: dict[str, Op] = {}
"""Every declared op by name; `import compiler.ir.ops` fills it."""


def freeze(value: Any) -> Any:
    """Lists and tuples as tuples, all the way down."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def flatten_nested(value: Any) -> Iterator[Any]:
    """What tuples within tuples hold."""
    if isinstance(value, tuple):
        for v in value:
            yield from flatten_nested(v)
    else:
        yield value


def is_int_like(value: Any) -> bool:
    """Whether a value is a whole number, known or not."""
    return isinstance(value, (int, IndexExpr))


def declare_leaf(name: str, attrs: Mapping[str, Any]) -> Op:
    """Declare an op without operands whose type is given when the node is made."""

    def no_rule(s: Signature) -> TensorType:
        raise s.error("is made with its type")

    declared = Op(name, (), Leaf(), no_rule, attrs)
    OPS[name] = declared
    return declared


INPUT = declare_leaf("input", {"name": None})


CONSTANT = declare_leaf("constant", {"value": None})


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the graph.  A node with several results has a tuple of types and is read through `item` nodes."""

    op: Op
    operands: tuple[Node, ...]
    attrs: Mapping[str, Any]
    result_type: TensorType | tuple[TensorType, ...]
    name: str = ""
    loc: Loc | None = None

    @property
    def type(self) -> TensorType:
        """The type of a single-result node."""
        assert isinstance(self.result_type, TensorType), f"{self.op.name} has several results; read them through item"
        return self.result_type

    @property
    def structure(self) -> Structure:
        return self.op.structure

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def with_operands(self, operands: tuple[Node, ...]) -> Node:
        """The same op on other operands, the type derived again; `self` where nothing changed."""
        if all(a is b for a, b in zip(self.operands, operands, strict=True)):
            return self
        built = self.op(*operands, loc=self.loc, **self.attrs)
        return replace(built, name=self.name)

    def with_name(self, name: str) -> Node:
        return replace(self, name=name)

    def with_loc(self, loc: Loc | None) -> Node:
        """The same node, said to come from `loc`."""
        return replace(self, loc=loc)

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.result_type} = {self.op.name}({', '.join('%' + (o.name or '?') for o in self.operands)})"


def input_node(name: str, type: TensorType, loc: Loc | None = None) -> Node:
    """A graph input."""
    return Node(INPUT, (), {"name": name}, type, name=name, loc=loc)


def constant_node(
    data: ConstantData | np.ndarray[Any, Any], dtype: DType | None = None, name: str = "", loc: Loc | None = None
) -> Node:
    """A constant tensor."""
    if not isinstance(data, ConstantData):
        array = np.asarray(data, order="C")
        known = dtype or next(d for d in DTYPES.values() if d.numpy == array.dtype)
        data = ConstantData(known, array, name)
    return Node(CONSTANT, (), {"value": data}, TensorType(data.dtype, data.shape), name=name or data.name, loc=loc)


def scalar_constant(value: Number, dtype: DType | None = None) -> Node:
    """A constant of rank 0."""
    d = dtype or f32
    return constant_node(ConstantData(d, to_storage(np.array(value), d)))


def scalar_value(node: Node) -> Number | None:
    """The Python number a constant holds in every element, if it holds only one element; else None."""
    if not isinstance(node.structure, Leaf) or "value" not in node.attrs:
        return None
    data: ConstantData = node.attrs["value"]
    if prod(data.shape) != 1:
        return None
    return data.numpy_values.item()  # type: ignore[no-any-return]
