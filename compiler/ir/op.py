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
from compiler.ir.index import Index
from compiler.ir.structure import Elementwise, Leaf, Structure
from compiler.ir.types import DType, TensorType, boolean, broadcast_shapes, is_size

if TYPE_CHECKING:
    from compiler.ir.graph import Node

REQUIRED: Any = object()
"""Default of an attribute that must be given."""

KINDS: Mapping[str, Callable[[DType], bool]] = {
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
class Operand:
    """A formal operand: its name and the dtypes it takes.

    Operands marked `free` (written with `!`, as in "indices!: integer") need not share the others' dtype; bool-only
    operands never do.  `optional` ones ("bias?: float") may be left out from the end; one `variadic` ("xs*: any") takes the rest.
    """

    name: str
    kind: str
    optional: bool = False
    variadic: bool = False
    free: bool = False


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

    def fail(self, why: str) -> TypeRuleError:
        """The error for operands that break a rule."""
        return TypeRuleError(f"{self.op}({', '.join(map(str, self.types))}): {why}")


TypeRule = Callable[[Signature], TensorType | tuple[TensorType, ...]]


@dataclass(frozen=True)
class Sample:
    """Operand types and attributes to try an op on; `low`/`high` bound the random operand values."""

    types: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = -4.0
    high: float = 4.0


def sample(*types: str, low: float = -4.0, high: float = 4.0, **attrs: Any) -> Sample:
    """A sample: `sample("f32[2, 3]", "f32[3]", dims=[1])`; types in IR text."""
    return Sample(types, attrs, low, high)


@dataclass(frozen=True, eq=False)
class Op:
    """One declared op; compares by identity and builds nodes when called.

    `reference` takes and returns torch tensors (in any float dtype; tests run it in float64) and is written
    independently of `structure`, or comparing the two would prove nothing.
    """

    name: str
    operands: tuple[Operand, ...]
    structure: Structure
    type: TypeRule
    attrs: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    aten: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    commutative: bool = False

    def __call__(self, *operands: Node | float, loc: Loc | None = None, **attrs: Any) -> Node:
        """Build a node; TypeRuleError where operands or attributes do not fit.  Of patterns, build a pattern."""
        from compiler.ir.graph import Node, scalar_constant

        pattern = next((o for o in operands if hasattr(o, "apply_op")), None)
        if pattern is not None:
            return pattern.apply_op(self, operands, attrs)  # type: ignore[no-any-return]
        single = [o for o in operands if isinstance(o, Node) and isinstance(o.result, TensorType)]
        typed = next((o for o in single if o.type.dtype != boolean), single[0] if single else None)
        nodes = tuple(
            o if isinstance(o, Node) else scalar_constant(o, typed.type.dtype if typed else None) for o in operands
        )
        full = self.bind_attrs(attrs)
        signature = Signature(self.name, tuple(n.result for n in nodes), full)  # type: ignore[misc]  # `check` rules tuples out
        self.check(signature)
        loc = loc or location.current() or next((n.loc for n in reversed(nodes) if n.loc), None)
        return Node(self, nodes, full, self.result(signature), loc=loc)

    def bind_attrs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """`given` completed by the defaults, lists frozen to tuples."""
        unknown = sorted(set(given) - set(self.attrs))
        missing = sorted(k for k, v in self.attrs.items() if v is REQUIRED and k not in given)
        if unknown or missing:
            problem = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
            raise TypeRuleError(f"{self.name}: {problem} (attributes are {', '.join(self.attrs) or 'none'})")
        full = {k: freeze(given.get(k, v)) for k, v in self.attrs.items()}
        for k in given:
            if k in self.numbers and not isinstance(full[k], (Number, Index)):
                raise TypeRuleError(f"{self.name}: {k} is a number, not {full[k]!r}")
            if k in self.whole and not all(map(is_whole, leaves(full[k]))):
                raise TypeRuleError(f"{self.name}: {k} takes whole numbers, not {full[k]!r}")
        return full

    @cached_property
    def examples(self) -> Mapping[str, tuple[Any, ...]]:
        """What is known of each attribute: its default, and what the samples give."""
        known = [self.attrs, *(s.attrs for s in self.samples)]
        return {k: tuple(freeze(a[k]) for a in known if k in a and a[k] is not REQUIRED) for k in self.attrs}

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The attributes that are numbers in all examples."""
        return frozenset(k for k, found in self.examples.items() if found and all(isinstance(v, Number) for v in found))

    @cached_property
    def whole(self) -> frozenset[str]:
        """The attributes that are whole numbers, or lists of them, in all examples: sizes, places and dimensions."""
        parts = {k: list(leaves(found)) for k, found in self.examples.items()}
        return frozenset(k for k, values in parts.items() if values and all(map(is_whole, values)))

    def result(self, s: Signature) -> TensorType | tuple[TensorType, ...]:
        """What the type rule says; TypeRuleError also where it stumbles over attributes that make no sense."""
        try:
            found = self.type(s)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise TypeRuleError(f"{self.name}: {why} (given {dict(s.attrs)})") from error
        for t in found if isinstance(found, tuple) else (found,):
            if wrong := [d for d in t.shape if not is_size(d)]:
                raise s.fail(f"a dimension cannot have {wrong[0]} elements")
        return found

    def check(self, s: Signature) -> None:
        """Count and dtypes of the operands; TypeRuleError where they do not fit."""
        if self.operands and self.operands[-1].variadic:
            formal = [*self.operands[:-1], *[self.operands[-1]] * (len(s.types) - len(self.operands) + 1)]
        else:
            formal = list(self.operands[: len(s.types)])
        least = sum(not (o.optional or o.variadic) for o in self.operands)
        if len(formal) != len(s.types) or len(s.types) < least:
            raise s.fail(f"takes {least if least == len(self.operands) else f'{least} or more'} operands")
        shared: DType | None = None
        for o, t in zip(formal, s.types, strict=True):
            if isinstance(t, tuple) != (o.kind == "tuple"):
                raise s.fail(
                    f"operand {o.name} "
                    + (
                        "has several results; read one with item"
                        if isinstance(t, tuple)
                        else "must have several results"
                    )
                )
            if o.kind == "tuple":
                continue
            if not KINDS[o.kind](t.dtype):
                raise s.fail(f"operand {o.name} must be {o.kind}, not {t.dtype}")
            if o.kind == "bool" or o.free:
                continue
            if shared is not None and t.dtype != shared:
                raise s.fail(f"operand {o.name} is {t.dtype} beside {shared}; insert a cast")
            shared = t.dtype

    def __repr__(self) -> str:
        return f"<op {self.name}>"


OPS: dict[str, Op] = {}
"""Every declared op by name; `import compiler.ir.ops` fills it."""


def freeze(value: Any) -> Any:
    """Lists and tuples as tuples, all the way down."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def leaves(value: Any) -> Iterator[Any]:
    """What tuples within tuples hold."""
    if isinstance(value, tuple):
        for v in value:
            yield from leaves(v)
    else:
        yield value


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, known or not."""
    return isinstance(value, (int, Index))


def parse_operands(text: str) -> tuple[Operand, ...]:
    """Formal operands from "x: float, bias?: float, rest*: any, indices!: integer"."""
    out = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, kind = part.partition(":")
        flags = {c for c in name if c in "?*!"}
        out.append(Operand(name.strip().strip("?*!"), kind.strip() or "any", "?" in flags, "*" in flags, "!" in flags))
    return tuple(out)


def elementwise_type(result: DType | None = None) -> TypeRule:
    """Broadcast shape; dtype of the operands, or `result`."""

    def rule(s: Signature) -> TensorType:
        try:
            shape = broadcast_shapes(*(t.shape for t in s.types))
        except ValueError as error:
            raise s.fail(str(error)) from None
        return TensorType(result or s.dtype, shape)

    return rule


def op(
    name: str,
    operands: str,
    structure: Structure,
    *,
    type: TypeRule | None = None,
    attrs: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    aten: str | Sequence[str] = (),
    samples: Sequence[Sample] = (),
    commutative: bool = False,
) -> Op:
    """Declare an op and enter it in the registry.

    `type` may be left out for elementwise ops.  `aten` names the overloads whose arguments are exactly the operands and
    attributes, in this order or by these names; anything less direct is converted in `compiler.frontend`.
    """
    if name in OPS:
        raise ValueError(f"op {name} is declared twice")
    if type is None:
        if not isinstance(structure, Elementwise):
            raise ValueError(f"op {name} needs a type rule")
        type = elementwise_type()
    overloads = (aten,) if isinstance(aten, str) else tuple(aten)
    declared = Op(
        name,
        parse_operands(operands),
        structure,
        type,
        dict(attrs or {}),
        reference,
        overloads,
        tuple(samples),
        commutative,
    )
    OPS[name] = declared
    return declared


def leaf(name: str, attrs: Mapping[str, Any]) -> Op:
    """Declare an op without operands whose type is given when the node is made."""

    def no_rule(s: Signature) -> TensorType:
        raise s.fail("is made with its type")

    declared = Op(name, (), Leaf(), no_rule, attrs)
    OPS[name] = declared
    return declared
