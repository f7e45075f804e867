"""Run benchmarks: all of them, or those named on the command line."""

from __future__ import annotations

import importlib
import sys

NAMES = ("matmul", "elementwise", "overhead", "compile_time", "models")


def main(names: list[str]) -> int:
    """Run each benchmark in turn; 2 where a name is unknown."""
    unknown = [n for n in names if n not in (*NAMES, "gpu")]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)} and gpu", file=sys.stderr)
        return 2
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


sys.exit(main(sys.argv[1:]))
