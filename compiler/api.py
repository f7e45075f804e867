"""Compiling a PyTorch model, and what can be asked of the result."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object import to_assembly
from compiler.driver import CompiledGraph
from compiler.errors import ArgumentError, TilewrightError
from compiler.ir.printer import print_graph
from compiler.ir.tile_printer import print_program
from compiler.measure import Work
from compiler.options import Options, as_options
from compiler.passes.remark import Remarks
from compiler.pipeline import Stages
from compiler.report import Profile, Report, Source, program_totals, sources
from compiler.runtime.executable import Executable
from compiler.runtime.profile import profile

Model: TypeAlias = Union[torch.nn.Module, ExportedProgram, str, "os.PathLike[str]"]
"""What can be compiled: a module, an exported program, or the path of one saved by `torch.export.save`."""

STAGES = ("imported", "fused", "lowered", "scheduled", "llvm", "assembly")


def compile(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | dict[str, Any] | None = None,
) -> CompiledModule:
    """Compile `model` for inference.

    `args` and `kwargs` are example arguments for a module (a program brings its own); their sizes are compiled in, unless
    `dynamic_shapes` (as `torch.export.export` takes it) leaves some open: then each set of sizes is compiled when it is first met.
    Raises UnsupportedOpError, which names all unsupported ops and the lines they stand on.
    """
    chosen = as_options(options)
    start = time.perf_counter()
    program, given, named = load(model, args, kwargs, dynamic_shapes)
    exported = time.perf_counter()
    imported = import_program(program, chosen)
    seconds = {"export": exported - start, "import": time.perf_counter() - exported}
    signature = inspect.signature(model.forward) if isinstance(model, torch.nn.Module) else None
    return CompiledModule(imported, chosen, (given, named), title(model), seconds, signature)


def load(
    model: Model, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """`model` as an exported program, and arguments to try it on: those given, else those it was exported with."""
    if isinstance(model, torch.nn.Module):
        if args is None and kwargs is None:
            raise ArgumentError("a module is compiled for example arguments: compile(module, (x, ...))")
        given, named = tuple(args or ()), dict(kwargs or {})
        return export_module(model, given, named, dynamic_shapes), given, named
    program = model if isinstance(model, ExportedProgram) else read_program(model)
    if args is not None or kwargs is not None:
        return program, tuple(args or ()), dict(kwargs or {})
    example = program.example_inputs
    if example is None:
        raise ArgumentError("the program was saved without example inputs; pass args")
    return program, tuple(example[0]), dict(example[1])


def title(model: Model) -> str:
    """What to call a model in tables."""
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return "program" if isinstance(model, ExportedProgram) else Path(model).stem


class CompiledModule:
    """A compiled model, called as the model is: same arguments, same nesting of results, detached from autograd.

    Arguments of other shapes, dtypes or devices than it was compiled for raise ArgumentError; tensors that are not contiguous
    are copied.  Calls from several threads run side by side.
    """

    def __init__(
        self,
        imported: Imported,
        options: Options,
        example: tuple[tuple[Any, ...], dict[str, Any]],
        name: str,
        seconds: Mapping[str, float],
        signature: inspect.Signature | None = None,
    ) -> None:
        self.imported, self.options, self.example, self.name = imported, options, example, name
        self.graph = CompiledGraph(imported.graph, options)
        self._before, self._signature = dict(seconds), signature
        self._current = self.graph.build(self.graph.sizes(self._tensors(*example)))
        self._call = self._fast() or self._general

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    # what was compiled

    @property
    def stages(self) -> Stages:
        """The IR of every stage, for the sizes met last."""
        return self._current[0]

    @property
    def executable(self) -> Executable:
        """The native program, for the sizes met last."""
        return self._current[1]

    @property
    def remarks(self) -> Remarks:
        """What the passes did and left alone, and why."""
        return self.stages.context.remarks

    @property
    def seconds(self) -> dict[str, float]:
        """The time that compiling took: in each part, and "total"."""
        parts = {**self._before, **self.graph.seconds}
        return {**parts, "total": sum(parts.values())}

    @property
    def work(self) -> Work:
        """Kernels, arithmetic operations and bytes of one call."""
        return Work(*program_totals(self.stages.lowered))

    def print_ir(self, stage: str = "fused") -> str:
        """The text of a stage: "imported", "fused" (Graph IR), "lowered", "scheduled" (Tile IR), "llvm" or "assembly"."""
        stages, target = self.stages, self.executable.target
        if stage in ("imported", "fused"):
            return print_graph(getattr(stages, stage))
        if stage in ("lowered", "scheduled"):
            return print_program(getattr(stages, stage))
        if stage not in STAGES:
            raise ArgumentError(f"there is no stage {stage!r}; choose one of {', '.join(STAGES)}")
        texts = [emit_kernel(kernel, target) for kernel in stages.scheduled.kernels.values()]
        return "\n".join(texts if stage == "llvm" else [to_assembly(text, target) for text in texts])

    def profile(self, *args: Any, repeats: int = 20, **kwargs: Any) -> Profile:
        """The time of every kernel in a call with these arguments (without any: the example arguments)."""
        given = (args, kwargs) if args or kwargs else self.example
        tensors = self._tensors(*given)
        stages, executable = self._current = self.graph.build(self.graph.sizes(tensors))
        known = sources(stages.fused)
        return Profile(tuple((p, known.get(p.node, Source())) for p in profile(executable, tensors, repeats)))

    def report(self, repeats: int = 20) -> Report:
        """Everything about this compilation, measured on the example arguments; `report().save("report.html")` writes a page."""
        measured = self.profile(repeats=repeats)
        texts = {stage: self.print_ir(stage) for stage in ("imported", "fused", "lowered", "scheduled")}
        return Report(self.name, self.stages, self.executable, self.seconds, measured, texts)

    def __repr__(self) -> str:
        return f"<compiled {self.name}: {self.work.kernels} kernels>"
