"""Source location of FX nodes in the user's program: a line of code, and the path of a module."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Any, cast

import torch

import compiler
from compiler.errors import Loc

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*(?:\n\s+(?P<code>.+))?')
_SOURCE = re.compile(r"^[LG]\['(?P<name>\w+)'\]")
_PATH_PART = re.compile(r"[^.\[\]'\"]+")
_SKIPPED = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(compiler.__file__) + os.sep, "<")
"""What no user wrote: PyTorch, this compiler, and generated code."""

COMPILED_MODULE = ("self", "fn")
"""Names under which Dynamo knows the module that is compiled: in its own `forward`, and in PyTorch's wrapper around it."""

CONTAINERS = frozenset({"_modules", "_parameters", "_buffers"})
"""Attributes of a module that hold its submodules, parameters and buffers by name."""

MODULE_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
"""Metadata with the modules around a node, from the outermost; the second is of a node in a backward graph."""


def calling_frame(*skipped: str) -> tuple[FrameType | None, int]:
    """Return the innermost frame above the caller's whose file begins with none of `skipped`, and its levels above the caller.

    The level is the `stacklevel` of a warning, where 1 is the caller.
    """
    frame, level = cast("FrameType | None", sys._getframe(1)), 1
    while frame is not None and frame.f_code.co_filename.startswith(skipped):
        frame, level = frame.f_back, level + 1
    return frame, level


def source_of(node: torch.fx.Node) -> Loc | None:
    """Return the innermost line of the user's code in the stack trace of `node`, or of a library if there is none.

    The module is the innermost one; where PyTorch's own code makes up the whole trace, there is no line.
    """
    loc, module = innermost_line(node.meta.get("stack_trace") or ""), module_path(node)
    return replace(loc or Loc(), module=module) if module else loc


def module_path(node: torch.fx.Node) -> str:
    """Return the path of the innermost module around `node`, as `named_modules` has it; "" for the root."""
    stack: dict[str, tuple[str, Any]] = next((node.meta[key] for key in MODULE_STACKS if node.meta.get(key)), {})
    *_, (path, _) = stack.values() or [("", None)]
    return _without_source(str(path))


def argument_name(placeholder: torch.fx.Node) -> str:
    """Return the name in the user's program of an argument of a graph that Dynamo captured, or a path from such a name."""
    argument = placeholder.meta.get("grapharg")
    return _without_source(argument.source.name) if argument is not None else placeholder.name


@cache
def _without_source(path: str) -> str:
    """Return Dynamo's `L['self'].layers.0` as `layers.0`, and `G['model'].layers[0]` as `model.layers.0`."""
    path = _SOURCE.sub(lambda m: "" if m["name"] in COMPILED_MODULE else m["name"], path)
    return ".".join(part for part in _PATH_PART.findall(path) if part not in CONTAINERS)


@cache
def innermost_line(trace: str, in_libraries: bool = False) -> Loc | None:
    """Return the innermost line of a trace that is neither PyTorch's nor the compiler's, None without one.

    Unless `in_libraries`, a line that is in no library either is preferred.
    """
    frames = [m for m in _FRAME.finditer(trace) if not m["file"].startswith(_SKIPPED)]
    own = [m for m in frames if f"{os.sep}site-packages{os.sep}" not in m["file"] and not in_libraries]
    frame: Any = next(iter((own or frames)[-1:]), None)
    return Loc(frame["file"], int(frame["line"]), (frame["code"] or "").strip()) if frame else None
