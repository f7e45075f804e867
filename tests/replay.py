"""Process replay: the IR that a corpus of graphs becomes, recorded and compared later.

    python -m tests.replay record  [--to DIR] [--only WORD]
    python -m tests.replay compare [--to DIR] [--only WORD] [--final]

A change that only renames or moves code must leave every text alike up to the names in it.  `compare` prints the first
difference of each item, and which names became which.  The corpus is what the networks of benchmarks/, examples/*.ir, the
regression graphs and 200 random graphs become for three CPU targets and for Triton: Graph IR and Tile IR whenever a pass
changed them, then LLVM IR or Triton source.  Texts lie in DIR (a folder of the system's temporary files), outside git.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.dynamic_shapes import CASES
from benchmarks.networks import NETWORKS
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.triton.emit import emit_triton
from compiler.driver.specialization import with_dynamic_sizes
from compiler.errors import TilewrightError
from compiler.frontend.export import import_module
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.text.tile_printer import print_program
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import AnyPass
from compiler.passes.manager import PassInstrument
from compiler.pipeline import lower_and_schedule
from compiler.testing.fuzz import random_graph, read_case

ROOT = Path(__file__).parent.parent
TARGETS = ("x86-64-v4", "x86-64-v3", "aarch64")
SEEDS = range(200)

DYNAMIC = (
    "linear 256-1024",
    "MLP 256, 1024, 256",
    "transformer layer 256, batch 2",
    "LSTM 128-256",
    "3x3 64",
    "depthwise 3x3 96",
)
"""Cases of `benchmarks.dynamic_shapes` that are recorded with dynamic sizes."""

Section = tuple[str, str]
"""A heading, which is not compared, and a text."""


# the corpus


def network(name: str) -> Graph:
    """A network of the benchmarks, as it is imported."""
    return import_module(*NETWORKS[name]()).graph


def dynamic(name: str) -> Graph:
    """A case of `benchmarks.dynamic_shapes` with dynamic sizes."""
    case = CASES[name]
    torch.manual_seed(0)
    x = case.make_input(*case.tested_sizes[-1])
    return import_module(case.model().eval(), (x,), dynamic_shapes=(dict(case.dynamic_dims),)).graph


def corpus() -> dict[str, Callable[[], Graph]]:
    """Every graph by name, not yet made."""
    made: dict[str, Callable[[], Graph]] = {f"network {n}": partial(network, n) for n in NETWORKS}
    made |= {f"dynamic {n}": partial(dynamic, n) for n in DYNAMIC}
    for path in sorted((ROOT / "examples").glob("*.ir")):
        made[f"example {path.stem}"] = lambda path=path: parse_graph(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests" / "testing" / "regressions").glob("*.ir")):
        made[f"regression {path.stem}"] = lambda path=path: read_case(path).graph
    return made | {f"random {seed}": partial(random_graph, seed) for seed in SEEDS}


# recording


@dataclass
class Recorder(PassInstrument):
    """Keeps the text of the IR after every pass that changed it."""

    sections: list[Section] = field(default_factory=list)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is not old and (now := print_ir(new)) != print_ir(old):
            self.sections.append((f"after {pass_.name} on @{new.name}", now))


def on_cpu(graph: Graph, target: str) -> Iterator[Section]:
    """Every stage for a CPU."""
    recorder = Recorder()
    stages = lower_and_schedule(graph, Options(target=target, cache=""), [recorder])
    yield from recorder.sections
    yield "lowered", print_program(stages.lowered)
    yield "scheduled", print_program(stages.scheduled)
    for kernel in stages.scheduled.kernels.values():
        yield f"llvm of @{kernel.name}", emit_kernel(kernel, target_by_name(target))


def on_gpu(graph: Graph) -> Iterator[Section]:
    """Every stage of Tile IR for Triton; passes over the graph are the same as for CPUs."""
    recorder = Recorder()
    stages = lower_and_schedule(graph, Options(target="sm90"), [recorder])
    yield from (section for section in recorder.sections if not section[1].startswith("graph "))
    for kernel in stages.scheduled.kernels.values():
        yield f"triton of @{kernel.name}", emit_triton(kernel)


def attempt(sections: Iterator[Section]) -> Iterator[Section]:
    """What comes of it, and the first line of the error where it fails."""
    try:
        yield from sections
    except TilewrightError as error:
        yield f"fails: {error}", type(error).__name__
    except Exception as error:  # the same fault must be there later
        traceback.print_exc()
        yield f"fails: {error}", type(error).__name__


def replay(name: str) -> dict[str, list[Section]]:
    """The texts of one graph, by target."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            graph = corpus()[name]()
    except Exception as error:
        return {"imported": [(f"fails: {error}", type(error).__name__)]}
    graph = with_dynamic_sizes(graph)
    made = {t: [("imported", print_graph(graph)), *attempt(on_cpu(graph, t))] for t in TARGETS}
    return made | {"triton": list(attempt(on_gpu(graph)))}


