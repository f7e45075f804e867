"""`compiler.compile`: a PyTorch model becomes a `CompiledModule`, which is called and inspected."""

from __future__ import annotations

import inspect
import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.export import ExportedProgram

from compiler.codegen.backend import target_by_name
from compiler.codegen.triton.loader import OfflineKernel
from compiler.codegen.triton.targets import GPUTarget
from compiler.driver.argument_overlap import reject_overlapping_writes
from compiler.driver.compiled_graph import infer_sizes
from compiler.driver.interpreter_settings import compile_time
from compiler.driver.partitioned_graph import compile_graph
from compiler.driver.plugins import load_plugins
from compiler.errors import USE_TORCH_COMPILE, ArgumentError, TargetError, TilewrightError
from compiler.frontend.call_adapter import CallAdapter
from compiler.frontend.export import import_exported
from compiler.frontend.model_source import Model, as_exported_program, call_signature, resolve_model
from compiler.options import Options, as_options
from compiler.report.explore.page import save_page
from compiler.report.explore.page_builder import PageBuilder
from compiler.report.inspection import Inspection
from compiler.report.kernel_folder import write_kernel_folder
from compiler.report.notebook import register_formatters
from compiler.report.profile import Profile
from compiler.report.report import Report
from compiler.report.ways import Way, named_ways

register_formatters()


@compile_time
def compile(
    model: Model,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | dict[str, Any] | None = None,
) -> CompiledModule:
    """Compile `model` for inference.

    `args` and `kwargs` are example arguments for a module or a function (a program brings its own); their sizes are compiled in, unless
    `dynamic_shapes` (as `torch.export.export` takes it) leaves some open: then one compilation serves all that it admits.
    Raises UnsupportedOpError, which names all unsupported ops and the lines they stand on, and ExportError for what PyTorch
    cannot export.
    """
    if isinstance(model, CompiledModule):
        raise ArgumentError(f"{model!r} is compiled already; pass the model that it was compiled from")
    load_plugins()
    chosen = as_options(options)
    start = time.perf_counter()
    source = resolve_model(model)
    program, given, named = as_exported_program(source, args, kwargs, dynamic_shapes)
    return _compile_exported(
        program, call_signature(source, program), chosen, (given, named), time.perf_counter() - start
    )


def _compile_exported(
    program: ExportedProgram,
    signature: inspect.Signature | None,
    options: Options,
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]],
    export_seconds: float = 0.0,
) -> CompiledModule:
    start = time.perf_counter()
    imported = import_exported(program, fallback=options.fallback)
    seconds = {"export": export_seconds, "import": time.perf_counter() - start}
    return CompiledModule(program, CallAdapter(imported, signature), options, example_inputs, seconds)


