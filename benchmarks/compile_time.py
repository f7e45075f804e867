"""How long until the first result: cold, and with objects in the cache."""

from __future__ import annotations

import tempfile
import time

import torch
from rich.console import Console
from rich.table import Table

import compiler
from benchmarks.peers import ready
from compiler.demo import minilm

TOKENS = 128


def main() -> None:
    """Seconds to compile MiniLM from its exported program, beside the first call of Inductor."""
    model, _ = minilm()
    ids = torch.randint(0, 30000, (1, TOKENS))
    args = (ids, torch.ones_like(ids))
    with torch.no_grad():
        start = time.perf_counter()
        program = torch.export.export(model, args)
        exported = time.perf_counter() - start
    table = Table(title=f"MiniLM, 1 x {TOKENS} tokens: seconds until the first result")
    table.add_column("what")
    table.add_column("s", justify="right")
    table.add_row("torch.export (before both of ours)", f"{exported:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ours, cold", "ours, objects cached"):
            start = time.perf_counter()
            compiler.compile(program, args, options=compiler.Options(cache=folder))(*args)
            table.add_row(name, f"{time.perf_counter() - start:.2f}")
    for peer in ready(model, args, ["Inductor"]):
        table.add_row(peer.name, f"{peer.seconds:.2f}")
    Console().print(table)