# comparing

TOKEN = re.compile(r"[%@!]?[A-Za-z_][\w.\-]*|\d+\.?\d*(?:e[+-]?\d+)?|\S")


@dataclass
class Renaming:
    """Which name became which.  Two values or functions never become one; two keywords may."""

    names: dict[str, str] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)

    def admits(self, old: str, new: str, role: str) -> bool:
        """Return True if `new` may stand for `old` as it did before; `role` parts attributes from ops of the same name."""
        if old[0] in "%@!":
            alike = new[0] == old[0] and self.taken.setdefault(new, old) == old
            return alike and self.names.setdefault(old, new) == new
        if old[0] == "_" or old[0].isalpha():
            return self.names.setdefault(old + role, new) == new
        return old == new


def difference(old: str, new: str, words: Counter[tuple[str, str]]) -> str:
    """Return the first place where two texts are not alike up to names and line breaks; empty where they are.

    Counts keywords that differ in `words`.
    """
    renaming = Renaming()
    pairs = zip_longest(TOKEN.finditer(old), TOKEN.finditer(new))
    for a, b in pairs:
        if a is None or b is None or not renaming.admits(a[0], b[0], "=" * old.startswith("=", a.end())):
            return f"\n  - {_line(old, a)}\n  + {_line(new, b)}"
    words.update((a, b) for a, b in renaming.names.items() if a.rstrip("=") != b and a[0] not in "%@!")
    return ""


def _line(text: str, at: re.Match[str] | None) -> str:
    """Return the line of a token; "the end" behind the last one."""
    return text[: at.start()].rpartition("\n")[2] + text[at.start() :].partition("\n")[0] if at else "the end"


def compared(old: Sequence[Section], new: Sequence[Section], words: Counter[tuple[str, str]]) -> str:
    """The first difference between two recordings of one item; empty where there is none."""
    for (head, a), (_, b) in zip(old, new, strict=False):
        if a != b and (found := difference(a, b, words)):
            return f"{head}, {found}"
    return "" if len(old) == len(new) else f"{len(old)} texts became {len(new)}: {_first_extra(old, new)}"


def final(sections: Sequence[Section]) -> list[Section]:
    """The sections without those of single passes."""
    return [section for section in sections if not section[0].startswith("after ")]


def _first_extra(old: Sequence[Section], new: Sequence[Section]) -> str:
    return next((f"{a[0]} / {b[0]}" for a, b in zip(old, new, strict=False) if a[0] != b[0]), "at the end")


# files

RULE = "\f\n"
"""Stands between sections."""


def write(path: Path, sections: Sequence[Section]) -> None:
    """Sections into a compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(RULE.join(f"{head.splitlines()[0] if head else ''}\n{body}" for head, body in sections))


def read(path: Path) -> list[Section]:
    """Sections from a file that `write` made."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        parts = file.read().split(RULE)
    return [(head, body) for head, _, body in (p.partition("\n") for p in parts) if head]


def file_of(folder: Path, name: str, target: str) -> Path:
    """Where the texts of an item lie."""
    return folder / re.sub(r"\W+", "-", name) / f"{target}.gz"


def main(words: Sequence[str]) -> int:
    """Record or compare; 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument(
        "--to", type=Path, default=Path(tempfile.gettempdir()) / "tilewright-replay", help="folder of texts"
    )
    parser.add_argument("--only", default="", help="items whose name contains this")
    parser.add_argument("--final", action="store_true", help="compare what passes end with, not what each of them made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args(words)
    names = [n for n in corpus() if asked.only in n]
    if not names:
        parser.error(f"no item of the corpus contains {asked.only!r}")
    changed, renamed = 0, Counter[tuple[str, str]]()
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for name, texts in zip(names, pool.map(replay, names), strict=True):
            for target, sections in texts.items():
                path = file_of(asked.to, name, target)
                if asked.action == "record":
                    write(path, sections)
                    continue
                old = read(path) if path.exists() else [("", "never recorded")]
                if asked.final:
                    old, sections = final(old), final(sections)
                if problem := compared(old, sections, renamed):
                    changed += 1
                    print(f"{name}, {target}: {problem}", flush=True)
    print(
        f"{len(names)} items, {changed} texts differ"
        if asked.action == "compare"
        else f"{len(names)} items in {asked.to}"
    )
    for (old, new), times in renamed.most_common():
        print(f"  {old} -> {new} ({times} texts)")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
