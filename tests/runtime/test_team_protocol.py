"""Every order of steps of the thread team's protocol: each chunk runs once, before its region ends, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.runtime.interleavings import (
    OPENMP_WORKERS,
    PROTOCOL,
    Checker,
    Pointer,
    Value,
    Violation,
    parse,
    work_function,
)

COUNT = """
  %slot = getelementptr i64, ptr %data, i64 %chunk
  %old = atomicrmw add ptr %slot, i64 1 seq_cst
"""
SCENARIO = """
define void @caller(i64 %chunks, i64 %threads) {
entry:
  call void @tilewright_parallel(ptr @work, ptr @runs1, i64 %chunks, i64 %threads)
  call void @finished(ptr @runs1, i64 %chunks)
  call void @tilewright_parallel(ptr @work, ptr @runs2, i64 %chunks, i64 %threads)
  call void @finished(ptr @runs2, i64 %chunks)
  ret void
}
"""


OPENMP = """
define i32 @omp_get_thread_num() {
entry:
  ret i32 1
}
define void @GOMP_parallel_end() {
entry:
  br label %look
look:
  %left = load atomic i32, ptr @left acquire, align 4
  %has_left = icmp ne i32 %left, 0
  br i1 %has_left, label %done, label %look
done:
  ret void
}
define void @openmp_worker(ptr %unused) {
entry:
  call void @lend(ptr %unused)
  store atomic i32 1, ptr @left release, align 4
  ret void
}
define void @borrowing_caller(i64 %chunks, i64 %threads) {
entry:
  call void @caller(i64 %chunks, i64 %threads)
  call void @return_workers(i1 1)
  call void @returned()
  ret void
}
"""
"""A worker of OpenMP in a call that borrows it, and the end of its parallel region."""


def finished(memory: Mapping[Pointer, Value], args: list[Value]) -> None:
    """Check that the region that ended ran each chunk once: one chunk stands for all if the caller ran alone."""
    (name, _), chunks = args  # type: ignore[misc]
    runs = [memory.get((name, 8 * k), 0) for k in range(int(chunks))]  # type: ignore[arg-type]
    alone = [1] + [0] * (int(chunks) - 1)  # type: ignore[arg-type]
    if runs not in (alone, [1] * int(chunks)):  # type: ignore[arg-type]
        raise Violation(f"the chunks of {name} ran {runs} times")


def checker(protocol: str, threads: int, chunks_per_thread: int) -> Checker:
    memory: dict[Pointer, Value] = {("tilewright_team", 0): threads, ("tilewright_team", 8): chunks_per_thread}
    memory |= {("region", k): 0 for k in (0, 8, 16)} | {("done", 0): 0}
    starts: list[tuple[str, list[Value]]] = [("caller", [threads * chunks_per_thread, threads])]
    starts += [("tilewright_worker", [("null", k)]) for k in range(1, threads)]
    return Checker(parse(protocol + work_function(COUNT) + SCENARIO), memory, starts, {"finished": finished})


@pytest.mark.parametrize(("threads", "chunks_per_thread"), [(2, 1), (2, 2)])
def test_every_order_is_right(threads: int, chunks_per_thread: int) -> None:
    assert checker(PROTOCOL, threads, chunks_per_thread).explore() > 5000


def borrowing_checker(protocol: str, own_workers: int) -> Checker:
    memory: dict[Pointer, Value] = {("tilewright_team", 0): 2, ("tilewright_team", 8): 1, ("left", 0): 0}
    memory |= {("region", k): 0 for k in (0, 8, 16)} | {("done", 0): 0, ("borrowing", 0): 1, ("borrowed", 0): 1}
    starts: list[tuple[str, list[Value]]] = [("borrowing_caller", [2, 2]), ("openmp_worker", [("null", 0)])]
    starts += [("tilewright_worker", [("null", 1)])] * own_workers
    text = protocol + work_function(COUNT) + SCENARIO + OPENMP
    return Checker(parse(text), memory, starts, {"finished": finished, "returned": returned})


def returned(memory: Mapping[Pointer, Value], args: list[Value]) -> None:
    """Check that no worker of OpenMP is left in a call that has ended."""
    if not memory["left", 0] or memory["borrowed", 0]:
        raise Violation("a worker of OpenMP was not waited for")


@pytest.mark.parametrize("own_workers", [0, 1])
def test_openmp_workers_take_part(own_workers: int) -> None:
    assert borrowing_checker(PROTOCOL + OPENMP_WORKERS, own_workers).explore() > 1000


def test_a_region_of_openmp_that_does_not_end_is_found() -> None:
    end = "call void @GOMP_parallel_end()\n  store"
    assert OPENMP_WORKERS.count(end) == 1
    with pytest.raises(Violation):
        borrowing_checker(PROTOCOL + OPENMP_WORKERS.replace(end, "store"), 0).explore()


FAULTS = {
    "a claim that forgets the epoch": ("%late = icmp ugt i64 %word_epoch, %epoch", "%late = icmp ugt i64 0, %epoch"),
    "a caller that does not look again": (
        "%is_complete = icmp eq i32 %value, %chunks",
        "%is_complete = icmp eq i32 %value, -1",
    ),
    "a caller that does not wait": ("br i1 %complete, label %release, label %wait", "br label %release"),
    "a worker that counts too early": (
        "%claimed = load i64, ptr %claimed_slot\n  %claimed32 = trunc i64 %claimed to i32\n  %chunks32 = trunc i64 %chunks to i32\n  %before",
        "%claimed = load i64, ptr %claimed_slot\n  %claimed32 = trunc i64 1 to i32\n  %chunks32 = trunc i64 %chunks to i32\n  %before",
    ),
    "nobody wakes the caller": ("call void @futex_wake(ptr @done, i32 -1)", "call void @relax()"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    right, wrong = FAULTS[fault]
    assert PROTOCOL.count(right) == 1
    with pytest.raises(Violation):
        checker(PROTOCOL.replace(right, wrong), 2, 2).explore()
