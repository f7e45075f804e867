"""Calling convention of an imported program: the source of each graph input and of each leaf of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias, Union

import torch

from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.node import Node, constant_node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import as_storage, element_type


@dataclass(frozen=True)
class UserInput:
    """Graph input fed by leaf `position` of the flattened call arguments."""

    position: int


@dataclass(frozen=True)
class StateInput:
    """Graph input fed by the current value of a buffer or parameter that the program writes."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class GraphOutput:
    """Leaf of the result that is output `index` of the graph."""

    index: int


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
    """Return the elements of `tensor` as constant data, which shares memory with a dense CPU tensor."""
    return ConstantData(element_type(tensor, name), as_storage(tensor), name)
