"""Run benchmarks: all of them, several, or one with rows, peers and threads of choice.

    python -m benchmarks [BENCHMARK ...]
    python -m benchmarks models ResNet-18 MiniLM --peers "OpenVINO,ONNX Runtime" --threads 1

matmul, convolution, models, training, open_sizes, compile_time, memory and tuning take the options of the second form.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.arguments import BenchmarkArguments, parse_arguments

ROW_BENCHMARKS = ("matmul", "convolution", "models", "training", "open_sizes", "compile_time", "memory", "tuning")
BENCHMARKS = (*ROW_BENCHMARKS, "elementwise", "overhead")


def main(words: list[str]) -> int:
    """Run each benchmark in turn; 2 where a name is unknown."""
    if words and words[0] in ROW_BENCHMARKS and not all(w in (*BENCHMARKS, "gpu") for w in words):
        run_benchmark(words[0], parse_arguments(words[0], words[1:]))
        return 0
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    unknown = [n for n in words if n not in (*BENCHMARKS, "gpu")]
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)} and gpu", file=sys.stderr)
        return 2
    for name in words or BENCHMARKS:
        run_benchmark(name, BenchmarkArguments())
    return 0


def run_benchmark(name: str, arguments: BenchmarkArguments) -> None:
    """One benchmark; those without rows to choose take no request."""
    main = importlib.import_module(f"benchmarks.{name}").main
    main(arguments) if name in ROW_BENCHMARKS else main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
