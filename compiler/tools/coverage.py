"""Which operators of PyTorch the compiler takes, and how: asked of the frontend's registries and the ops' structures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType
from typing import Any

import torch
from torch._C import _dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key

from compiler.frontend.conversions.table import conversions
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.importer import DROPPED_OPERATORS
from compiler.frontend.opaque_ops import has_data_dependent_shape, opaque_reason
from compiler.frontend.registry import needs_result_shape
from compiler.frontend.unbacked_symbols import ITEM_OPERATORS
from compiler.ir import ops
from compiler.ir.graph.node import OPS, Op
from compiler.ir.graph.structure import Opaque

SUPPORT_KINDS = {
    "native": "compiled",
    "decomposed": "spelled out in other operators first",
    "opaque": "called in PyTorch from inside the program",
    "between": "run in PyTorch between two programs, where torch.compile breaks the graph",
    "fallback": 'called in PyTorch where fallback="eager" allows it, as torch.compile does',
    "unsupported": "not taken",
}
"""How an operator is taken."""


@dataclass(frozen=True)
class OpSupport:
    """How one overload is taken: one of `WAYS`, by what or why."""

    overload: str
    kind: str
    note: str = ""


def overloads(core: bool = True) -> list[Any]:
    """Every overload in `torch.ops.aten`, or those tagged as Core ATen, by name."""
    found = []
    for name in _dispatch_get_all_op_names():
        namespace, _, qualified = name.partition("::")
        packet, _, overload = qualified.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        known = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if known is not None and (not core or torch.Tag.core in known.tags):
            found.append(known)
    return sorted(found, key=str)


def op_support(overload: Any) -> OpSupport:
    """How `overload` is taken."""
    name = str(overload)
    if name in conversions():
        named = referenced_ops(conversions()[name])
        opaque = sorted({o.name for o in named if isinstance(o.structure, Opaque) and not o.structure.shape_attr})
        if opaque:
            return OpSupport(name, "opaque", _opaque_reasons(opaque))
        asks = needs_result_shape(name) and ops.eager in named
        return OpSupport(name, "native", "PyTorch is asked where a mask holds" if asks else "")
    if name in ITEM_OPERATORS:
        return OpSupport(name, "native", "a number of the program; as a size it is asked for between two parts")
    if name in DROPPED_OPERATORS:
        return OpSupport(name, "native", "dropped: its check is made elsewhere")
    if _returns_only_sizes(overload):
        return OpSupport(name, "native", "size arithmetic")
    if functional := _functional_variant(overload):
        inner = op_support(functional)
        return OpSupport(name, inner.kind, f"as {functional}" + (f": {inner.note}" if inner.note else ""))
    if rule := _decomposition_name(overload):
        return OpSupport(name, "decomposed", rule)
    if reason := opaque_reason(overload):
        return OpSupport(name, "opaque", reason)
    if has_data_dependent_shape(overload):
        if torch.Tag.dynamic_output_shape in overload.tags:
            return OpSupport(name, "opaque", "data decides the size of its result")
        return OpSupport(name, "between", "Python sees data")
    if _has_kernel(overload, "CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        return OpSupport(name, "fallback", "has no conversion")
    return OpSupport(name, "unsupported", "has no CPU kernel in PyTorch")


def _opaque_reasons(names: list[str]) -> str:
    reasons = {name: o.structure.reason for name, o in OPS.items() if isinstance(o.structure, Opaque)}
    return "; ".join(f"{n}: {reasons[n]}" for n in names)


def _returns_only_sizes(overload: Any) -> bool:
    """Whether only a size comes out."""
    returns = [str(r.type) for r in overload._schema.returns]
    return (
        bool(returns)
        and all(r in ("int", "SymInt", "bool") for r in returns)
        and not has_data_dependent_shape(overload)
    )


@cache
def _decomposition_names() -> dict[str, str]:
    return {str(o): _qualified_name(rule) for o, rule in autograd_decompositions().items()}


def _qualified_name(rule: Callable[..., Any]) -> str:
    """Module and name of a function, seen through what wraps it."""
    plain = inspect.unwrap(rule.func if isinstance(rule, partial) else rule)
    return f"{plain.__module__}.{plain.__name__}"


def _decomposition_name(overload: Any) -> str:
    """What spells `overload` out before the importer sees it; empty where nothing does."""
    if _has_kernel(overload, "CompositeImplicitAutograd"):
        return "PyTorch's dispatcher (CompositeImplicitAutograd)"
    return _decomposition_names().get(str(overload), "")


def _has_kernel(overload: Any, *keys: str) -> bool:
    return any(_dispatch_has_kernel_for_dispatch_key(overload.name(), key) for key in keys)


def _functional_variant(overload: Any) -> Any:
    """The overload without mutation that functionalisation puts in the place of `overload`; None where there is none."""
    schema = overload._schema
    if not schema.is_mutable:
        return None
    packet = getattr(torch.ops.aten, overload.overloadpacket.__name__.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for each in packet.overloads() if packet else ():
        other = getattr(packet, each)
        if not other._schema.is_mutable and [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other
    return None


def referenced_ops(conversion: Callable[..., Any]) -> frozenset[Op]:
    """The ops that a conversion names, itself or in the functions of the frontend it calls."""
    if isinstance(conversion, partial):
        return frozenset(a for a in conversion.args if isinstance(a, Op))
    return frozenset(_iterate_referenced_ops(conversion, set()))


def _iterate_referenced_ops(function: Any, seen: set[Any]) -> Iterator[Op]:
    if function in seen:
        return
    seen.add(function)
    closure = [c.cell_contents for c in function.__closure__ or ()]
    for name in _referenced_names(function.__code__):
        value = function.__globals__.get(name)
        known = vars(ops).get(name)
        if isinstance(known, Op):
            yield known
        if inspect.isfunction(value) and value.__module__.startswith("compiler.frontend"):
            yield from _iterate_referenced_ops(value, seen)
    for value in closure:
        if isinstance(value, Op):
            yield value
        elif inspect.isfunction(value) and value.__module__.startswith("compiler.frontend"):
            yield from _iterate_referenced_ops(value, seen)


def _referenced_names(code: CodeType) -> Iterator[str]:
    """Every global and attribute that `code` names, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _referenced_names(constant)
