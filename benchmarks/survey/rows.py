"""Results of a survey: one row for each program, kept as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ALLOWED_ERROR, EAGER_ERRORS = 1e-5, 8
"""Our error against float64 may be so much, or so many times PyTorch's own."""


@dataclass(frozen=True)
class KernelRow:
    """Measured and predicted seconds of a kernel in one call."""

    name: str
    seconds: float
    predicted: float


@dataclass(frozen=True)
class Row:
    """Results for one program.

    Seconds are of one call, medians of one interleaved run; `first_seconds` are those until the first result, with compilation.
    Errors are against float64, relative to the largest magnitude.  `failures` says for each stage that failed why: "ours", a peer, or another step
    of the measurement.
    """

    seed: int
    kind: str
    index: int
    family: str
    threads: int
    features: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peers: dict[str, float] = field(default_factory=dict)
    first_seconds: dict[str, float] = field(default_factory=dict)
    roofline: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0
    kernels: list[KernelRow] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def fastest_peer(self) -> str:
        return min(self.peers, key=self.peers.__getitem__)

    @property
    def is_measured(self) -> bool:
        """True if there is a time of ours and of a peer."""
        return bool(self.seconds and self.peers)

    @property
    def speed(self) -> float:
        """Time of the fastest peer divided by ours."""
        return self.peers[self.fastest_peer] / self.seconds

    @property
    def efficiency(self) -> float:
        """Time of the roofline divided by ours."""
        return self.roofline / self.seconds

    @property
    def is_wrong(self) -> bool:
        return not self.error <= max(ALLOWED_ERROR, EAGER_ERRORS * self.eager_error)

    @property
    def command(self) -> str:
        """Arguments of `survey` that measure this program alone."""
        return f"--seed {self.seed} --kind {self.kind} --only {self.index}"


def append_row(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """Yield the rows of several files; a program that was measured again counts with its last row."""
    rows = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = parse_row(json.loads(line))
            rows[row.seed, row.kind, row.index, row.threads] = row
    yield from rows.values()


def parse_row(fields: Mapping[str, object]) -> Row:
    kernels = [KernelRow(**k) for k in fields["kernels"]]  # type: ignore[attr-defined]  # written by `append_row`
    return Row(**{**fields, "kernels": kernels})  # type: ignore[arg-type]
