"""Models that can be compiled: modules, functions, exported programs, and paths of these."""

from __future__ import annotations

import inspect
import logging
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, Union

import torch
from torch.export import ExportedProgram
from torch.fx.traceback import annotate_fn

from compiler.errors import ArgumentError, TilewrightError
from compiler.frontend.module_export import export_module

Model: TypeAlias = Union[torch.nn.Module, Callable[..., Any], ExportedProgram, str, "os.PathLike[str]"]
"""What can be compiled; a path is that of a program saved by `torch.export.save`."""


def as_exported_program(
    model: Model, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """Return `model` as an exported program, and arguments to try it on: those given, else those it was exported with.

    ArgumentError for what is no model, or for arguments that it cannot be called with.
    """
    source = resolve_model(model)
    _check_containers(args, kwargs)
    is_given = args is not None or kwargs is not None
    given, named = tuple(() if args is None else args), dict({} if kwargs is None else kwargs)
    if isinstance(source, torch.nn.Module):
        if not is_given:
            raise ArgumentError("a module or function is compiled for example arguments: compile(model, (x, ...))")
        return export_module(source, given, named, dynamic_shapes), given, named
    if dynamic_shapes is not None:
        raise ArgumentError(
            "an exported program has its dynamic sizes already: pass dynamic_shapes to torch.export.export"
        )
    if is_given:
        return source, given, named
    example = source.example_inputs
    if example is None:
        raise ArgumentError("the program was saved without example inputs; pass args")
    return source, tuple(example[0]), dict(example[1])


def resolve_model(model: Model) -> torch.nn.Module | ExportedProgram:
    """Return `model` as a module, which a function becomes the `forward` of, or as an exported program, which a path is read as.

    ArgumentError for what is neither, OSError where there is no file, TilewrightError for a file without a program.
    """
    if name := _scripted_name(model):
        raise ArgumentError(f"{name} is TorchScript, which has no Python code to trace; take what it was made from")
    if isinstance(model, (torch.nn.Module, ExportedProgram)):
        return model
    if isinstance(model, (str, os.PathLike)):
        return read_program(model)
    if isinstance(model, type):
        raise ArgumentError(
            f"{model.__name__} is a class; compile an instance: compile({model.__name__}(...), (x, ...))"
        )
    if not callable(model):
        accepted = "a module, a function, an exported program or the path of one"
        raise ArgumentError(f"cannot compile a {type(model).__name__}; pass {accepted}")
    return _as_module(model)


def _scripted_name(model: object) -> str:
    """Return the name of a part of `model` that is TorchScript, "" if none is."""
    parts = model.named_modules() if isinstance(model, torch.nn.Module) else [("", model)]
    kinds = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
    return next((f"submodule {path}" if path else "the model" for path, part in parts if isinstance(part, kinds)), "")


def call_signature(source: torch.nn.Module | ExportedProgram, program: ExportedProgram) -> inspect.Signature | None:
    """Return the parameters that calls are made with, without annotations, which need not be picklable."""
    if isinstance(source, torch.nn.Module):
        parameters = inspect.signature(source.forward).parameters.values()
        return inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    root = program.module_call_graph[0].signature
    if root is None or root.forward_arg_names is None:
        return None
    return inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in root.forward_arg_names]
    )


def read_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Return the program in a .pt2 file; TilewrightError where there is none."""
    name, log = os.fspath(path), list[str]()
    members = _archive_members(path)
    if not members:
        raise TilewrightError(f"{name} holds no exported program: it is no .pt2 file, or not a whole one")
    if any(member.endswith("/data.pkl") for member in members):
        remedy = "load it, and compile the module itself"
        raise TilewrightError(
            f"{name} holds no exported program, but what torch.save or torch.jit.save wrote: {remedy}"
        )
    with _captured_log("torch.export", log):
        try:
            return torch.export.load(path)
        except Exception as error:  # a damaged file fails wherever PyTorch notices it
            if operator := re.search(r"failed to resolve torch\.ops\.([\w.]+)", "\n".join(log)):
                remedy = "import the module that registers it first (on the command line: --load MODULE)"
                raise TilewrightError(f"{name} calls {operator[1]}, which is not registered; {remedy}") from error
            raise TilewrightError(f"{name} holds no exported program: {error}") from error


def _as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """Return a module called as `function` is, with its signature and its name, as far as it has them."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    annotate_fn({})(inspect.unwrap(function))  # `torch.export` keeps lines of `forward`, and of what is annotated
    with suppress(ValueError):  # functions of PyTorch that are written in C have no signature
        forward.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    name = re.sub(r"\W", "", getattr(function, "__name__", type(function).__name__))
    module: torch.nn.Module = type(name, (torch.nn.Module,), {"forward": staticmethod(forward)})()
    return module


def _check_containers(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Raise ArgumentError unless `args` is a sequence and `kwargs` a mapping."""
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, str)):
        raise ArgumentError(f"args must be a tuple, as in compile(model, (x,)), but is a {type(args).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f'kwargs must be a dict, as in compile(model, (), {{"x": x}}), but is a {type(kwargs).__name__}'
        )


def _archive_members(path: str | os.PathLike[str]) -> Sequence[str]:
    """Return the names of the files in a zip file, none if it is not a whole one; OSError where there is no file."""
    with open(path, "rb") as file:
        try:
            return zipfile.ZipFile(file).namelist() if zipfile.is_zipfile(file) else ()
        except zipfile.BadZipFile:
            return ()


@contextmanager
def _captured_log(logger: str, messages: list[str]) -> Iterator[None]:
    """Append what a logger says to `messages` instead of printing it."""

    def capture(record: logging.LogRecord) -> bool:
        messages.append(logging.Formatter().format(record))
        return False

    source = logging.getLogger(logger)
    source.addFilter(capture)
    try:
        yield
    finally:
        source.removeFilter(capture)
