"""What a command line asks of a benchmark: which rows, which peers, how many threads."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.peers import PEERS


@dataclass(frozen=True)
class BenchmarkArguments:
    """`rows`: parts of names, no matter the case (none: every row); `peers` in order; `threads`: one table each."""

    rows: tuple[str, ...] = ()
    peers: tuple[str, ...] = tuple(PEERS)
    threads: tuple[int, ...] = (2, 1)

    def select_rows(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are asked for; SystemExit where there are none."""
        known = list(names)
        found = [n for n in known if not self.rows or any(part.lower() in n.lower() for part in self.rows)]
        if not found:
            raise SystemExit(f"no row is called {', '.join(self.rows)}; there are {', '.join(known)}")
        return found


def parse_arguments(benchmark: str, arguments: Sequence[str]) -> BenchmarkArguments:
    """The request in `python -m benchmarks BENCHMARK ...`; wrong usage exits with 2."""
    c = argparse.ArgumentParser(f"python -m benchmarks {benchmark}")
    c.add_argument("rows", nargs="*", metavar="ROW", help="part of a row's name (all rows)")
    c.add_argument(
        "--peers", type=parse_peers, default=tuple(PEERS), help=f"comma-separated, of {', '.join(PEERS)} (all)"
    )
    c.add_argument("--threads", type=parse_thread_counts, default=(2, 1), help="comma-separated, one table each (2,1)")
    given = c.parse_args(arguments)
    return BenchmarkArguments(tuple(given.rows), given.peers, given.threads)


def parse_peers(text: str) -> tuple[str, ...]:
    """Names of peers, no matter the case."""
    known = {name.lower(): name for name in PEERS}
    asked = [part.strip().lower() for part in text.split(",") if part.strip()]
    require_known(asked, known)
    return tuple(known[name] for name in asked)


def require_known(requested: Collection[str], known: Collection[str]) -> None:
    """ArgumentTypeError names what is not known."""
    if unknown := [name for name in requested if name not in known]:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")


def parse_thread_counts(text: str) -> tuple[int, ...]:
    """Positive numbers."""
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"threads are counted from 1: {text}")
    return numbers


def print_table(table: Table, *lines: str) -> None:
    """Print a table and what follows from it, as wide as they are even where the terminal is narrower."""
    console = Console()
    wide = Console(width=max(console.width, console.measure(table, options=console.options.update(width=400)).maximum))
    wide.print(table)
    for line in lines:
        wide.print(line, highlight=False, soft_wrap=True)
