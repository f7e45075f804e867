"""Measure random programs against peers and the roofline, and summarize what the slow ones have in common.

    python -m benchmarks survey --count 100 --threads 1 --peers "eager,Inductor,ONNX Runtime"
    python -m benchmarks survey --seed 7 --kind programs --only 12         measure one program again
    python -m benchmarks survey --seed 7 --kind programs --show 12         print it as Python
    python -m benchmarks survey summarize survey-7.jsonl survey-8.jsonl

Rows are appended to a file as they come.  A run with the same seed, threads and file goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.arguments import parse_peers, print_table
from benchmarks.peer_comparison import format_milliseconds
from benchmarks.peers import PEERS
from benchmarks.survey.drawing import KINDS, draw_program
from benchmarks.survey.rows import Row, append_row, read_rows
from benchmarks.survey.summary import summarize
from benchmarks.survey.worker import Workers


def main(arguments: Sequence[str]) -> None:
    """Run the command; wrong usage exits with 2."""
    if arguments and arguments[0] == "summarize":
        c = argparse.ArgumentParser("python -m benchmarks survey summarize")
        c.add_argument("files", nargs="+", type=Path, metavar="FILE")
        c.add_argument("--rows", type=int, default=15, help="rows of a table (15)")
        given = c.parse_args(arguments[1:])
        print_summary([*read_rows(given.files)], given.rows)
        return
    given = parse_survey(arguments)
    if given.show is not None:
        print(draw_program(given.seed, given.show, given.kind).source)
        return
    print(f"seed {given.seed}", file=sys.stderr)
    path = given.to or Path(f"survey-{given.seed}.jsonl")
    only = [given.only] if given.only is not None else range(given.count)
    print_summary(survey(given, path, only), 15)


def parse_survey(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a run."""
    c = argparse.ArgumentParser("python -m benchmarks survey", description=__doc__.splitlines()[0] if __doc__ else "")
    c.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the programs (a fresh one)"
    )
    c.add_argument("--count", type=int, default=100, help="number of programs (100)")
    c.add_argument("--kind", choices=KINDS, default="", help="of the programs (all in turns)")
    c.add_argument("--threads", type=int, default=1, help="of ours and of peers (1)")
    c.add_argument(
        "--peers", type=parse_peers, default=tuple(PEERS), help=f"comma-separated, of {', '.join(PEERS)} (all)"
    )
    c.add_argument("--timeout", type=float, default=120, help="seconds for each stage of a program (120)")
    c.add_argument("--to", type=Path, metavar="FILE", help="rows are appended to it (survey-SEED.jsonl)")
    c.add_argument("--only", type=int, metavar="INDEX", help="measure this program alone")
    c.add_argument("--show", type=int, metavar="INDEX", help="print this program")
    return c.parse_args(arguments)


def survey(given: argparse.Namespace, path: Path, indices: Sequence[int]) -> list[Row]:
    """Measure the programs that `path` has no row of, unless one is asked for alone, and return all rows."""
    known = [*read_rows([path])] if path.exists() else []
    kinds = list(KINDS)
    done = {(r.seed, r.kind, r.index, r.threads) for r in known} if given.only is None else set()
    rows = []
    with closing(Workers(given.peers, given.threads, given.timeout)) as workers:
        for k in indices:
            kind = given.kind or kinds[k % len(kinds)]
            if (given.seed, kind, k, given.threads) in done:
                continue
            row = workers.measure(draw_program(given.seed, k, kind))
            append_row(path, row)
            rows.append(row)
            print(f"{k} {kind}: {describe(row)}", file=sys.stderr, flush=True)
    return [*known, *rows] if given.only is None else rows


def describe(row: Row) -> str:
    """Return a row in a line."""
    if not row.is_measured:
        return f"{row.family}: {row.failures}"
    wrong = f", WRONG by {row.error:.0e}" if row.is_wrong else ""
    return f"{row.family}: {format_milliseconds(row.seconds)} ms, {row.fastest_peer} / ours {row.speed:.2f}{wrong}"


def print_summary(rows: Sequence[Row], count: int) -> None:
    tables, lines = summarize(rows, count)
    for t in tables:
        print_table(t)
    print("\n".join(lines))
