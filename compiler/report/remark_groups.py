"""Remarks as a reader wants them: repeated ones together, those that cost most time first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compiler.analysis.kernel_origin import KernelOrigin, merge_module_paths, module_form
from compiler.errors import Loc
from compiler.passes.remark import REMARK_KINDS, Remark

KIND_ORDER = {kind: k for k, kind in enumerate(sorted(REMARK_KINDS, key=("missed", "applied", "note").index))}
"""Missed changes come first."""


@dataclass(frozen=True)
class RemarkGroup:
    """Remarks that say the same about repeated layers: the first one, at the places of all.

    `lost` are the seconds that all of them lose by estimate, `kernel_seconds` those that their kernels take.
    """

    first: Remark
    count: int
    lost: float
    kernel_seconds: float
    loc: Loc | None


def group_remarks(
    remarks: Iterable[Remark],
    origins: Mapping[str, KernelOrigin] | None = None,
    kernel_seconds: Mapping[str, float] | None = None,
) -> list[RemarkGroup]:
    """Return `remarks` in groups, ranked by the time that they lose, then by the time of their kernel.

    `origins` and `kernel_seconds` are of kernels by name; a remark about a kernel is located where its kernel comes from.
    """
    groups: dict[tuple[str, ...], list[Remark]] = {}
    for r in remarks:
        located = r if r.loc or not origins or r.kernel not in origins else replace(r, loc=origins[r.kernel].place)
        groups.setdefault(_form(located), []).append(located)
    seconds = kernel_seconds or {}
    made = [
        RemarkGroup(
            same[0],
            len(same),
            sum(r.lost for r in same),
            sum(seconds.get(name, 0.0) for name in dict.fromkeys(r.kernel for r in same)),
            same[0].loc and replace(same[0].loc, module=merge_module_paths(r.loc.module for r in same if r.loc)),
        )
        for same in groups.values()
    ]
    return sorted(made, key=lambda g: (KIND_ORDER[g.first.kind], -g.lost, -g.kernel_seconds))


def _form(r: Remark) -> tuple[str, ...]:
    """Return what is equal for remarks about repeated layers: all but numbers in module paths, and names of values."""
    line = (r.loc.file, str(r.loc.line), module_form(r.loc.module)) if r.loc else ()
    return (r.pass_, r.kind, re.sub(r"%[\w.]+", "%", r.message), r.kernel, *line)
