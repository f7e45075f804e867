"""Memory of a call: `python -m benchmarks memory ResNet --peers "ONNX Runtime,OpenVINO"`.

Our intermediates are in one workspace of known size.  All systems are measured in a subprocess, by resident memory: its growth
from preparation and calls, including copies of weights, and its peak within one call.  Before that call, free memory is returned
to the system, as reuse of it would not be visible.  Linux with glibc only.
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
"""Peers that compile in their first call."""


def main(arguments: BenchmarkArguments) -> None:
    """Print sizes of weights and our workspace, and for each system the peak within a call and the resident growth."""
    threads = arguments.threads[0]
    systems = (OURS, *arguments.peers)
    made = table(
        f"memory, {threads} thread(s): peak within a call (resident growth with weights and code)",
        ["network"],
        ["weights", "workspace", "without reuse", *systems],
    )
    for name in arguments.select_rows(NETWORKS):
        model, args = NETWORKS[name]()
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        plan = compiler.compile(model, args).executable.memory_plan
        measured = [measure_in_subprocess(name, system, threads) for system in systems]
        sizes = map(format_bytes, (weights, plan.size, plan.size_without_reuse))
        made.add_row(name, *sizes, *measured)
        print(name, *measured, sep=", ", file=sys.stderr)
    print_table(made)


def measure_in_subprocess(network: str, system: str, threads: int) -> str:
    """Measure one system in a subprocess; "-" if it fails."""
    command = [sys.executable, "-m", "benchmarks.memory", network, system, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return "-"
    peak, growth = json.loads(done.stdout.splitlines()[-1])
    return f"{format_bytes(peak)} ({format_bytes(growth)})"


def measure_memory(network: str, system: str) -> tuple[int, int]:
    """Return the peak within one call of `system`, and the growth since the network was loaded, both in bytes."""
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
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
            before = process_status_bytes("VmRSS")
            result = call()
        peak = process_status_bytes("VmHWM") - before
        growth = process_status_bytes("VmRSS") - start
        del result
    return max(peak, 0), max(growth, 0)


def prepare_call(system: str, model: nn.Module, args: tuple[Tensor, ...]) -> PeerCall:
    """Prepare a system for `args`, and return the call."""
    if system != OURS:
        return PEERS[system](model, args)
    compiled = compiler.compile(model, args)
    return lambda: compiled(*args)


def process_status_bytes(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(measure_memory(sys.argv[1], sys.argv[2])))
