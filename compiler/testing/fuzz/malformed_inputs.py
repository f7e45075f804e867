"""Malformed inputs: texts with mistakes, invalid attributes, and corrupted files of exported programs.

The compiler must accept or reject them with a TilewrightError; a ParseError must have a position within the text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.targets import host_target
from compiler.errors import ParseError, TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Leaf
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.verify.graph import verify_graph
from compiler.ir.verify.kernel import verify_kernel
from compiler.ir.verify.program import verify_program
from compiler.options import Options
from compiler.passes.manager import run_pipeline
from compiler.pipeline import lower_and_schedule
from compiler.testing.fuzz.check import CheckOutcome, Failure
from compiler.testing.fuzz.generate import random_graph

REPLACEMENT_TOKENS = (
    *"%{}[](),=:-+*<&|\"\\\n \0é", "->", "..", "//", "9" * 30, "0", "1", "-1", "7", "1.5", "inf", "nan", '"a"', "%x0", "%i0", "@w",
    "graph", "return", "constant", "f32", "bool", "i64", "resources", "loc", "for", "reduce", "yield", "store", "add", "cast", "tile",
)  # fmt: skip
"""Texts that replace a span of IR text."""

ATTRIBUTE_VALUES = (0, -1, 1, 7, 10**9, 0.5, float("nan"), True, None, "add", (), (0,), (-1, 2), (1, 1, 1), ((1.0,),))
"""Values that replace an attribute, of any type."""

MAX_COMPILED_ELEMENTS = 1 << 20
"""Limit of elements of any value of a graph that is lowered; chosen empirically."""


def check_malformed(seed: int) -> CheckOutcome:
    """Check the malformed input of `seed`, in a worker process."""
    kinds = (malformed_graph, malformed_program, malformed_kernel, malformed_attribute, malformed_export)
    kind = kinds[seed % len(kinds)]
    try:
        kind(random.Random(seed))
    except TilewrightError:
        return CheckOutcome(None, 1, 1)
    except Exception as error:  # any other error is a failure
        return CheckOutcome(Failure(type(error).__name__, kind.__name__, f"{error}"))
    return CheckOutcome(None, 1, 1)


def mutate_text(text: str, rng: random.Random) -> str:
    """Delete, double, move or replace a few spans of `text`, or change numbers."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        numbers = list(re.finditer(r"(?<![\w.%])\d+", text))
        if numbers and rng.random() < 0.5:
            number = rng.choice(numbers)
            start, end = number.span()
            new = rng.choice(("0", "1", "2", "3", "5", "17", "-1", "99999999999", str(int(number[0]) + 1)))
        else:
            start = rng.randrange(len(text) + 1)
            end = min(len(text), start + rng.randrange(9))
            other = rng.randrange(len(text) + 1)
            new = rng.choice((*REPLACEMENT_TOKENS, "", text[start:end] * 2, text[other : other + 12]))
        text = text[:start] + new + text[end:]
    return text


def _parse_checked(parse: Callable[[str], Any], text: str) -> Any:
    """Parse `text`; raises AssertionError if a ParseError has a position outside of it."""
    try:
        return parse(text)
    except ParseError as error:
        lines = text.split("\n")
        if not (1 <= error.line <= len(lines) and 1 <= error.column <= len(lines[error.line - 1]) + 1):
            raise AssertionError(f"the position of the error is outside the text: {error}") from error
        raise


def _compile_ir(ir: Graph | Kernel | Program) -> None:
    """Verify IR and compile it: a small static graph to scheduled Tile IR, static kernels to LLVM IR."""
    options = Options(cache="")
    if isinstance(ir, Graph):
        verify_graph(ir)
        types = [t for n in ir.nodes for t in n.result_types]
        if all(t.is_static and 0 <= int(t.numel) <= MAX_COMPILED_ELEMENTS for t in types):  # type: ignore[arg-type]  # static
            lower_and_schedule(ir, options)
        return
    if isinstance(ir, Program):
        verify_program(ir)
        kernels = list(ir.kernels.values())
    else:
        verify_kernel(ir)
        kernels = [ir]
    for kernel in kernels:
        if all(p.type.is_static for p in kernel.params):
            emit_kernel(run_pipeline(kernel, "peel,expand-math"), host_target())


@lru_cache(maxsize=64)
def _graph(seed: int) -> Graph:
    return random_graph(seed, 3)


def malformed_graph(rng: random.Random) -> None:
    """Parse and compile a graph's text with mistakes."""
    _compile_ir(_parse_checked(parse_graph, mutate_text(print_graph(_graph(rng.randrange(64)), full=True), rng)))


@lru_cache(maxsize=64)
def _program(seed: int) -> Program:
    graph = _graph(seed)
    stages = lower_and_schedule(
        graph.specialize(dict.fromkeys(graph.symbols, 3)) if graph.symbols else graph, Options(cache="")
    )
    return stages.scheduled if seed % 2 else stages.lowered


def malformed_program(rng: random.Random) -> None:
    """Parse and compile a program's text with mistakes."""
    _compile_ir(_parse_checked(parse_program, mutate_text(print_program(_program(rng.randrange(64)), full=True), rng)))


def malformed_kernel(rng: random.Random) -> None:
    """Parse and compile a kernel's text with mistakes."""
    kernels = list(_program(rng.randrange(64)).kernels.values())
    if kernels:
        _compile_ir(_parse_checked(parse_kernel, mutate_text(print_kernel(rng.choice(kernels)), rng)))


def malformed_attribute(rng: random.Random) -> None:
    """Compile a graph that ends in a node with a random attribute value."""
    graph = _graph(rng.randrange(64))
    nodes = [n for n in graph.nodes if n.attrs and not isinstance(n.structure, Leaf)]
    if not nodes:
        return
    node = rng.choice(nodes)
    name = rng.choice(list(node.attrs))
    value = rng.choice(ATTRIBUTE_VALUES)
    if isinstance(old := node.attrs[name], tuple) and old and rng.random() < 0.6:
        k = rng.randrange(len(old))
        value = (*old[:k], value, *old[k + 1 :])
    changed = node.op(*node.operands, **{**node.attrs, name: value})
    _compile_ir(replace(graph, outputs=(changed,), output_aliases={}))


def malformed_export(rng: random.Random) -> None:
    """Compile a corrupted file of an exported program."""
    import compiler

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        path.write_bytes(corrupt_bytes(_exported_bytes(), rng))
        compiler.compile(path, options=Options(cache=""))


def corrupt_bytes(content: bytes, rng: random.Random) -> bytes:
    """Truncate `content`, or change some of its bytes."""
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content))]
    corrupted = bytearray(content)
    for _ in range(rng.choice((1, 1, 4, 64))):
        corrupted[rng.randrange(len(corrupted))] = rng.randrange(256)
    return bytes(corrupted)


@lru_cache(maxsize=1)
def _exported_bytes() -> bytes:
    """Return the bytes that `torch.export.save` writes for a small program."""
    import torch

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())
        torch.export.save(torch.export.export(model.eval(), (torch.zeros(2, 4),)), path)
        return path.read_bytes()
