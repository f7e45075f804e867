"""Attributes that a module assigns while it is traced: an exported program keeps buffers alone from call to call."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

import compiler
from compiler.errors import USE_TORCH_COMPILE
from compiler.frontend.source_location import calling_frame

Attributes: TypeAlias = dict[str, Any]
"""Values by dotted path."""

_OF_PYTORCH = frozenset({*torch.nn.Module().__dict__, "_flat_weights", "_flat_weight_refs"})
"""Attributes that PyTorch gives every module, buffers among them, and those in which recurrent layers list their weights."""


@contextmanager
def assignments_reported(module: torch.nn.Module) -> Iterator[None]:
    """Warn, after the context, of attributes that a call of `module` inside it has assigned.

    A list or dictionary is assigned where its entries are.  PyTorch warns of tensors alone, and puts the old values back.
    """
    before, assigned = _attributes(module), set[str]()

    def compare(*_: object) -> None:
        after = _attributes(module)
        assigned.update(path for path, value in after.items() if not _is_same(before.get(path), value))

    hook = module.register_forward_hook(compare)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            yield
    finally:
        hook.remove()
    if assigned:
        names, remedy = ", ".join(sorted(assigned)), f"make what later calls read a buffer, or {USE_TORCH_COMPILE}"
        _, level = calling_frame(os.path.dirname(compiler.__file__) + os.sep, contextlib.__file__)
        warnings.warn(f"the model assigns {names}, which compiled code does not: {remedy}", stacklevel=level)


def _attributes(module: torch.nn.Module) -> Attributes:
    """Return the attributes of a module and its submodules; lists and dictionaries are copied."""
    owners = [(f"{path}." if path else "", part) for path, part in module.named_modules()]
    return {
        prefix + name: value.copy() if isinstance(value, (list, dict)) else value
        for prefix, part in owners
        for name, value in part.__dict__.items()
        if name not in _OF_PYTORCH
    }


def _is_same(old: Any, new: Any) -> bool:
    """Return True unless an attribute was assigned; numbers and texts are compared by value."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_is_same(old[k], new[k]) for k in old)
    return old is new or (isinstance(new, (bool, int, float, str)) and type(old) is type(new) and old == new)
