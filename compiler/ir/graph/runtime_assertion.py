"""Run-time assertions on sizes, checked when a program is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.errors import ArgumentError
from compiler.ir.graph.partition import symbol_names
from compiler.ir.symbolic.index_expr import Dim


@dataclass(frozen=True)
class RuntimeAssertion:
    """A condition `left relation right` on sizes; `relation` is a Python comparison, `message` is for the user."""

    left: Dim
    relation: str
    right: Dim
    message: str

    @cached_property
    def symbols(self) -> frozenset[str]:
        return symbol_names((self.left, self.right))

    @cached_property
    def _code(self) -> Any:
        return compile(f"({self.left}) {self.relation} ({self.right})", "<condition>", "eval")

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise ArgumentError if the condition does not hold for `sizes`."""
        if not eval(self._code, {"min": min}, sizes):
            bindings = ", ".join(f"{name} = {sizes[name]}" for name in sorted(self.symbols))
            raise ArgumentError(f"{self.message} ({bindings})")
