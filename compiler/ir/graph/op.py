"""Op declarations: all that the compiler knows about an op.

    silu = declare_op("silu", "x: float", Elementwise(lambda x: x / (1 + exp(-x))),
                      aten="aten.silu.default", reference=torch.nn.functional.silu,
                      samples=[sample_input("f32[4, 5]"), sample_input("f32[0, 3]")])

Calling an op builds a node: `silu(x)`.  Operands that are Python numbers become constants of the other operands' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.ir.graph.node import OPS, Op, OperandSpec, SampleInput, Signature, TypeRule
from compiler.ir.graph.structure import Elementwise, Structure
from compiler.ir.types import DType, TensorType, broadcast_shapes


def sample_input(*types: str, low: float = -4.0, high: float = 4.0, **attrs: Any) -> SampleInput:
    """Return a sample, as in `sample_input("f32[2, 3]", "f32[3]", dims=[1])`: types of the operands in IR text, and attributes.

    Operands are random numbers in `low`..`high`.
    """
    return SampleInput(types, attrs, low, high)


def parse_operands(text: str) -> tuple[OperandSpec, ...]:
    """Parse formal operands, as in "x: float, bias?: float, xs*: any, indices!: integer"."""
    specs = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        flagged_name, _, kind = part.partition(":")
        name = flagged_name.strip().strip("?*!")
        specs.append(OperandSpec(name, kind.strip() or "any", *(flag in flagged_name for flag in "?*!")))
    return tuple(specs)


def elementwise_type_rule(result: DType | None = None) -> TypeRule:
    """Return the rule: broadcast shape, and dtype `result` or that of the operands."""

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
    """Declare an op and add it to the registry.

    `type_rule` may be omitted for elementwise ops.  `aten` names the overloads whose arguments are exactly the operands
    and attributes, in this order or by these names; other overloads need a conversion in `compiler.frontend`.
    """
    if name in OPS:
        raise ValueError(f"op {name} is declared twice")
    if type_rule is None:
        if not isinstance(structure, Elementwise):
            raise ValueError(f"op {name} needs a type rule")
        type_rule = elementwise_type_rule()
    specs, defaults = parse_operands(operands), dict(attrs or {})
    overloads = (aten,) if isinstance(aten, str) else tuple(aten)
    OPS[name] = Op(name, specs, structure, type_rule, defaults, reference, overloads, tuple(samples), commutative)
    return OPS[name]
