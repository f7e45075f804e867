"""Ops and nodes: the declaration of an op, and one use of it in a graph."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np

from compiler.errors import Loc, TypeRuleError
from compiler.ir import location
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.structure import Leaf, Structure
from compiler.ir.scalar import Number
from compiler.ir.symbolic.index_expr import IndexExpr
from compiler.ir.types import DTYPES, DType, ResultType, TensorType, boolean, f32, is_valid_extent

OPERAND_KINDS: Mapping[str, Callable[[DType], bool]] = {
    "any": lambda d: not d.is_opaque,
    "every": lambda d: True,
    "ordered": lambda d: d.kind == "bool" or d.is_integer or (d.is_float and d.bits >= 16),  # PyTorch sorts no float8
    "float": lambda d: d.is_float,
    "number": lambda d: d.is_float or d.is_integer,
    "integer": lambda d: d.is_integer,
    "bits": lambda d: d.is_integer or d.kind == "bool",
    "bool": lambda d: d.kind == "bool",
    "tuple": lambda d: False,  # a node with several results
}
"""Test for the dtypes that an operand accepts, by its kind."""


@dataclass(frozen=True)
class OperandSpec:
    """A formal operand: its name and its kind, a key of `OPERAND_KINDS`.

    `optional` operands ("bias?: float") may be omitted from the end.  A `variadic` one ("xs*: any") takes all remaining
    operands.  Operands share one dtype, except bool ones and those with `independent_dtype` ("indices!: integer").
    """

    name: str
    kind: str
    optional: bool = False
    variadic: bool = False
    independent_dtype: bool = False


@dataclass(frozen=True)
class Signature:
    """Input of a type rule: the operands' types and the attributes."""

    op: str
    types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]

    @property
    def dtype(self) -> DType:
        """dtype of the first operand that is not bool, or bool if all are."""
        return next((t.dtype for t in self.types if t.dtype != boolean), self.types[0].dtype)

    def error(self, why: str) -> TypeRuleError:
        """Return the error for operands that break a type rule."""
        return TypeRuleError(f"{self.op}({', '.join(map(str, self.types))}): {why}")


TypeRule: TypeAlias = Callable[[Signature], ResultType]
"""Function from a signature to the result type."""

REQUIRED: Any = object()
"""Default value of an attribute that must be given."""


@dataclass(frozen=True)
class SampleInput:
    """Operand types and attributes on which tests run an op; operand values are random in low..high."""

    types: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = -4.0
    high: float = 4.0


