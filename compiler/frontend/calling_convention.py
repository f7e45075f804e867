"""How calls map onto a graph: what feeds its inputs, and where results come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias, Union

import numpy as np
import torch

from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.node import Node, constant_node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import from_torch


@dataclass(frozen=True)
class UserInput:
    """Graph input fed by leaf `position` of the flattened call arguments."""

    position: int


@dataclass(frozen=True)
class StateInput:
    """Graph input fed by a buffer or parameter that the program writes, as it is when called."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class GraphOutput:
    """Leaf of the result that is output `index` of the graph."""

    index: int


@dataclass(frozen=True)
class ScalarOutput:
    """Leaf of the result that is a number of Python's: the one element of output `index` of the graph."""

    index: int


@dataclass(frozen=True)
class ConstantOutput:
    """Leaf of the result known when compiling."""

    value: Any


@dataclass(frozen=True)
class SizeOutput:
    """Leaf of the result that is a size."""

    dim: Dim


InputSource: TypeAlias = Union[UserInput, StateInput]
ResultLeaf: TypeAlias = Union[GraphOutput, ScalarOutput, ConstantOutput, SizeOutput]


def module_constants(module: torch.nn.Module) -> Callable[[str], Node]:
    """Constants for the tensors that a module holds, by their dotted names."""
    return lambda name: constant_node(as_data(attrgetter(name)(module), name))


def as_data(tensor: torch.Tensor, name: str) -> ConstantData:
    """A tensor's elements as constant data, sharing memory where they are dense."""
    dense = tensor.detach().cpu().contiguous()
    if dense.dtype == torch.bfloat16:
        array: np.ndarray[Any, Any] = dense.view(torch.int16).numpy().view(np.uint16)
    else:
        array = dense.numpy()
    return ConstantData(from_torch(tensor.dtype), array, name)
