"""Binary search for the first rewrite with which a program is wrong, fails, crashes or is slow."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt

from compiler.errors import TilewrightError
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.passes.base import Context
from compiler.passes.instrument import PassRecorder, PassRun
from compiler.passes.pipeline_text import Pipeline
from compiler.passes.remark import Remark, format_seconds
from compiler.runtime.timing import interleaved_timings
from compiler.testing.bisection.subject import Attempt, Limit, Stage, Subject
from compiler.testing.fuzz.check import Failure
from compiler.testing.fuzz.workers import map_in_processes

MIN_SLOWDOWN = 1.1
"""Slowdown that is worth a search; less may be noise."""


@dataclass(frozen=True)
class Finding:
    """Cause of a fault: the `rewrite`, number `number` of `total`, or if none does, what `cause` says.

    `problem` is what goes wrong, `run` the run of the pass, and `attempts` the number of compilations.  `pass_name` is "" if no pass is
    to blame; `limited_to` says that `number` counts the rewrites of that pass alone.
    """

    problem: str
    cause: str
    stage: Stage
    pass_name: str = ""
    number: int = 0
    total: int = 0
    rewrite: Remark | None = None
    run: PassRun | None = None
    attempts: int = 0
    limited_to: str = ""


@dataclass
class Search:
    """A search in one subject.

    `isolated` says that native code may crash: it is tried in a copy of this process, and if that dies, so are all attempts.
    """

    subject: Subject
    isolated: bool = False
    attempts: int = 0
    crashes: bool = False

    def run(self) -> Finding | None:
        """Return what breaks the subject, or None if its results are right."""
        self.crashes = self.isolated and isinstance(self.in_process(Limit(), Stage.NATIVE), Failure)
        for stage in self.subject.stages:
            whole = self.attempt(Limit(), stage)
            if whole.problem and (found := self.search(whole, stage) or blame_stage(whole, stage)):
                return replace(found, attempts=self.attempts)
        return None

    def search(self, whole: Attempt, stage: Stage) -> Finding | None:
        """Return the first bad rewrite of an attempt that failed; None if it fails without any."""
        total = len(whole.rewrites)
        if not total or self.attempt(Limit(0), stage).problem:
            return None
        number = first_bad(total, lambda n: bool(self.attempt(Limit(n), stage).problem))
        return finding_of(self.attempt(Limit(number), stage), number, total, stage)

    def attempt(self, limit: Limit, stage: Stage) -> Attempt:
        """Attempt a compilation, in a process of its own if native code crashes; the passes run here too, for their rewrites."""
        self.attempts += 1
        if not self.crashes or stage is not Stage.NATIVE:
            return self.subject.attempt(limit, stage)
        outcome = self.in_process(limit, stage)
        traced = self.subject.attempt(limit, stage, runs_result=False)
        return replace(traced, problem=f"{outcome}" if isinstance(outcome, Failure) else outcome)

    def in_process(self, limit: Limit, stage: Stage) -> str | Failure:
        """Return the problem of an attempt in a copy of this process, or how that ended."""
        ((_, outcome),) = map_in_processes(partial(problem_of, self.subject, stage), [limit], forks=True)
        return outcome


def blame_stage(whole: Attempt, stage: Stage) -> Finding | None:
    """Return what is to blame for a problem that no rewrite causes: a pass that fails, lowering, or code generation."""
    if run := whole.failed_run:
        return Finding(whole.problem, "the pass, without any rewrite", stage, run.pass_.name, run=run)
    causes = {Stage.LOWERED: "lowering", Stage.NATIVE: "code generation"}
    return Finding(whole.problem, causes[stage], stage) if stage in causes else None


def problem_of(subject: Subject, stage: Stage, limit: Limit) -> str:
    """Return the problem of an attempt."""
    return subject.attempt(limit, stage).problem


def first_bad(total: int, is_bad: Callable[[int], bool]) -> int:
    """Return a number of rewrites that is bad, while one less is good; none is good, and `total` is bad."""
    good, bad = 0, total
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if is_bad(middle) else (middle, bad)
    return bad


def finding_of(bad: Attempt, number: int, total: int, stage: Stage, of: str = "") -> Finding:
    """Return the finding that rewrite `number` of an attempt is the first bad one."""
    counted = [r for r in bad.rewrites if of in ("", r.pass_)]
    rewrite = counted[number - 1]
    position = next(k for k, r in enumerate(bad.rewrites) if r is rewrite) + 1
    runs = (r for r in reversed(bad.runs) if r.made < position and r.pass_.name == rewrite.pass_)
    return Finding(
        bad.problem, "rewrite", stage, rewrite.pass_, number, total, rewrite, next(runs, None), limited_to=of
    )


# slow programs

Measure = Callable[[list[Callable[[], object]]], list[float]]
"""Times calls in turns; returns the seconds of each."""


def fastest_seconds(calls: list[Callable[[], object]]) -> list[float]:
    """Return the seconds of the fastest of several runs of each call."""
    return [t.minimum for t in interleaved_timings(calls)]


@dataclass
class SlownessSearch:
    """A search for the pass, and its rewrite, with which a subject is slower than with the passes `other`."""

    subject: Subject
    other: Pipeline
    measure: Measure = fastest_seconds
    attempts: int = 0
    threshold: float = field(default=0.0)

    def run(self) -> Finding | None:
        """Return what makes the subject slower; None if it is not."""
        slow, fast = self.measure([self.call(self.subject.passes), self.call(self.other)])
        if slow < MIN_SLOWDOWN * fast:
            return None
        self.threshold = sqrt(slow * fast)
        problem = f"{format_seconds(slow)} instead of {format_seconds(fast)}"
        edits = list(pipeline_edits(self.other, self.subject.passes))
        changed = first_bad(len(edits), lambda n: self.is_slow(apply_edits(self.other, edits[:n])))
        passes = apply_edits(self.other, edits[:changed])
        (start, stop, new) = edits[changed - 1]
        if not new:
            removed = ", ".join(map(str, self.other[start:stop]))
            return Finding(problem, f"without {removed}", Stage.NATIVE, removed, attempts=self.attempts)
        for pass_ in new:
            found = self.rewrite_of(replace(self.subject, passes=passes), pass_.name)
            if found:
                return replace(found, problem=problem, attempts=self.attempts)
        names = ", ".join(map(str, new))
        return Finding(problem, f"with {names}", Stage.NATIVE, names, attempts=self.attempts)

    def rewrite_of(self, subject: Subject, name: str) -> Finding | None:
        """Return the first rewrite of a pass with which a subject is slow; None if it is slow without, or fast with all."""
        whole = subject.attempt(Limit(of=name), Stage.NATIVE, runs_result=False)
        total = sum(r.pass_ == name for r in whole.rewrites)
        if (
            not total
            or self.is_slow(subject.passes, Limit(0, name))
            or not self.is_slow(subject.passes, Limit(total, name))
        ):
            return None
        number = first_bad(total, lambda n: self.is_slow(subject.passes, Limit(n, name)))
        bad = subject.attempt(Limit(number, name), Stage.NATIVE, runs_result=False)
        return finding_of(bad, number, total, Stage.NATIVE, name)

    def is_slow(self, passes: Pipeline, limit: Limit | None = None) -> bool:
        """Return True if the subject takes more than the threshold."""
        (seconds,) = self.measure([self.call(passes, limit or Limit())])
        return seconds > self.threshold

    def call(self, passes: Pipeline, limit: Limit | None = None) -> Callable[[], object]:
        """Compile the subject with `passes`, and return a call of it."""
        self.attempts += 1
        limit, subject = limit or Limit(), replace(self.subject, passes=passes)
        context = Context.for_target(subject.target, limit.count)
        context.limited_pass = limit.of
        made = subject.compile(context, PassRecorder(), Stage.NATIVE)
        if isinstance(made, Kernel):
            return subject.native_kernel(made).bind(subject.inputs)
        if not isinstance(made, Program):
            raise TilewrightError("only programs and kernels can be timed")
        executable, tensors = subject.executable(made), subject.tensors(made)
        return partial(executable, tensors)


Edit = tuple[int, int, Pipeline]
"""Positions of passes, and what replaces them."""


def pipeline_edits(old: Pipeline, new: Pipeline) -> Iterator[Edit]:
    """Yield the edits that turn one pipeline into another, one for each pass of `new` where possible."""
    before, after = ([str(p) for p in passes] for passes in (old, new))
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            yield a, b, new[c:d]


def apply_edits(passes: Pipeline, edits: list[Edit]) -> Pipeline:
    """Return the pipeline after some edits, whose positions are those before all."""
    for start, stop, new in reversed(edits):
        passes = (*passes[:start], *new, *passes[stop:])
    return passes
