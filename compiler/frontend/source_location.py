"""Source location of FX nodes in the user's program."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import torch

from compiler.errors import Loc

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*(?:\n\s+(?P<code>.+))?')
_TORCH = os.path.dirname(torch.__file__) + os.sep


def source_of(node: torch.fx.Node) -> Loc | None:
    """Return the innermost line of the user's code in the stack trace of `node`, or of a library if there is none."""
    return _innermost(node.meta.get("stack_trace") or "")


@cache
def _innermost(trace: str) -> Loc | None:
    frames = [m for m in _FRAME.finditer(trace) if not m["file"].startswith((_TORCH, "<"))]
    own = [m for m in frames if f"{os.sep}site-packages{os.sep}" not in m["file"]]
    frame: Any = next(iter((own or frames)[-1:]), None)
    return Loc(frame["file"], int(frame["line"]), (frame["code"] or "").strip()) if frame else None
