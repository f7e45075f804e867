"""A run of the fuzzer over many seeds in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from compiler.errors import TargetError
from compiler.testing.fuzz.case_file import FuzzCase
from compiler.testing.fuzz.check import CheckOutcome, Failure, check_graph, configuration_for_seed
from compiler.testing.fuzz.generate import random_graph
from compiler.testing.fuzz.malformed_inputs import check_malformed
from compiler.testing.fuzz.reduce import reduce
from compiler.testing.fuzz.workers import map_in_processes


@dataclass(frozen=True)
class FuzzResult:
    """Result for one seed; `text` is the failing case, reduced if requested, or ""."""

    seed: int
    outcome: CheckOutcome
    text: str = ""


def check_seed(seed: int, target: str = "host") -> CheckOutcome:
    """Check the random graph of `seed` in the configuration of `seed`, in a worker process."""
    return check_graph(random_graph(seed), seed, (configuration_for_seed(seed, target),))


def fuzz(
    seeds: Iterable[int], jobs: int = 1, shrink: bool = True, malformed: bool = False, target: str = "host"
) -> Iterator[FuzzResult]:
    """Yield the result of every seed as it completes; with `malformed`, of malformed inputs instead of graphs.

    `target` is "host" or a GPU; TargetError if it cannot run here.
    """
    if missing := configuration_for_seed(0, target).missing_features:
        raise TargetError(f"random graphs for {target} need {missing}, which this machine lacks")
    work: Callable[[int], CheckOutcome] = check_malformed if malformed else partial(check_seed, target=target)
    for seed, answer in map_in_processes(work, seeds, jobs):
        outcome = CheckOutcome(answer) if isinstance(answer, Failure) else answer
        if outcome.failure is None or malformed:
            yield FuzzResult(seed, outcome, f"# seed {seed}\n# {outcome.failure}\n" if outcome.failure else "")
            continue
        case = FuzzCase(random_graph(seed), seed, (configuration_for_seed(seed, target).name,)).with_failure(
            outcome.failure
        )
        yield FuzzResult(seed, outcome, str(reduce(case) if shrink else case))
