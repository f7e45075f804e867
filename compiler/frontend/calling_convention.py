"""Calling convention of an imported program: the source of each graph input and of each leaf of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias, Union

import torch
from torch._subclasses import FakeTensor

from compiler.errors import ArgumentError
from compiler.frontend.memory_format import Permutation, permuted_view
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.node import Node, constant_node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import as_storage, element_type


@dataclass(frozen=True)
class UserInput:
    """Graph input fed by leaf `position` of the flattened call arguments, through a permuted view."""

    position: int
    permutation: Permutation = ()

    def feed(self, leaves: Sequence[Any]) -> Any:
        """Return the value of the graph input for the leaves of a call."""
        return permuted_view(leaves[self.position], self.permutation)


@dataclass(frozen=True)
class StateInput:
    """Graph input fed by the current value of a buffer or parameter that the program writes, through a permuted view."""

    name: str
    tensor: torch.Tensor
    permutation: Permutation = ()

    def feed(self, leaves: Sequence[Any]) -> Any:
        """Return the value of the graph input; `leaves` are not read."""
        return permuted_view(self.tensor, self.permutation)


@dataclass(frozen=True)
class GraphOutput:
    """Leaf of the result that is a permuted view of output `index` of the graph."""

    index: int
    permutation: Permutation = ()

    def view(self, output: torch.Tensor) -> torch.Tensor:
        """Return the leaf for the value of the graph output."""
        return output.permute(self.permutation) if self.permutation else output


@dataclass(frozen=True)
class ScalarOutput:
    """Leaf of the result that is a Python number: the single element of output `index` of the graph."""

    index: int


@dataclass(frozen=True)
class ConstantOutput:
    """Leaf of the result that is known at compile time."""

    value: Any


@dataclass(frozen=True)
class SizeOutput:
    """Leaf of the result that is a size, an int or an expression of symbolic sizes."""

    dim: Dim


InputSource: TypeAlias = Union[UserInput, StateInput]
ResultLeaf: TypeAlias = Union[GraphOutput, ScalarOutput, ConstantOutput, SizeOutput]


def module_constants(module: torch.nn.Module) -> Callable[[str], Node]:
    """Return a function from the dotted name of a tensor of `module` to a constant node."""
    return lambda name: constant_node(as_data(attrgetter(name)(module), name))


def as_data(tensor: torch.Tensor, name: str) -> ConstantData:
    """Return the elements of `tensor` as constant data, which shares memory with a dense CPU tensor; ArgumentError if it has none."""
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        kind = "meta" if tensor.is_meta else "fake"
        raise ArgumentError(f"{name} is a {kind} tensor, which has no elements; load the weights before compiling")
    return ConstantData(element_type(tensor, name), as_storage(tensor), name)
