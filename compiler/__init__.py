"""Tilewright: PyTorch graphs in, fused and tiled native code out.

compiled = compiler.compile(module, (x,))
y = compiled(x)
print(compiler.compare(module, (x,)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.errors import ArgumentError, ParseError, PassError, TilewrightError, UnsupportedOpError, VerifyError
from compiler.options import Options

if TYPE_CHECKING:
    from compiler import testing
    from compiler.api import CompiledModule, compile
    from compiler.tools.comparison import Comparison, compare

__all__ = [
    "ArgumentError",
    "Comparison",
    "CompiledModule",
    "Options",
    "ParseError",
    "PassError",
    "TilewrightError",
    "UnsupportedOpError",
    "VerifyError",
    "compare",
    "compile",
    "testing",
]

_LAZY_EXPORTS = {
    "compile": "compiler.api",
    "CompiledModule": "compiler.api",
    "compare": "compiler.tools.comparison",
    "Comparison": "compiler.tools.comparison",
    "testing": "compiler.testing",
}
"""Where the names live whose modules import torch, or which are such modules: they are loaded when first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    import importlib

    home = importlib.import_module(_LAZY_EXPORTS[name])
    value = globals()[name] = home if _LAZY_EXPORTS[name] == f"compiler.{name}" else getattr(home, name)
    return value
