"""Calls as the user makes them, and the flat list of tensors that a graph takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from compiler.errors import ArgumentError
from compiler.frontend.calling_convention import ConstantOutput, GraphOutput, ScalarOutput, UserInput
from compiler.frontend.export import ImportedProgram
from compiler.ir.symbolic.index_expr import evaluate

TensorList = list[torch.Tensor]


@dataclass(frozen=True)
class CallAdapter:
    """Maps calls with the signature of the user's program to and from the tensors of its graph."""

    imported: ImportedProgram
    signature: inspect.Signature | None

    def graph_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TensorList:
        """The graph's inputs for a call; ArgumentError where it is not of the form that was compiled."""
        leaves = self._flatten_call(tuple(args), dict(kwargs))
        for position, wanted in self.imported.specialized_arguments.items():
            given = leaves[position]
            if isinstance(given, torch.Tensor) or given != wanted:
                raise ArgumentError(
                    f"{self._argument_name(position)} must be {wanted!r}, as when compiled, but is {given!r}"
                )
        return [leaves[o.position] if isinstance(o, UserInput) else o.tensor for o in self.imported.input_sources]

    def build_result(self, outputs: Sequence[torch.Tensor], sizes: Callable[[], Mapping[str, int]]) -> Any:
        """The value of a call, given what the graph returns; `sizes` gives the symbolic sizes if they are asked for."""
        leaves = [
            outputs[self._returned_positions[r.index]]
            if isinstance(r, GraphOutput)
            else outputs[self._returned_positions[r.index]].item()
            if isinstance(r, ScalarOutput)
            else r.value
            if isinstance(r, ConstantOutput)
            else evaluate(r.dim, sizes())
            for r in self.imported.results
        ]
        return tree_unflatten(leaves, self.imported.out_spec)

    def fast_path(
        self, run: Callable[[Sequence[torch.Tensor]], TensorList], slow_path: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """`run` called without detours, where calls are tensors by position and give one tensor or a tuple of them; else None.

        Calls with keywords or another number of arguments go to `other`.
        """
        count, form = len(self.imported.input_sources), self.imported
        if (
            form.input_sources != tuple(map(UserInput, range(count)))
            or form.in_spec != tree_flatten(((0,) * count, {}))[1]
        ):
            return None
        if form.results != tuple(map(GraphOutput, range(len(form.graph.outputs)))):
            return None

        def single(*args: torch.Tensor, **kwargs: Any) -> Any:
            return run(args)[0] if not kwargs and len(args) == count else slow_path(*args, **kwargs)

        def several(*args: torch.Tensor, **kwargs: Any) -> Any:
            return tuple(run(args)) if not kwargs and len(args) == count else slow_path(*args, **kwargs)

        if form.out_spec.is_leaf():
            return single
        return several if form.out_spec == tree_flatten((0,) * len(form.results))[1] else None

    @cached_property
    def _returned_positions(self) -> dict[int, int]:
        """Where each output of the graph comes among those that are not written back."""
        graph = self.imported.graph
        kept = [k for k in range(len(graph.outputs)) if k not in graph.output_aliases]
        return {k: place for place, k in enumerate(kept)}

    @cached_property
    def _leaf_numbers(self) -> dict[str, Any]:
        """The compiled call by parameter, with the numbers of leaves in place of values."""
        assert self.signature is not None
        spec = self.imported.in_spec
        args, kwargs = tree_unflatten(range(spec.num_leaves), spec)
        return self.signature.bind(*args, **kwargs).arguments

    def _flatten_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call in the order of the compiled one, whether arguments come by position or by name."""
        leaves, spec = tree_flatten((args, kwargs))
        if spec == self.imported.in_spec:
            return leaves
        if self.signature is None:
            raise self._mismatch(spec)
        try:
            given = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(str(error)) from None
        given.apply_defaults()
        for name, parameter in self.signature.parameters.items():
            value = given.arguments.get(name)
            if name not in self._leaf_numbers and value is not parameter.default and value not in ((), {}):
                raise ArgumentError(
                    f"argument {name} was left out when the program was compiled, so it must be left out here"
                )
        numbers, wanted = tree_flatten(self._leaf_numbers)
        leaves, spec = tree_flatten({name: given.arguments[name] for name in self._leaf_numbers})
        if spec != wanted:
            raise self._mismatch(spec)
        return [leaf for _, leaf in sorted(zip(numbers, leaves, strict=True), key=lambda pair: pair[0])]

    def _mismatch(self, given: TreeSpec) -> ArgumentError:
        compiled = self.imported.in_spec
        return ArgumentError(
            f"the arguments are nested otherwise than when compiled:\n  compiled {compiled}\n  given    {given}"
        )

    def _argument_name(self, position: int) -> str:
        """An argument by the name of its parameter, if that is known."""
        for name, value in self._leaf_numbers.items() if self.signature else ():
            if position in tree_flatten(value)[0]:
                return f"argument {name}"
        return f"argument {position}"
