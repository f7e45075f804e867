"""Graphs inside graphs: `torch.cond`, `while_loop`, `scan` and `map`, as export and Dynamo hand them on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from compiler.frontend.registry import Refusal
from compiler.ir import ops
from compiler.ir.graph import Graph, Node
from compiler.ir.partition import is_partitioned

Modules: TypeAlias = Sequence[torch.fx.GraphModule]


class Inner(Protocol):
    def __call__(
        self, modules: Modules, arguments: Sequence[Any], entries: Collection[int] = (), fixed: Collection[int] = ()
    ) -> tuple[list[Graph], tuple[Node, ...]]:
        """The graphs of modules that take the same arguments, and what these graphs take.

        Arguments are given by their numbers: `entries` go in entry by entry, and `fixed` ones are seen through where they are
        constants.
        """
        ...


def cond(inner: Inner, given: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> tuple[Node, ...]:
    if not isinstance(given, Node):
        raise Refusal("what decides is no tensor")
    graphs, taken = inner((then, otherwise), operands, fixed=range(len(operands)))
    return ops.results(ops.choose(given, *taken, then=graphs[0], otherwise=graphs[1]))


def while_loop(
    inner: Inner, test: Any, body: Any, carried: Sequence[Any], fixed: Sequence[Any] = ()
) -> tuple[Node, ...]:
    _require_tensors(carried, "carries")
    arguments = (*carried, *fixed)
    graphs, taken = inner((test, body), arguments, fixed=range(len(carried), len(arguments)))
    return ops.results(ops.repeat_while(*taken, test=graphs[0], body=graphs[1], states=len(carried)))


def scan(
    inner: Inner, combine: Any, initial: Sequence[Any], sequences: Sequence[Any], fixed: Sequence[Any] = ()
) -> tuple[Node, ...]:
    """The module takes states, entries and what stays; a recurrence has the entries first."""
    _require_tensors((*initial, *sequences), "carries or reads step by step")
    first, last = len(initial), len(initial) + len(sequences)
    (body,), taken = inner((combine,), (*initial, *sequences, *fixed), entries=range(first, last))
    if is_partitioned(body):
        raise Refusal("data decides sizes, or what is run, inside the loop")

    def turned(values: tuple[Node, ...]) -> tuple[Node, ...]:
        return values[first:last] + values[:first] + values[last:]

    body = Graph(turned(body.inputs), body.outputs, body.name)
    return ops.results(ops.recurrence(*turned(taken), body=body, sequences=len(sequences), states=len(initial)))


def map_(inner: Inner, function: Any, sequences: Sequence[Any], fixed: Sequence[Any] = ()) -> tuple[Node, ...]:
    return scan(inner, function, (), sequences, fixed)


CONTROL: dict[str, Callable[..., tuple[Node, ...]]] = {
    "cond": cond, "while_loop": while_loop, "scan": scan, "map_impl": map_,
}  # fmt: skip


def _require_tensors(values: Sequence[Any], what: str) -> None:
    if not all(isinstance(v, Node) for v in values):
        raise Refusal(f"what the loop {what} is not all tensors")
