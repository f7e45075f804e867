"""OpenMP's workers take part in calls while they spin: natively, with PyTorch's runtime and without workers of our own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.runtime import threads
from compiler.runtime.cpu_limits import available_cpus
from compiler.runtime.loader import Library, link_objects
from compiler.runtime.openmp import openmp_functions, openmp_workers
from tests.runtime.recorded_chunks import RECORD_CHUNKS

EXPORTS = ["record", "tilewright_team", "tilewright_preemptions", "tilewright_reset_team"]
PREEMPTIONS = "@tilewright_preemptions = alias i64, ptr @preemptions\n"
LONGEST_RUN = 9
"""Place of this parameter in the table."""

TRIES = 5000

pytestmark = pytest.mark.skipif(
    not openmp_functions() or available_cpus() < 2, reason="needs two CPUs and PyTorch's OpenMP runtime, on Linux"
)


class Team:
    """A team of two without workers; a region has two participants only if OpenMP's worker is one."""

    def __init__(self) -> None:
        team = threads.team_object(threads.CLOCKS[threads.architecture()], openmp_workers() + PREEMPTIONS)
        work = emit_object(RECORD_CHUNKS.replace("MOST", "64"), host_target())
        self.library: Library = link_objects([team, work], EXPORTS, threads.system_functions())
        usual = threads.team().table
        self.table = type(usual).from_address(self.library["tilewright_team"])
        self.table[:] = usual[:]
        self.table[0], self.table[LONGEST_RUN] = 2, usual[LONGEST_RUN] // 100
        self.preemptions = ctypes.c_int64.from_address(self.library["tilewright_preemptions"])
        self.preemptions.value = 1

    def participants(self) -> int:
        """Run a region, and return how many threads ran chunks of it."""
        data = (ctypes.c_int64 * 1101)()
        data[1100] = 2000
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.library["record"])(ctypes.addressof(data))
        joined, chunks, *runs = data
        assert runs[:chunks] == [1] * chunks
        return joined


@pytest.fixture
def team() -> Iterator[Team]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield Team()
    torch.set_num_threads(before)


def test_workers_that_spin_take_part_until_they_sleep(team: Team) -> None:
    x = torch.randn(1 << 18)
    assert any(torch.relu(x).numel() and team.participants() == 2 for _ in range(TRIES))
    alone = 0
    for _ in range(TRIES):
        alone = alone + 1 if team.participants() == 1 else 0
        if alone == 300:
            break
    assert alone == 300


def test_nothing_is_borrowed_unless_a_worker_was_put_aside(team: Team) -> None:
    x = torch.randn(1 << 18)
    team.preemptions.value = 0
    assert all(torch.relu(x).numel() and team.participants() == 1 for _ in range(100))


def test_a_forked_child_borrows_nothing(team: Team) -> None:
    x = torch.randn(1 << 18)
    ctypes.CFUNCTYPE(None)(team.library["tilewright_reset_team"])()
    assert all(torch.relu(x).numel() and team.participants() == 1 for _ in range(300))


def test_another_number_of_threads_borrows_nothing(team: Team) -> None:
    x = torch.randn(1 << 18)
    torch.set_num_threads(1)
    assert all(torch.relu(x).numel() and team.participants() == 1 for _ in range(300))