@dataclass(frozen=True, eq=False)
class Op:
    """One declared op; compares by identity and builds nodes when called.

    `reference` takes and returns torch tensors (in any float dtype; tests run it in float64).  It is written
    independently of `structure`, because tests compare the two.  `aten` names the ATen overloads it converts.
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
        """Build a node, or a pattern if an operand is a pattern.

        Python numbers become constants of the other operands' dtype.  Without `loc`, the node gets the default location
        or that of its last operand that has one.  TypeRuleError for operands or attributes that the op does not take.
        """
        pattern = next((o for o in operands if hasattr(o, "apply_op")), None)
        if pattern is not None:
            return pattern.apply_op(self, operands, attrs)  # type: ignore[no-any-return]
        single = [o for o in operands if isinstance(o, Node) and isinstance(o.result_type, TensorType)]
        typed = next((o for o in single if o.dtype != boolean), single[0] if single else None)
        dtype = typed.dtype if typed else None
        nodes = tuple(o if isinstance(o, Node) else scalar_constant(o, dtype) for o in operands)
        bound = self.bind_attrs(attrs)
        signature = Signature(self.name, tuple(n.result_type for n in nodes), bound)  # type: ignore[misc]  # `check_operands` rejects tuples
        self.check_operands(signature)
        loc = loc or location.current_loc() or next((n.loc for n in reversed(nodes) if n.loc), None)
        return Node(self, nodes, bound, self.infer_type(signature), loc=loc)

    def bind_attrs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `given` completed by the defaults, lists as tuples; TypeRuleError for an invalid attribute."""
        unknown = sorted(set(given) - set(self.attr_defaults))
        missing = sorted(k for k, v in self.attr_defaults.items() if v is REQUIRED and k not in given)
        if unknown or missing:
            problem = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
            raise TypeRuleError(f"{self.name}: {problem} (attributes are {', '.join(self.attr_defaults) or 'none'})")
        bound = {k: freeze(given.get(k, v)) for k, v in self.attr_defaults.items()}
        for k in given:
            if k in self.numeric_attrs and not isinstance(bound[k], (numbers.Number, IndexExpr)):
                raise TypeRuleError(f"{self.name}: {k} must be a number, got {bound[k]!r}")
            if k in self.integer_attrs and not all(map(is_int_like, flatten_nested(bound[k]))):
                raise TypeRuleError(f"{self.name}: {k} must be an integer or a list of integers, got {bound[k]!r}")
        return bound

    @cached_property
    def attr_examples(self) -> Mapping[str, tuple[Any, ...]]:
        """Values of each attribute in the defaults and the samples."""
        sets = [self.attr_defaults, *(s.attrs for s in self.samples)]
        return {k: tuple(freeze(a[k]) for a in sets if k in a and a[k] is not REQUIRED) for k in self.attr_defaults}

    @cached_property
    def numeric_attrs(self) -> frozenset[str]:
        """Names of the attributes that are numbers in all examples."""
        examples = self.attr_examples.items()
        return frozenset(k for k, values in examples if values and all(isinstance(v, numbers.Number) for v in values))

    @cached_property
    def integer_attrs(self) -> frozenset[str]:
        """Names of the attributes that are integers, or nested lists of them, in all examples."""
        examples = {k: list(flatten_nested(values)) for k, values in self.attr_examples.items()}
        return frozenset(k for k, values in examples.items() if values and all(map(is_int_like, values)))

    def infer_type(self, s: Signature) -> ResultType:
        """Apply the type rule; TypeRuleError if it rejects the signature or fails on meaningless attributes."""
        try:
            result = self.type_rule(s)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise TypeRuleError(f"{self.name}: {why} (attributes {dict(s.attrs)})") from error
        for t in result if isinstance(result, tuple) else (result,):
            if invalid := [d for d in t.shape if not is_valid_extent(d)]:
                raise s.error(f"invalid dimension extent {invalid[0]}")
        return result

    def check_operands(self, s: Signature) -> None:
        """Check number and dtypes of the operands; TypeRuleError if the op does not take them."""
        specs = self.operand_specs
        if specs and specs[-1].variadic:
            formal = [*specs[:-1], *[specs[-1]] * (len(s.types) - len(specs) + 1)]
        else:
            formal = list(specs[: len(s.types)])
        least = sum(not (o.optional or o.variadic) for o in specs)
        if len(formal) != len(s.types) or len(s.types) < least:
            raise s.error(f"takes {least if least == len(specs) else f'{least} or more'} operands")
        shared: DType | None = None
        for o, t in zip(formal, s.types, strict=True):
            if isinstance(t, tuple) != (o.kind == "tuple"):
                problem = (
                    "has several results; read one with tuple_get"
                    if isinstance(t, tuple)
                    else "must have several results"
                )
                raise s.error(f"operand {o.name} {problem}")
            if o.kind == "tuple":
                continue
            if not OPERAND_KINDS[o.kind](t.dtype):
                raise s.error(f"operand {o.name} must be {o.kind}, not {t.dtype}")
            if o.kind == "bool" or o.independent_dtype:
                continue
            if shared is not None and t.dtype != shared:
                raise s.error(f"operand {o.name} has dtype {t.dtype}, expected {shared}; insert a cast")
            shared = t.dtype

    def __repr__(self) -> str:
        return f"<op {self.name}>"


