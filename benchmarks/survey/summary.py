"""Summary of rows: the worst programs, geometric means by feature, compile times, and how well kernels were predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import geometric_mean, median, quantiles

from rich.table import Table

from benchmarks.peer_comparison import format_milliseconds
from benchmarks.rank import kendall_tau
from benchmarks.survey.rows import KernelRow, Row
from compiler.report.render import table

LOSS = 0.9
"""A program whose speed is less than this is a loser."""

FEWEST_PROGRAMS = 3
"""Programs that a feature needs to have a group."""

SLOW_COMPILATION = 10.0
"""Seconds to the first result that are worth a line."""


@dataclass(frozen=True)
class Group:
    """Programs with a feature: geometric mean of their speeds and efficiencies, and their share of all programs and of the losers."""

    feature: str
    programs: int
    speed: float
    efficiency: float
    share: float
    loser_share: float


def row_features(row: Row) -> list[str]:
    """Return the features of a row: its kind, family and length of a call besides those of its graph."""
    fastest = min(row.peers.values())
    length = next((text for limit, text in ((50e-6, "50 us"), (1e-3, "1 ms")) if fastest < limit), "")
    return [row.kind, row.family, f"call: < {length}" if length else "call: longer", *row.features]


def group_by_feature(rows: Sequence[Row]) -> list[Group]:
    """Return the groups of measured rows, the slowest first; features that the same programs share are one group."""
    members: dict[str, set[int]] = {}
    for k, row in enumerate(rows):
        for feature in row_features(row):
            members.setdefault(feature, set()).add(k)
    losers = {k for k, row in enumerate(rows) if row.speed < LOSS}
    names: dict[frozenset[int], list[str]] = {}
    for feature, those in members.items():
        if len(those) >= FEWEST_PROGRAMS:
            names.setdefault(frozenset(those), []).append(feature)
    groups = [
        Group(
            ", ".join(features), len(those), geometric_mean(rows[k].speed for k in those),
            geometric_mean(rows[k].efficiency for k in those), len(those) / len(rows),
            len(losers & those) / max(1, len(losers)),
        )
        for those, features in names.items()
    ]  # fmt: skip
    return sorted(groups, key=lambda g: g.speed)


@dataclass(frozen=True)
class PredictionQuality:
    """Relative errors of predicted kernel times, and the rank correlation with the measured ones."""

    kernels: int
    median_error: float
    high_error: float
    tau: float


def prediction_quality(kernels: Iterable[KernelRow]) -> PredictionQuality | None:
    """Compare predictions with times; None if there are less than two kernels.  `high_error` is the 95th percentile."""
    known = [(k.predicted, k.seconds) for k in kernels if k.predicted and k.seconds]
    if len(known) < 2:
        return None
    errors = [abs(p / s - 1) for p, s in known]
    return PredictionQuality(
        len(known), median(errors), quantiles(errors, n=20)[-1], kendall_tau([*combinations(known, 2)])
    )


def worst_table(title: str, rows: Sequence[Row], key: Callable[[Row], float], count: int) -> Table:
    """Return the rows with the smallest `key`."""
    made = table(
        title,
        ["program", "family"],
        ["ms", "best peer", "speed", "roofline", "compiled", "error"],
        ["peer", "features"],
    )
    for r in sorted(rows, key=key)[:count]:
        peer = r.fastest_peer
        made.add_row(
            f"{r.seed}/{r.kind}/{r.index}", r.family, format_milliseconds(r.seconds), format_milliseconds(r.peers[peer]), f"{r.speed:.2f}",
            f"{r.efficiency:.2f}", f"{r.first_seconds['ours']:.1f} s", f"{r.error:.0e}", peer, ", ".join(r.features),
        )  # fmt: skip
    return made


def group_table(groups: Sequence[Group], count: int) -> Table:
    numbers = ["programs", "speed", "roofline", "of all", "of losers"]
    made = table(f"by feature; losers are below {LOSS}", ["feature"], numbers)
    for g in groups[:count]:
        shares = (f"{100 * s:.0f} %" for s in (g.share, g.loser_share))
        made.add_row(g.feature, f"{g.programs}", f"{g.speed:.2f}", f"{g.efficiency:.2f}", *shares)
    return made


def summarize(rows: Sequence[Row], count: int = 15) -> tuple[list[Table], list[str]]:
    """Return the tables and lines of a summary; `count` rows each."""
    measured = [r for r in rows if r.is_measured]
    lines = [f"{len(rows)} programs, {len(measured)} measured"]
    tables = []
    if measured:
        tables = [
            worst_table("worst by time / best peer", measured, lambda r: r.speed, count),
            worst_table("worst by time / roofline", measured, lambda r: r.efficiency, count),
            group_table(group_by_feature(measured), 2 * count),
        ]
        lost = sum(r.speed < LOSS for r in measured)
        lines.append(
            f"best peer / ours: geometric mean {geometric_mean(r.speed for r in measured):.2f}; {lost} below {LOSS}"
        )
        for peer in dict.fromkeys(p for r in measured for p in r.peers):
            ratios = [r.peers[peer] / r.seconds for r in measured if peer in r.peers]
            lines.append(f"{peer} / ours: geometric mean {geometric_mean(ratios):.2f} over {len(ratios)}")
    for who in dict.fromkeys(w for r in rows for w in r.first_seconds if w != "eager"):
        times = [r.first_seconds[who] for r in rows if who in r.first_seconds]
        lines.append(f"until the first result, {who}: median {median(times):.2f} s, longest {max(times):.1f} s")
    if quality := prediction_quality(k for r in rows for k in r.kernels):
        lines.append(
            f"predictions of {quality.kernels} kernels: median error {quality.median_error:.0%}, 95th percentile "
            f"{quality.high_error:.0%}, Kendall tau {quality.tau:.2f}"
        )
    for r in rows:
        if r.seconds and r.is_wrong:
            lines.append(f"WRONG by {r.error:.0e} (eager {r.eager_error:.0e}): {r.command}, {r.family}")
        if r.first_seconds.get("ours", 0) > SLOW_COMPILATION:
            lines.append(f"SLOW to compile, {r.first_seconds['ours']:.1f} s: {r.command}, {r.family}")
        lines += [f"FAILED, {stage}: {why}: {r.command}, {r.family}" for stage, why in r.failures.items()]
    return tables, lines
