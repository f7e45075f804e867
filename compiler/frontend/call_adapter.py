"""Mapping between calls of the user's program and the flat list of tensors that its graph takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec, tree_flatten, tree_unflatten

from compiler.errors import ArgumentError
from compiler.frontend.calling_convention import ConstantOutput, GraphOutput, ScalarOutput, UserInput
from compiler.frontend.export import ImportedProgram
from compiler.ir.symbolic.index_expr import evaluate

TensorList = list[torch.Tensor]


@dataclass(frozen=True)
class CallAdapter:
    """Map calls of the user's program to the inputs of its graph, and the outputs of the graph to results.

    `signature` is that of the user's function; without it, calls must be nested exactly as when compiled.
    """

    imported: ImportedProgram
    signature: inspect.Signature | None

    def graph_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TensorList:
        """Return the inputs of the graph for a call; ArgumentError if its form differs from the compiled one."""
        leaves = self._flatten_call(tuple(args), dict(kwargs))
        for position, wanted in self.imported.specialized_arguments.items():
            given = leaves[position]
            # texts tell 1 from True and 0.0 from -0.0, and equal themselves for NaN
            text = f"a {type(given).__name__}" if hasattr(given, "shape") else repr(given)
            if text != repr(wanted):
                raise ArgumentError(
                    f"{self._argument_name(position)} is specialized to {wanted!r}, but is {text}; compile again for it"
                )
        return [source.feed(leaves) for source in self.imported.input_sources]

    def build_result(self, outputs: Sequence[torch.Tensor], sizes: Callable[[], Mapping[str, int]]) -> Any:
        """Return the result of a call from the outputs of its graph.

        `sizes` returns the symbolic sizes of this call; it is called only for results that are sizes.
        """
        leaves = [
            r.view(outputs[self._returned_positions[r.index]])
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
        """Return a function that calls `run` directly, or None if the program is not a plain tensor function.

        A plain one takes tensors by position and returns tensors, in any nesting.
        Calls with keywords or another number of arguments go to `slow_path`.
        """
        form = self.imported
        count = len(form.input_sources)
        inputs = [s for s in form.input_sources if isinstance(s, UserInput)]
        results = [r for r in form.results if isinstance(r, GraphOutput)]
        plain_inputs = [s.position for s in inputs] == list(range(count))
        plain_results = len(results) == len(form.results) and [r.index for r in results] == list(
            range(len(form.graph.outputs))
        )
        if not plain_inputs or not plain_results or form.in_spec != tree_flatten(((0,) * count, {}))[1]:
            return None
        if any(s.permutation for s in inputs) or any(r.permutation for r in results):
            run = _permuting_run(run, inputs, results)

        def single(*args: torch.Tensor, **kwargs: Any) -> Any:
            return run(args)[0] if not kwargs and len(args) == count else slow_path(*args, **kwargs)

        def several(*args: torch.Tensor, **kwargs: Any) -> Any:
            return unflatten(run(args)) if not kwargs and len(args) == count else slow_path(*args, **kwargs)

        if form.out_spec.is_leaf():
            return single
        unflatten = _unflattener(form.out_spec)
        return several

    @cached_property
    def _returned_positions(self) -> dict[int, int]:
        """Position of each graph output among those that are not written back to an input."""
        graph = self.imported.graph
        returned = [k for k in range(len(graph.outputs)) if k not in graph.output_aliases]
        return {k: position for position, k in enumerate(returned)}

    @cached_property
    def _leaf_positions(self) -> dict[str, Any]:
        """Arguments of the compiled call by parameter, with the positions of leaves in place of their values."""
        assert self.signature is not None
        spec = self.imported.in_spec
        args, kwargs = tree_unflatten(range(spec.num_leaves), spec)
        return self.signature.bind(*args, **kwargs).arguments

    def _flatten_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of a call in the compiled order, for arguments by position or by name."""
        leaves, spec = tree_flatten((args, kwargs))
        if spec == self.imported.in_spec:
            return leaves
        if self.signature is None:
            raise self._mismatch(spec)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = [repr(name) for name in kwargs if name not in self.signature.parameters]
            raise ArgumentError(
                f"{error}" + (f"; there is no argument {', '.join(unknown)}" if unknown else "")
            ) from None
        bound.apply_defaults()
        for name, parameter in self.signature.parameters.items():
            value = bound.arguments.get(name)
            if name not in self._leaf_positions and value is not parameter.default and value not in ((), {}):
                raise ArgumentError(f"omit argument {name}: the program was compiled without it")
        positions, compiled_spec = tree_flatten(self._leaf_positions)
        leaves, spec = tree_flatten({name: bound.arguments[name] for name in self._leaf_positions})
        if spec != compiled_spec:
            raise self._mismatch(spec)
        return [leaf for _, leaf in sorted(zip(positions, leaves, strict=True), key=lambda pair: pair[0])]

    def _mismatch(self, given: TreeSpec) -> ArgumentError:
        compiled = self.imported.in_spec
        return ArgumentError(
            f"the arguments are nested differently than when compiled:\n  compiled {compiled}\n  given    {given}"
        )

    def _argument_name(self, position: int) -> str:
        """Name of the parameter that takes leaf `position`, or the position if the signature is unknown."""
        for name, value in self._leaf_positions.items() if self.signature else ():
            if position in tree_flatten(value)[0]:
                return f"argument {name}"
        return f"argument {position}"


def _unflattener(spec: TreeSpec) -> Callable[[TensorList], Any]:
    """Return the function that makes a result of `spec` from its leaves, a direct one where no container is in another."""
    if not all(child.is_leaf() for child in spec.children()):
        return lambda leaves: tree_unflatten(leaves, spec)
    make, context = SUPPORTED_NODES[spec.type].unflatten_fn, spec.context
    return tuple if spec.type is tuple else lambda leaves: make(leaves, context)


def _permuting_run(
    run: Callable[[Sequence[torch.Tensor]], TensorList], inputs: Sequence[UserInput], results: Sequence[GraphOutput]
) -> Callable[[Sequence[torch.Tensor]], TensorList]:
    """Return `run` between the permuted views of its inputs and outputs."""

    def permuting_run(args: Sequence[torch.Tensor]) -> TensorList:
        outputs = run([s.feed(args) for s in inputs])
        return [r.view(x) for r, x in zip(results, outputs, strict=True)]

    return permuting_run
