"""Decomposition of the `_foreach` operators, which optimizers use, into one operator for each tensor of the lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch

_PREFIX = "_foreach_"

_ELEMENT_NAMES: Mapping[str, str] = {
    "maximum": "clamp_min", "minimum": "clamp_max", "norm": "linalg_vector_norm", "powsum": "linalg__powsum",
}  # fmt: skip
"""Operator on one tensor, where it has another name or the one of that name takes no number."""


@cache
def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a decomposition for each `_foreach` overload whose arguments are lists and numbers."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in filter(lambda n: n.startswith(_PREFIX), map(_unqualified, torch._C._dispatch_get_all_op_names())):
        packet_name, _, overload_name = name.partition(".")
        own = packet_name.removeprefix(_PREFIX)
        element = getattr(torch.ops.aten, _ELEMENT_NAMES.get(own, own), None)
        overload = getattr(getattr(torch.ops.aten, packet_name), overload_name or "default")
        if element and not overload._schema.is_mutable and not _has_packed_numbers(overload):
            table[overload] = partial(_apply_to_each, element, overload)
    return table


def _unqualified(name: str) -> str:
    return name.removeprefix("aten::")


def _has_packed_numbers(overload: Any) -> bool:
    """Return True if the numbers for all lists come in one tensor, whose elements are known only at run time."""
    return any(a.name == "scalars" and str(a.type) == "Tensor" for a in overload._schema.arguments)


def _apply_to_each(element: Any, overload: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Call `element` for each position of the lists among the arguments of `overload`."""
    names = [a.name for a in overload._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    keyword_only = {
        a.name
        for o in element.overloads()
        for a in getattr(element, o)._schema.arguments
        if a.kwarg_only and not a.is_out
    }
    count = next(len(a) for a in arguments.values() if isinstance(a, (list, tuple)))
    results = []
    for k in range(count):
        values = {n: a[k] if isinstance(a, (list, tuple)) else a for n, a in arguments.items()}
        if "value" in keyword_only and "scalars" in values:
            values["value"] = values.pop("scalars")
        positional = [v for n, v in values.items() if n not in keyword_only]
        results.append(element(*positional, **{n: v for n, v in values.items() if n in keyword_only}))
    return results
