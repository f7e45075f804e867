"""Bad input: text with mistakes in it, attributes that make no sense, exported programs that are damaged.

Whatever is wrong with what it is given, the compiler says so with an error of its own, and where it is in text, says the line
and column.
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
ATTRIBUTE_VALUES = (0, -1, 1, 7, 10**9, 0.5, float("nan"), True, None, "add", (), (0,), (-1, 2), (1, 1, 1), ((1.0,),))
"""What an attribute may be set to, whatever it should be."""

MAX_COMPILED_ELEMENTS = 1 << 20
"""The most elements of any value that is compiled further."""


def check_malformed(seed: int) -> CheckOutcome:
    """The bad input of `seed`: the work of a worker."""
    ways: tuple[Callable[[random.Random], None], ...] = (
        malformed_graph,
        malformed_program,
        malformed_kernel,
        malformed_attribute,
        malformed_export,
    )
    rng = random.Random(seed)
    way = ways[seed % len(ways)]
    try:
        way(rng)
    except TilewrightError:
        return CheckOutcome(None, 1, 1)
    except Exception as error:  # what should have been said in the compiler's own words
        return CheckOutcome(Failure(type(error).__name__, way.__name__, f"{error}"))
    return CheckOutcome(None, 1, 1)


def mutate_text(text: str, rng: random.Random) -> str:
    """`text` with a few spans deleted, doubled, moved or replaced, and numbers changed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        numbers = list(re.finditer(r"(?<![\w.%])\d+", text))
        if numbers and rng.random() < 0.5:
            at = rng.choice(numbers)
            start, end, new = (
                at.start(),
                at.end(),
                rng.choice(("0", "1", "2", "3", "5", "17", "-1", "99999999999", str(int(at[0]) + 1))),
            )
        else:
            start = rng.randrange(len(text) + 1)
            end = min(len(text), start + rng.randrange(9))
            other = rng.randrange(len(text) + 1)
            new = rng.choice((*REPLACEMENT_TOKENS, "", text[start:end] * 2, text[other : other + 12]))
        text = text[:start] + new + text[end:]
    return text


def _parse_checked(parse: Callable[[str], Any], text: str) -> Any:
    """What `text` spells; a ParseError must name a place inside it."""
    try:
        return parse(text)
    except ParseError as error:
        lines = text.split("\n")
        if not (1 <= error.line <= len(lines) and 1 <= error.column <= len(lines[error.line - 1]) + 1):
            raise AssertionError(f"the error stands outside the text: {error}") from error
        raise


def _compile_ir(ir: Graph | Kernel | Program) -> None:
    """As far as machine code's text, where `ir` obeys the rules and is small."""
    options = Options(cache="")
    if isinstance(ir, Graph):
        verify_graph(ir)
        types = [t for n in ir.nodes for t in (n.result_type if isinstance(n.result_type, tuple) else (n.result_type,))]
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
    """A graph's text with mistakes in it."""
    _compile_ir(_parse_checked(parse_graph, mutate_text(print_graph(_graph(rng.randrange(64)), full=True), rng)))


@lru_cache(maxsize=64)
def _program(seed: int) -> Program:
    graph = _graph(seed)
    stages = lower_and_schedule(
        graph.specialize(dict.fromkeys(graph.symbols, 3)) if graph.symbols else graph, Options(cache="")
    )
    return stages.scheduled if seed % 2 else stages.lowered


def malformed_program(rng: random.Random) -> None:
    """A program's text with mistakes in it."""
    _compile_ir(_parse_checked(parse_program, mutate_text(print_program(_program(rng.randrange(64)), full=True), rng)))


def malformed_kernel(rng: random.Random) -> None:
    """A kernel's text with mistakes in it."""
    kernels = list(_program(rng.randrange(64)).kernels.values())
    if kernels:
        _compile_ir(_parse_checked(parse_kernel, mutate_text(print_kernel(rng.choice(kernels)), rng)))


def malformed_attribute(rng: random.Random) -> None:
    """A node whose attribute has a value that makes no sense."""
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
    made = node.op(*node.operands, **{**node.attrs, name: value})
    _compile_ir(replace(graph, outputs=(made,), output_aliases={}))


def malformed_export(rng: random.Random) -> None:
    """An exported program whose file is cut off or has other bytes here and there."""
    import compiler

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        path.write_bytes(corrupt_bytes(_exported_bytes(), rng))
        compiler.compile(path, options=Options(cache=""))


def corrupt_bytes(content: bytes, rng: random.Random) -> bytes:
    """`content` cut off, or with some bytes changed."""
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content))]
    spoiled = bytearray(content)
    for _ in range(rng.choice((1, 1, 4, 64))):
        spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
    return bytes(spoiled)


@lru_cache(maxsize=1)
def _exported_bytes() -> bytes:
    """A small program as `torch.export.save` writes it."""
    import torch

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())
        torch.export.save(torch.export.export(model.eval(), (torch.zeros(2, 4),)), path)
        return path.read_bytes()