OPS: dict[str, Op] = {}
"""Every declared op by name; `import compiler.ir.ops` fills it."""


def declare_leaf(name: str, attrs: Mapping[str, Any]) -> Op:
    """Declare an op without operands or type rule; `input_node` and `constant_node` build its nodes."""

    def no_rule(s: Signature) -> TensorType:
        raise s.error(f"has no type rule; use {s.op}_node")

    OPS[name] = Op(name, (), Leaf(), no_rule, attrs)
    return OPS[name]


INPUT = declare_leaf("input", {"name": None})
CONSTANT = declare_leaf("constant", {"value": None})


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a graph.  A node with several results has a tuple of types; `tuple_get` nodes select one result."""

    op: Op
    operands: tuple[Node, ...]
    attrs: Mapping[str, Any]
    result_type: ResultType
    name: str = ""
    loc: Loc | None = None

    @property
    def type(self) -> TensorType:
        """Type of a single-result node."""
        assert isinstance(self.result_type, TensorType), f"{self.op.name} has several results; read one with tuple_get"
        return self.result_type

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """Types of all results."""
        return self.result_type if isinstance(self.result_type, tuple) else (self.result_type,)

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
        """Return the op applied to other operands, or `self` if nothing changed; its type is inferred again from other types."""
        if all(a is b for a, b in zip(self.operands, operands, strict=True)):
            return self
        if self.loc and all(a.result_type == b.result_type for a, b in zip(self.operands, operands, strict=True)):
            return replace(self, operands=operands)
        built = self.op(*operands, loc=self.loc, **self.attrs)
        return replace(built, name=self.name)

    def with_name(self, name: str) -> Node:
        return replace(self, name=name)

    def with_loc(self, loc: Loc | None) -> Node:
        """Return the node with location `loc`."""
        return replace(self, loc=loc)

    def __repr__(self) -> str:
        operands = ", ".join(f"%{o.name or '?'}" for o in self.operands)
        return f"%{self.name or '?'}: {self.result_type} = {self.op.name}({operands})"


def input_node(name: str, type: TensorType, loc: Loc | None = None) -> Node:
    """Build a graph input."""
    return Node(INPUT, (), {"name": name}, type, name=name, loc=loc)


def constant_node(
    data: ConstantData | Array, dtype: DType | None = None, name: str = "", loc: Loc | None = None
) -> Node:
    """Build a constant tensor; `dtype` is inferred from an array if it is omitted."""
    if not isinstance(data, ConstantData):
        array = np.asarray(data, order="C")
        data = ConstantData(dtype or next(d for d in DTYPES.values() if d.numpy == array.dtype), array, name)
    return Node(CONSTANT, (), {"value": data}, TensorType(data.dtype, data.shape), name=name or data.name, loc=loc)


def scalar_constant(value: Number, dtype: DType | None = None) -> Node:
    """Build a rank-0 constant, of f32 if no `dtype` is given."""
    dtype = dtype or f32
    return constant_node(ConstantData(dtype, to_storage(np.array(value), dtype)))


def scalar_value(node: Node) -> Number | None:
    """Return the value of a constant with one element as a Python number; None for any other node."""
    if not isinstance(node.structure, Leaf) or "value" not in node.attrs:
        return None
    data: ConstantData = node.attrs["value"]
    if prod(data.shape) != 1:
        return None
    return data.numpy_values.item()  # type: ignore[no-any-return]


def freeze(value: Any) -> Any:
    """Convert nested lists and tuples to tuples."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def flatten_nested(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples."""
    if isinstance(value, tuple):
        for v in value:
            yield from flatten_nested(v)
    else:
        yield value


def is_int_like(value: Any) -> bool:
    """Return True if `value` is an integer or an index expression."""
    return isinstance(value, (int, IndexExpr))
