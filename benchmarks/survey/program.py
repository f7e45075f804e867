"""A drawn program: Python source that defines a model and the arguments of one call."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMPORTS = ("import torch", "import torch.nn.functional as F", "from torch import nn")


@dataclass(frozen=True)
class Loaded:
    """What the source of a program defines: a model in inference mode, its arguments, and sizes that are dynamic."""

    model: nn.Module
    args: tuple[Tensor, ...]
    dynamic_shapes: Any


@dataclass(frozen=True)
class Program:
    """A program drawn from `seed`, `kind` and `index`.  `family` says which distribution it comes from."""

    seed: int
    kind: str
    index: int
    family: str
    source: str

    def load(self, device: str = "cpu") -> Loaded:
        """Run the source, with random parameters and arguments on `device`."""
        names: dict[str, Any] = {}
        with torch.device(device):
            exec(compile(self.source, f"<program {self.index} of seed {self.seed}>", "exec"), names)
        return Loaded(names["model"], names["args"], names["dynamic_shapes"])


@dataclass
class Builder:
    """Builds the source of a program statement by statement.

    Every expression is evaluated on the meta device as it is added, so that the next draw knows all shapes.
    """

    rng: random.Random
    imports: list[str] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    dynamic: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(
        default_factory=lambda: {"torch": torch, "F": F, "nn": nn, "self": SimpleNamespace()}
    )

    # random choices

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def size(self, low: int, high: int) -> int:
        """Return a size in low..high: uniform in its logarithm, and half of the time a multiple of 8, 16 or 32."""
        n = round(low * (high / low) ** self.rng.random())
        unit = self.pick(1, 1, 1, 8, 16, 32)
        return min(high, max(low, n // unit * unit)) if n >= unit else n

    def shape(self, rank: int, numel: int, least: int = 1) -> list[int]:
        """Return a shape of about `numel` elements; its dimensions share the logarithm at random."""
        shares = [self.rng.random() + 0.1 for _ in range(rank)]
        return [max(least, self.pick(round, int)(numel ** (s / sum(shares)))) for s in shares]

    # source

    def evaluate(self, expression: str) -> Any:
        with torch.device("meta"), torch.no_grad():
            return eval(expression, self.values)

    def input(self, expression: str) -> str:
        """Add an argument and return its name."""
        name = "xyzuvw"[len(self.inputs)] if len(self.inputs) < 6 else f"x{len(self.inputs)}"
        self.inputs[name], self.values[name] = expression, self.evaluate(expression)
        return name

    def layer(self, constructor: str) -> str:
        """Add a module or parameter, and return the expression that reads it."""
        name = f"layer{len(self.layers)}"
        made = self.evaluate(constructor)
        setattr(self.values["self"], name, made.eval() if isinstance(made, nn.Module) else made)
        self.layers[name] = constructor
        return f"self.{name}"

    def weight(self, shape: Sequence[int], constant: bool) -> str:
        """Add a tensor of normally distributed elements: a parameter, or an argument."""
        made = f"torch.randn({', '.join(map(str, shape))})"
        return self.layer(f"nn.Parameter({made})") if constant else self.input(made)

    def value(self, expression: str) -> str:
        """Add a statement and return the name of its value."""
        name = f"t{len(self.statements)}"
        self.values[name] = self.evaluate(expression)
        self.statements.append(f"{name} = {expression}")
        return name

    def of(self, name: str) -> Tensor:
        """Return the value called `name`, on the meta device."""
        value: Tensor = self.evaluate(name)
        return value

    def source(self, result: str) -> str:
        """Return the whole program, whose result is the value `result`."""
        made = [f"        self.{name} = {text}" for name, text in self.layers.items()]
        inputs = "".join(f", {name}" for name in self.inputs)
        dynamic = ", ".join(
            "{" + f"{self.dynamic[name]}: torch.export.Dim.AUTO" + "}" if name in self.dynamic else "None"
            for name in self.inputs
        )
        return "\n".join([
            *dict.fromkeys((*IMPORTS, *self.imports)), "", "torch.manual_seed(0)", "", "",
            "class Model(nn.Module):",
            *(["    def __init__(self):", "        super().__init__()", *made, ""] if made else []),
            f"    def forward(self{inputs}):",
            *(f"        {statement}" for statement in self.statements),
            f"        return {result}", "", "",
            "model = Model().eval()",
            f"args = ({', '.join(self.inputs.values())},)",
            f"dynamic_shapes = ({dynamic},)" if self.dynamic else "dynamic_shapes = None", "",
        ])  # fmt: skip


Family = Callable[[Builder], str]
"""Adds a program of its family to a builder and returns the name of the result."""
