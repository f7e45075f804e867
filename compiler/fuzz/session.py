"""One run of the fuzzer: many seeds, several processes, a file for each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from compiler.fuzz.check import Failure, Outcome, check, way_in_turn
from compiler.fuzz.generate import random_graph
from compiler.fuzz.reduce import reduce
from compiler.fuzz.spoil import check_spoilt
from compiler.fuzz.text import Case
from compiler.fuzz.workers import each


@dataclass(frozen=True)
class Found:
    """What came of one seed; `text` is the case that fails, shrunk where that was asked for, if it does."""

    seed: int
    outcome: Outcome
    text: str = ""


def check_seed(seed: int) -> Outcome:
    """The random graph of `seed` in the way that is its turn: the work of a worker."""
    return check(random_graph(seed), seed, (way_in_turn(seed),))


def fuzz(seeds: Iterable[int], jobs: int = 1, shrink: bool = True, spoil: bool = False) -> Iterator[Found]:
    """The outcome of every seed, as it is known.  `spoil` tries bad input instead of graphs."""
    work: Callable[[int], Outcome] = check_spoilt if spoil else check_seed
    for seed, answer in each(work, seeds, jobs):
        outcome = Outcome(answer) if isinstance(answer, Failure) else answer
        if outcome.failure is None or spoil:
            yield Found(seed, outcome, f"# seed {seed}\n# {outcome.failure}\n" if outcome.failure else "")
            continue
        case = Case(random_graph(seed), seed, (way_in_turn(seed).name,)).failing(outcome.failure)
        yield Found(seed, outcome, str(reduce(case) if shrink else case))
