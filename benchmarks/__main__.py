"""Run all benchmarks, several, or one with selected rows, peers and numbers of threads.

    python -m benchmarks [BENCHMARK ...]
    python -m benchmarks models ResNet-18 MiniLM --peers "OpenVINO,ONNX Runtime" --threads 1

    python -m benchmarks contention [ROW ...] [--peers ...] [--threads N]
    python -m benchmarks rank [record] [--count N]
    python -m benchmarks predictions [record] ...           predicted times beside measured ones
    python -m benchmarks explore_page
    python -m benchmarks survey [summarize] ...             random programs
    python -m benchmarks gpu [ROW ...] [--minutes 8] [--without max-autotune] [--small]
    python -m benchmarks gpu_static [CASE ...] [--targets sm90,gfx942] [--write]
    python -m benchmarks gpu_compile [ROW ...] [--targets sm90,gfx942] [--dtypes f32,f16,bf16] [--inductor]

matmul, convolution, models, training, dynamic_shapes, compile_time, memory, tuning, low_precision, effort and pass_times take the options of the second form.
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
    "effort",
    "pass_times",
)
"""Modules whose `main` takes BenchmarkArguments."""

COMMANDS = {
    "rank": "benchmarks.rank",
    "predictions": "benchmarks.predictions",
    "survey": "benchmarks.survey.command",
    "gpu": "benchmarks.gpu",
    "gpu_static": "benchmarks.gpu_static",
    "gpu_compile": "benchmarks.gpu_compile",
}
"""Modules whose `main` parses arguments of its own, and may return an exit code."""

BY_NAME = ("explore_page",)
"""Modules that run only by name."""

BENCHMARKS = (*(name for name in ROW_BENCHMARKS if name not in BY_NAME), "elementwise", "overhead")
"""Modules that run by default."""


def main(words: list[str]) -> int:
    """Run each benchmark in turn and return the exit code, 2 if a name is unknown."""
    if words and words[0] in ROW_BENCHMARKS and not all(w in (*BENCHMARKS, *BY_NAME) for w in words):
        run_benchmark(words[0], parse_arguments(words[0], words[1:]))
        return 0
    if words and words[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[words[0]]).main(words[1:]) or 0)
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
