"""Op declarations: everything the compiler knows about an op, in one place.

    silu = op("silu", "x: float", Elementwise(lambda x: x / (1 + exp(-x))),
              aten="aten.silu.default", reference=torch.nn.functional.silu,
              samples=[sample("f32[4, 5]"), sample("f32[0, 3]")])

Calling an op builds a node: `silu(x)`.  Python numbers among the operands become constants of the dtype beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.ir.graph.node import OPS, Op, OperandSpec, SampleInput, Signature, TypeRule
from compiler.ir.graph.structure import Elementwise, Structure
from compiler.ir.types import DType, TensorType, broadcast_shapes

if TYPE_CHECKING:
    pass


def sample_input(*types: str, low: float = -4.0, high: float = 4.0, **attrs: Any) -> SampleInput:
    """A sample: `sample("f32[2, 3]", "f32[3]", dims=[1])`; types in IR text."""
    return SampleInput(types, attrs, low, high)


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
