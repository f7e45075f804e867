"""Support for each ATen operator, read from the frontend's registries and the structures of ops."""

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
    "decomposed": "decomposed into other operators",
    "opaque": "runs in PyTorch inside the program",
    "graph-break": "runs in PyTorch between two programs, where torch.compile breaks the graph",
    "fallback": 'runs in PyTorch inside the program with fallback="eager", the default of torch.compile',
    "unsupported": "no conversion",
}
"""Kinds of support, and their meaning."""

OTHER_CPU_KEYS = {
    "SparseCPU": "sparse", "SparseCsrCPU": "sparse", "QuantizedCPU": "quantized", "MkldnnCPU": "MKLDNN",
    "NestedTensorCPU": "nested",
}  # fmt: skip
"""Kinds of tensors on CPUs that are not strided, by the dispatch key of their kernels; no graph holds such tensors."""


@dataclass(frozen=True)
class OpSupport:
    """Support for one overload: `kind` is a key of `SUPPORT_KINDS`, `note` the mechanism or the reason."""

    overload: str
    kind: str
    note: str = ""


def overloads(core: bool = True) -> list[Any]:
    """Return the overloads tagged as Core ATen, or all in `torch.ops.aten`, sorted by name."""
    result = []
    for name in _dispatch_get_all_op_names():
        namespace, _, qualified = name.partition("::")
        packet, _, overload = qualified.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if operator is not None and (not core or torch.Tag.core in operator.tags):
            result.append(operator)
    return sorted(result, key=str)


def op_support(overload: Any) -> OpSupport:
    """Return how a compiled program runs an operator overload, an entry of `SUPPORT_KINDS`, and by which mechanism."""
    name = str(overload)
    if name in conversions():
        used = referenced_ops(conversions()[name])
        opaque = {o.name: o.structure for o in used if isinstance(o.structure, Opaque) and not o.structure.shape_attr}
        if any(structure.expansions is None for structure in opaque.values()):
            return OpSupport(name, "opaque", _opaque_reasons(sorted(opaque)))
        if opaque:
            return OpSupport(name, "native", "a call into PyTorch where that is faster")
        has_mask = needs_result_shape(name) and ops.eager in used
        return OpSupport(name, "native", "PyTorch computes the data-dependent indices of a mask" if has_mask else "")
    if name in ITEM_OPERATORS:
        return OpSupport(
            name, "native", "a scalar; if used as a size, an unbacked symbol defined between two subgraphs"
        )
    if name in DROPPED_OPERATORS:
        return OpSupport(name, "native", "dropped: checked elsewhere")
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
            return OpSupport(name, "opaque", "data-dependent output shape")
        return OpSupport(name, "graph-break", "data-dependent Python control flow")
    if _has_kernel(overload, "CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        return OpSupport(name, "fallback", "has no conversion")
    kinds = sorted({kind for key, kind in OTHER_CPU_KEYS.items() if _has_kernel(overload, key)})
    only = f"for strided tensors, only for {' and '.join(kinds)} ones" if kinds else "in PyTorch"
    return OpSupport(name, "unsupported", f"has no CPU kernel {only}")


def _opaque_reasons(names: list[str]) -> str:
    reasons = {name: o.structure.reason for name, o in OPS.items() if isinstance(o.structure, Opaque)}
    return "; ".join(f"{n}: {reasons[n]}" for n in names)


def _returns_only_sizes(overload: Any) -> bool:
    """Return True if all results are sizes (integers or bools) that do not depend on data."""
    returns = [str(r.type) for r in overload._schema.returns]
    only_sizes = bool(returns) and all(r in ("int", "SymInt", "bool") for r in returns)
    return only_sizes and not has_data_dependent_shape(overload)


@cache
def _decomposition_names() -> dict[str, str]:
    return {str(o): _qualified_name(rule) for o, rule in autograd_decompositions().items()}


def _qualified_name(rule: Callable[..., Any]) -> str:
    """Return module and name of a function, without its wrappers."""
    function = inspect.unwrap(rule.func if isinstance(rule, partial) else rule)
    return f"{function.__module__}.{function.__name__}"


def _decomposition_name(overload: Any) -> str:
    """Name the decomposition that replaces `overload` before import, or return "" if there is none."""
    if _has_kernel(overload, "CompositeImplicitAutograd"):
        return "PyTorch's dispatcher (CompositeImplicitAutograd)"
    return _decomposition_names().get(str(overload), "")


def _has_kernel(overload: Any, *keys: str) -> bool:
    return any(_dispatch_has_kernel_for_dispatch_key(overload.name(), key) for key in keys)


def _functional_variant(overload: Any) -> Any:
    """Return the overload without mutation that functionalisation substitutes for `overload`, or None."""
    schema = overload._schema
    if not schema.is_mutable:
        return None
    packet = getattr(torch.ops.aten, overload.overloadpacket.__name__.removesuffix("_"), None)
    arguments = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for name in packet.overloads() if packet else ():
        other = getattr(packet, name)
        if not other._schema.is_mutable and [(a.name, str(a.type)) for a in other._schema.arguments] == arguments:
            return other
    return None


def referenced_ops(conversion: Callable[..., Any]) -> frozenset[Op]:
    """Return the ops named in a conversion and, transitively, in the frontend functions that it calls."""
    if isinstance(conversion, partial):
        return frozenset(a for a in conversion.args if isinstance(a, Op)) | referenced_ops(conversion.func)
    return frozenset(_iterate_referenced_ops(conversion, set()))


def _iterate_referenced_ops(function: Any, seen: set[Any]) -> Iterator[Op]:
    if function in seen:
        return
    seen.add(function)
    names = list(_referenced_names(function.__code__))
    yield from (op for name in names if isinstance(op := vars(ops).get(name), Op))
    cells = [c.cell_contents for c in function.__closure__ or ()]
    for value in (*map(function.__globals__.get, names), *cells):
        if isinstance(value, Op):
            yield value
        elif inspect.isfunction(value) and value.__module__.startswith("compiler.frontend"):
            yield from _iterate_referenced_ops(value, seen)


def _referenced_names(code: CodeType) -> Iterator[str]:
    """Yield every global and attribute named in `code` and its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _referenced_names(constant)
