"""Op declarations: everything the compiler knows about an op, in one place.

    silu = op("silu", "x: float", Elementwise(lambda x: x / (1 + exp(-x))),
              aten="aten.silu.default", reference=torch.nn.functional.silu,
              samples=[sample("f32[4, 5]"), sample("f32[0, 3]")])

Calling an op builds a node: `silu(x)`.  Python numbers among the operands become constants of the dtype beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any

from compiler.errors import Loc, TypeRuleError
from compiler.ir import location
from compiler.ir.index import IndexExpr
from compiler.ir.structure import Elementwise, Leaf, Structure
from compiler.ir.types import DType, TensorType, boolean, broadcast_shapes, is_valid_extent

if TYPE_CHECKING:
    from compiler.ir.graph import Node

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


def sample_input(*types: str, low: float = -4.0, high: float = 4.0, **attrs: Any) -> SampleInput:
    """A sample: `sample("f32[2, 3]", "f32[3]", dims=[1])`; types in IR text."""
    return SampleInput(types, attrs, low, high)


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
        from compiler.ir.graph import Node, scalar_constant

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
            if k in self.numeric_attrs and not isinstance(full[k], (Number, IndexExpr)):
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
            k for k, found in self.attr_examples.items() if found and all(isinstance(v, Number) for v in found)
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


def parse_operands(text: str) -> tuple[OperandSpec, ...]:
    """Formal operands from "x: float, bias?: float, rest*: any, indices!: integer"."""
    out = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, kind = part.partition(":")
        flags = {c for c in name if c in "?*!"}
        out.append(
            OperandSpec(name.strip().strip("?*!"), kind.strip() or "any", "?" in flags, "*" in flags, "!" in flags)
        )
    return tuple(out)


def elementwise_type_rule(result: DType | None = None) -> TypeRule:
    """Broadcast shape; dtype of the operands, or `result`."""

    def rule(s: Signature) -> TensorType:
        try:
            shape = broadcast_shapes(*(t.shape for t in s.types))
        except ValueError as error:
            raise s.error(str(error)) from None
        return TensorType(result or s.dtype, shape)

    return rule


def declare_op(
    name: str,
    operands: str,
    structure: Structure,
    *,
    type_rule: TypeRule | None = None,
    attrs: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    aten: str | Sequence[str] = (),
    samples: Sequence[SampleInput] = (),
    commutative: bool = False,
) -> Op:
    """Declare an op and enter it in the registry.

    `type` may be left out for elementwise ops.  `aten` names the overloads whose arguments are exactly the operands and
    attributes, in this order or by these names; anything less direct is converted in `compiler.frontend`.
    """
    if name in OPS:
        raise ValueError(f"op {name} is declared twice")
    if type_rule is None:
        if not isinstance(structure, Elementwise):
            raise ValueError(f"op {name} needs a type rule")
        type_rule = elementwise_type_rule()
    overloads = (aten,) if isinstance(aten, str) else tuple(aten)
    declared = Op(
        name,
        parse_operands(operands),
        structure,
        type_rule,
        dict(attrs or {}),
        reference,
        overloads,
        tuple(samples),
        commutative,
    )
    OPS[name] = declared
    return declared


def declare_leaf(name: str, attrs: Mapping[str, Any]) -> Op:
    """Declare an op without operands whose type is given when the node is made."""

    def no_rule(s: Signature) -> TensorType:
        raise s.error("is made with its type")

    declared = Op(name, (), Leaf(), no_rule, attrs)
    OPS[name] = declared
    return declared
