"""Run all benchmarks, several, or one with selected rows, peers and numbers of threads.

    python -m benchmarks [BENCHMARK ...]
    python -m benchmarks models ResNet-18 MiniLM --peers "OpenVINO,ONNX Runtime" --threads 1

    python -m benchmarks contention [ROW ...] [--peers ...] [--threads N]
    python -m benchmarks rank [record] [--count N]
    python -m benchmarks survey [summarize] ...             random programs

matmul, convolution, models, training, dynamic_shapes, compile_time, memory, tuning and low_precision take the options of the second form.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.arguments import BenchmarkArguments, parse_arguments

ROW_BENCHMARKS = (
    "matmul",
    "convolution",
    "models",
    "training",
    "dynamic_shapes",
    "compile_time",
    "memory",
    "tuning",
    "low_precision",
    "contention",
)
"""Modules whose `main` takes BenchmarkArguments."""

COMMANDS = {"rank": "benchmarks.rank", "survey": "benchmarks.survey.command"}
"""Modules whose `main` parses arguments of its own."""

BENCHMARKS = (*ROW_BENCHMARKS, "elementwise", "overhead")
"""Modules that run by default."""

BY_NAME = ("gpu", "explore_page")
"""Modules that run only by name."""


def main(words: list[str]) -> int:
    """Run each benchmark in turn and return the exit code, 2 if a name is unknown."""
    if words and words[0] in ROW_BENCHMARKS and not all(w in (*BENCHMARKS, *BY_NAME) for w in words):
        run_benchmark(words[0], parse_arguments(words[0], words[1:]))
        return 0
    if words and words[0] in COMMANDS:
        importlib.import_module(COMMANDS[words[0]]).main(words[1:])
        return 0
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    if unknown := [n for n in words if n not in (*BENCHMARKS, *BY_NAME)]:
        print(f"unknown: {', '.join(unknown)}; available: {', '.join((*BENCHMARKS, *BY_NAME))}", file=sys.stderr)
        return 2
    for name in words or BENCHMARKS:
        run_benchmark(name, BenchmarkArguments())
    return 0


def run_benchmark(name: str, arguments: BenchmarkArguments) -> None:
    """Run one benchmark; only those in ROW_BENCHMARKS take arguments."""
    main = importlib.import_module(f"benchmarks.{name}").main
    main(arguments) if name in ROW_BENCHMARKS else main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
