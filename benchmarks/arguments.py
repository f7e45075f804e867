"""Command-line arguments of benchmarks: rows, peers and numbers of threads."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.peers import PEERS


@dataclass(frozen=True)
class BenchmarkArguments:
    """Arguments of a benchmark: substrings of row names (none: all rows), peers, and numbers of threads, one table each."""

    rows: tuple[str, ...] = ()
    peers: tuple[str, ...] = tuple(PEERS)
    threads: tuple[int, ...] = (2, 1)

    def select_rows(self, names: Iterable[str]) -> list[str]:
        """Return the names that contain one of `rows`, ignoring case.  Raises SystemExit if there are none."""
        names = list(names)
        selected = [n for n in names if not self.rows or any(row.lower() in n.lower() for row in self.rows)]
        if not selected:
            raise SystemExit(f"no row matches {', '.join(self.rows)}; available: {', '.join(names)}")
        return selected


def parse_arguments(benchmark: str, arguments: Sequence[str]) -> BenchmarkArguments:
    """Parse the arguments of `python -m benchmarks BENCHMARK ...`; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(f"python -m benchmarks {benchmark}")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="part of a row's name (all rows)")
    text = f"comma-separated, of {', '.join(PEERS)} (all)"
    parser.add_argument("--peers", type=parse_peers, default=tuple(PEERS), help=text)
    text = "comma-separated, one table each (2,1)"
    parser.add_argument("--threads", type=parse_thread_counts, default=(2, 1), help=text)
    args = parser.parse_args(arguments)
    return BenchmarkArguments(tuple(args.rows), args.peers, args.threads)


def parse_peers(text: str) -> tuple[str, ...]:
    """Parse comma-separated names of peers, ignoring case."""
    by_lower = {name.lower(): name for name in PEERS}
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    require_known(names, by_lower)
    return tuple(by_lower[name] for name in names)


def require_known(requested: Collection[str], known: Collection[str]) -> None:
    """Raise ArgumentTypeError if a requested name is not known."""
    if unknown := [name for name in requested if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; available: {', '.join(known)}")


def parse_thread_counts(text: str) -> tuple[int, ...]:
    """Parse comma-separated positive numbers."""
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"a number of threads must be positive: {text}")
    return numbers


def print_table(table: Table, *lines: str) -> None:
    """Print a table and lines below it, without wrapping, even if the terminal is narrower."""
    console = Console()
    wide = Console(width=max(console.width, console.measure(table, options=console.options.update(width=400)).maximum))
    wide.print(table)
    for line in lines:
        wide.print(line, highlight=False, soft_wrap=True)
