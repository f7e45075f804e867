"""Time until the first result: `python -m benchmarks compile_time ResNet MiniLM --peers Inductor`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.networks import NETWORKS
from benchmarks.peers import prepare_peers
from compiler.report.render import table

T = TypeVar("T")


def small_llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a Llama of 4 layers with random weights, and 64 tokens."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=4, use_cache=False)
    return transformers.LlamaForCausalLM(config).eval(), (torch.randint(0, 1000, (1, 64)),)


ROWS = NETWORKS | {"Llama, 4 layers": small_llama}


def main(arguments: BenchmarkArguments) -> None:
    """Print seconds for each network: to export, then to our first result, here and in a second process; peers start cold."""
    names = arguments.select_rows(ROWS)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        load_modules(arguments.peers)
        rows = table(
            f"seconds until the first result, {threads} thread(s)",
            ["network"],
            ["export", "ours", "second process", *arguments.peers, *(f"{p} / ours" for p in arguments.peers)],
        )
        for name in names:
            seconds = first_result_seconds(name, arguments.peers)
            print(name, *(f"{label} {s:.2f}" for label, s in seconds.items()), sep=", ", file=sys.stderr)
            rows.add_row(name, *cells(seconds, arguments.peers))
        print_table(rows)


def first_result_seconds(name: str, peers: Sequence[str]) -> dict[str, float]:
    """Return seconds by column for a row; peers that cannot run the model are omitted."""
    model, args = ROWS[name]()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        export, program = timed(lambda: torch.export.export(model, args))
        ours = compile_seconds(program, args, folder)
        with get_context("spawn").Pool(1) as pool:
            second = pool.apply(second_process_seconds, (name, folder, torch.get_num_threads()))
    seconds = {"export": export, "ours": ours, "second process": second}
    return seconds | {p.name: p.first_result_seconds for p in prepare_peers(model, args, peers, cold=True)}


def second_process_seconds(name: str, folder: str, threads: int) -> float:
    """Return `compile_seconds` of a row in a process that has exported the model and loaded all modules."""
    torch.set_num_threads(threads)
    load_modules()
    model, args = ROWS[name]()
    with torch.no_grad():
        return compile_seconds(torch.export.export(model, args), args, folder)


def compile_seconds(program: ExportedProgram, args: Sequence[Tensor], folder: str) -> float:
    """Return the seconds from an exported program to its first result, with a cache in `folder`."""
    options = compiler.Options(cache=folder)
    return timed(lambda: compiler.compile(program, args, options=options)(*args))[0]


def load_modules(peers: Sequence[str] = ()) -> None:
    """Compile something small, so that no row counts the time to import the compilers."""
    model, x = nn.ReLU(), torch.zeros(8)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        compile_seconds(torch.export.export(model, (x,)), [x], folder)
        list(prepare_peers(model, [x], peers, cold=True))


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of a call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def cells(seconds: dict[str, float], peers: Sequence[str]) -> list[str]:
    """Format one row; peers are compared with the sum of export and compilation, as they trace the model themselves."""
    ours = seconds["export"] + seconds["ours"]
    times = [f"{seconds[w]:.2f}" if w in seconds else "-" for w in ("export", "ours", "second process", *peers)]
    return times + [f"{seconds[p] / ours:.1f}" if p in seconds else "-" for p in peers]
