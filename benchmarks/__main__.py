"""Run benchmarks: all of them, several, or one with rows, peers and threads of choice.

    python -m benchmarks [BENCHMARK ...]
    python -m benchmarks models ResNet-18 MiniLM --peers "OpenVINO,ONNX Runtime" --threads 1

matmul, convolution, models, training, open_sizes, compile_time, memory and tuning take the options of the second form.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.request import Request, request

WITH_ROWS = ("matmul", "convolution", "models", "training", "open_sizes", "compile_time", "memory", "tuning")
NAMES = (*WITH_ROWS, "elementwise", "overhead")


def main(words: list[str]) -> int:
    """Run each benchmark in turn; 2 where a name is unknown."""
    if words and words[0] in WITH_ROWS and not all(w in (*NAMES, "gpu") for w in words):
        run(words[0], request(words[0], words[1:]))
        return 0
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    unknown = [n for n in words if n not in (*NAMES, "gpu")]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)} and gpu", file=sys.stderr)
        return 2
    for name in words or NAMES:
        run(name, Request())
    return 0


def run(name: str, asked: Request) -> None:
    """One benchmark; those without rows to choose take no request."""
    main = importlib.import_module(f"benchmarks.{name}").main
    main(asked) if name in WITH_ROWS else main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
