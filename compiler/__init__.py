"""Tilewright: PyTorch graphs in, fused and tiled native code out.

compiled = compiler.compile(module, (x,))
y = compiled(x)
print(compiler.compare(module, (x,)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.errors import (
    ArgumentError,
    ExportError,
    ParseError,
    PassError,
    TilewrightError,
    UnsupportedOpError,
    VerifyError,
)
from compiler.options import Options

if TYPE_CHECKING:
    from compiler import testing
    from compiler.api import CompiledModule, compile, explore
    from compiler.report.torch_programs import compiled_programs
    from compiler.tools.comparison import Comparison, compare

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Comparison",
    "CompiledModule",
    "ExportError",
    "Options",
    "ParseError",
    "PassError",
    "TilewrightError",
    "UnsupportedOpError",
    "VerifyError",
    "compare",
    "compile",
    "compiled_programs",
    "explore",
    "testing",
]

_LAZY_EXPORTS = {
    "compile": "compiler.api",
    "CompiledModule": "compiler.api",
    "explore": "compiler.api",
    "compiled_programs": "compiler.report.torch_programs",
    "compare": "compiler.tools.comparison",
    "Comparison": "compiler.tools.comparison",
    "testing": "compiler.testing",
}
"""Module of each export that needs torch; loaded on first access, so that `import compiler` stays fast."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    import importlib

    from compiler.driver.interpreter_settings import compile_time_settings

    with compile_time_settings():
        module = importlib.import_module(_LAZY_EXPORTS[name])
    value = globals()[name] = module if module.__name__ == f"compiler.{name}" else getattr(module, name)
    return value
