"""How much memory a call takes: `python -m benchmarks memory ResNet --peers "ONNX Runtime,OpenVINO"`.

Our intermediates lie in one workspace, whose size is known.  What others take is seen from outside, in a process for each: by how
much its resident memory grows while it gets ready and calls the network, weights that it copies among it, and by how much it
rises above that within one call, after what getting ready left free has gone back to the system: it would be used again unseen.
Linux with glibc only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.networks import NETWORKS
from benchmarks.peers import PEERS, PeerCall, silenced
from compiler.report.render import format_bytes, table

OURS = "ours"
LAZY_COMPILERS = ("Inductor",)
"""Those whose first call compiles, and whose second is like all others."""


def main(arguments: BenchmarkArguments) -> None:
    """Sizes of weights and of our workspace; for each system, the rise within a call, and in brackets the growth altogether."""
    threads = arguments.threads[0]
    systems = (OURS, *arguments.peers)
    made = table(
        f"memory, {threads} thread(s): rise within a call (growth with weights and code)",
        ["network"],
        ["weights", "workspace", "not shared", *systems],
    )
    for name in arguments.select_rows(NETWORKS):
        model, args = NETWORKS[name]()
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        plan = compiler.compile(model, args).executable.memory_plan
        seen = [measure_in_subprocess(name, system, threads) for system in systems]
        made.add_row(name, format_bytes(weights), format_bytes(plan.size), format_bytes(plan.size_without_reuse), *seen)
        print(name, *seen, sep=", ", file=sys.stderr)
    print_table(made)


def measure_in_subprocess(network: str, system: str, threads: int) -> str:
    """What a process of its own says about one system."""
    words = [sys.executable, "-m", "benchmarks.memory", network, system, str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return "-"
    rise, growth = json.loads(done.stdout.splitlines()[-1])
    return f"{format_bytes(rise)} ({format_bytes(growth)})"


def measure_memory(network: str, system: str) -> tuple[int, int]:
    """The rise within one call of `system`, and the growth of the process since the network was there alone."""
    model, args = NETWORKS[network]()
    with torch.no_grad():
        gc.collect()
        start = process_status_bytes("VmRSS")
        with silenced():
            call = prepare_call(system, model, args)
            if system in LAZY_COMPILERS:
                call()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
            before = process_status_bytes("VmRSS")
            result = call()
        rise = process_status_bytes("VmHWM") - before
        growth = process_status_bytes("VmRSS") - start
        del result
    return max(rise, 0), max(growth, 0)


def prepare_call(system: str, model: nn.Module, args: tuple[Tensor, ...]) -> PeerCall:
    """A system ready to call."""
    if system != OURS:
        return PEERS[system](model, args)
    compiled = compiler.compile(model, args)
    return lambda: compiled(*args)


def process_status_bytes(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(measure_memory(sys.argv[1], sys.argv[2])))