class CompiledModule(Inspection):
    """A compiled model, called as the model is: same arguments, same nesting of results, without autograd.

    Arguments of other shapes, dtypes or devices than it was compiled for raise ArgumentError; those in another
    memory format than the example's are copied.  Results have eager's.  Calls from several threads run side by side.
    Copies and pickled modules hold the exported program, weights included, and are compiled again; load what
    `torch.save` wrote with `weights_only=False`.
    """

    def __init__(
        self,
        program: ExportedProgram,
        call_adapter: CallAdapter,
        options: Options,
        example_inputs: tuple[tuple[Any, ...], dict[str, Any]],
        frontend_seconds: Mapping[str, float],
    ) -> None:
        self.call_adapter, self.options, self.example_inputs = call_adapter, options, example_inputs
        self._program = program
        imported = call_adapter.imported
        compiled_graph = compile_graph(imported.graph, options, imported.bounds, imported.runtime_assertions)
        super().__init__(compiled_graph, frontend_seconds)
        self._executed_programs = compiled_graph.executed_programs(self.example_tensors())  # compiles for these sizes
        self._writes_inputs = bool(self.compiled_graph.graph.output_aliases)
        fast = None if self._writes_inputs else call_adapter.fast_path(self.compiled_graph.run, self._call_general)
        self._call_function = fast or self._call_general

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_function(*args, **kwargs)

    def _call_general(self, *args: Any, **kwargs: Any) -> Any:
        """Call with arguments of any form: keywords, nested containers, numbers."""
        tensors = self.call_adapter.graph_inputs(args, kwargs)
        if self._writes_inputs:
            reject_overlapping_writes(self.compiled_graph.graph, tensors)
        return self.call_adapter.build_result(*self.compiled_graph.call_with_sizes(tensors))

    def example_tensors(self) -> Sequence[torch.Tensor]:
        return self.call_adapter.graph_inputs(*self.example_inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        try:
            torch.export.save(self._program, file)
        except Exception as error:  # whatever PyTorch cannot serialize
            raise TilewrightError(
                f"{self!r} cannot be copied or saved, since PyTorch cannot save its program: {error}"
            ) from error
        return _compile_saved, (file.getvalue(), self.call_adapter.signature, self.options, self.example_inputs)

    def __copy__(self) -> CompiledModule:
        return self  # nothing of it changes, except buffers, which shallow copies share

    def __getattr__(self, name: str) -> NoReturn:
        problem = f"a compiled module has no attribute {name!r}"
        if not name.startswith("_") and hasattr(torch.nn.Module, name):
            problem += f": it is frozen; ask the model it was compiled from, or {USE_TORCH_COMPILE}"
        raise AttributeError(problem)

    def profile(self, *args: Any, repeats: int = 20, **kwargs: Any) -> Profile:
        """Return the time of every kernel in a call with these arguments (without any: the example arguments)."""
        given = (args, kwargs) if args or kwargs else self.example_inputs
        return self.profile_inputs(self.call_adapter.graph_inputs(*given), repeats)

    def report(self, repeats: int = 20) -> Report:
        """Return kernels, remarks, memory and times of this compilation, measured on the example arguments if it runs here."""
        return self.report_for(self.profile(repeats=repeats) if self.runs_here else None)

    def explore(
        self,
        path: str | os.PathLike[str],
        repeats: int = 20,
        *,
        against: Mapping[str, Way] | Sequence[Way] = (),
    ) -> Path:
        """Write a page that shows this compilation step by step, beside those in other ways; see `explore`."""
        if not against:
            return super().explore(path, repeats)
        given, named = self.example_inputs
        return explore(self._program, path, given, named, options=self.options, against=against, repeats=repeats)

    def save_kernels(self, folder: str | os.PathLike[str]) -> dict[str, OfflineKernel]:
        """Write a program for a GPU as Triton kernels and the PyTorch that launches them; see compiler.report.kernel_folder.

        It serves the sizes of the example arguments.  Returns what `compile_offline` says of each kernel.
        """
        target = target_by_name(self.options.target, self.options.machine)
        if not isinstance(target, GPUTarget) or len(self._executed_programs) != 1:
            raise TargetError("only a program for a GPU without data-dependent sizes can be written as kernels")
        (program,) = self._executed_programs
        scheduled, name = program.stages.scheduled, self.compiled_graph.graph.name
        return write_kernel_folder(scheduled, target, program.inputs, name, Path(folder))


def explore(
    model: Model,
    path: str | os.PathLike[str],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: Options | dict[str, Any] | None = None,
    against: Mapping[str, Way] | Sequence[Way] = (),
    repeats: int = 20,
) -> Path:
    """Write a page that shows step by step how `model` is compiled, and return its path.

    `against` are other ways to compile it, shown side by side (see `compare`).  Each way that runs here is measured on the example
    arguments.  Of a model that does not compile, the page shows how far it came and why it stopped.
    """
    load_plugins()
    source = resolve_model(model)
    program, given, named = as_exported_program(source, args, kwargs)
    signature, base = call_signature(source, program), as_options(options)
    page = PageBuilder(Path(model).stem if isinstance(model, (str, os.PathLike)) else type(source).__name__)
    for name, chosen in (named_ways([base], base) | named_ways(against, base)).items():
        try:
            imported = import_exported(program, fallback=chosen.fallback)
        except TilewrightError as error:
            page.add_rejected(name, chosen, str(program.graph), error)
            continue
        adapter, graph = CallAdapter(imported, signature), imported.graph
        try:
            compiled = CompiledModule(program, adapter, chosen, (given, named), {})
        except TilewrightError as error:
            sizes = infer_sizes(graph.inputs, adapter.graph_inputs(given, named))
            page.add_failed(name, chosen, graph.specialize(sizes) if sizes else graph, error)
        else:
            compiled.add_to_page(page, name, repeats)
    return save_page(page.page(), path)


@compile_time
def _compile_saved(saved: bytes, *how: Any) -> CompiledModule:
    """Compile a program from the bytes that `torch.export.save` wrote; `how` is what else `_compile_exported` takes."""
    return _compile_exported(torch.export.load(io.BytesIO(saved)), *how)
