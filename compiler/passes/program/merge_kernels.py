"""Let launches share a kernel that differ only in which entries of their arguments they access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from compiler.analysis.accesses import Accesses
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.kernel import Kernel, Param, Range
from compiler.ir.tile.program import Launch, Program, Step, View, expand_launches, view_type
from compiler.ir.tile.substitution import unused_name
from compiler.ir.types import TensorType
from compiler.passes.base import Context, ProgramPass, register


class Entries(NamedTuple):
    """The `size` entries from `first` on along the first dimension of a buffer."""

    first: int
    size: int


@register
@dataclass(frozen=True)
class MergeKernels(ProgramPass):
    """Merge kernels that differ only in which entries of their arguments they access.

    @step0(in %x: f32[8, 64], ...) { ... %x[0, %i] ... }    launch @step0(%x, ...)
    @step1(in %x: f32[8, 64], ...) { ... %x[1, %i] ... }    launch @step1(%x, ...)
    ->
    @step0(in %x: f32[1, 64], ...) { ... %x[0, %i] ... }    view %x.0 = %x[0:1]  launch @step0(%x.0, ...)
                                                            view %x.1 = %x[1:2]  launch @step0(%x.1, ...)

    The steps of an unrolled recurrence are thus scheduled and compiled once.  Entries are those along the first dimension
    of a row-major buffer, where they are contiguous.
    """

    name = "merge-kernels"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        accessed = {name: accessed_entries(kernel) for name, kernel in ir.kernels.items()}
        for launch in ir.launches:
            if not can_take_views(ir, launch, accessed[launch.kernel]):
                accessed[launch.kernel] = {}
        kernels = {name: with_views(kernel, accessed[name]) for name, kernel in ir.kernels.items()}
        signatures = {name: signature(kernel) for name, kernel in kernels.items()}
        counts = Counter(signatures.values())
        # launches find the sizes of a kernel by their names, which the digest leaves out
        digests: dict[str, Hashable] = {
            name: (kernel_digest(kernel), kernel.dynamic_sizes) if counts[signatures[name]] > 1 else name
            for name, kernel in kernels.items()
        }
        shared = {digest for digest, times in Counter(digests.values()).items() if times > 1}
        chosen = {digest: name for name, digest in reversed(digests.items())}
        views: dict[tuple[str, Entries], str] = {}
        buffers = dict(ir.buffers)

        def rule(step: Launch) -> Iterator[Step]:
            if digests[step.kernel] not in shared:
                yield step
                return
            arguments = []
            for p, argument in zip(ir.kernels[step.kernel].params, step.arguments, strict=True):
                if entries := accessed[step.kernel].get(p.name):
                    if (argument, entries) not in views:
                        name = views[argument, entries] = unused_name(f"{argument}.{entries.first}", buffers)
                        buffers[name] = view_type(ir.buffers[argument], entries.size)
                        yield View(name, argument, *entries)
                    argument = views[argument, entries]
                arguments.append(argument)
            yield replace(step, kernel=chosen[digests[step.kernel]], arguments=tuple(arguments))

        steps = expand_launches(ir.steps, rule)
        kept = {n: kernels[n] if digests[n] in shared else k for n, k in ir.kernels.items() if chosen[digests[n]] == n}
        merged = len(ir.kernels) - len(kept)
        message = f"{merged} kernels differ from others in the entries of their arguments alone"
        if not merged or not context.may_apply(self, message):
            return ir
        return replace(ir, buffers=buffers, kernels=kept, steps=steps)


def signature(kernel: Kernel) -> Hashable:
    """Return what is equal for equal kernels and found sooner than a digest: parameters, and the number of statements."""
    return tuple((p.role, p.type) for p in kernel.params), sum(1 for _ in tile.walk(kernel.body))


def accessed_entries(kernel: Kernel) -> dict[str, Entries]:
    """Return the entries that a kernel accesses of each parameter of which it does not access all.

    They are counted in the buffer, with the margin of the parameter's type.
    """
    table, entries = Accesses(kernel), dict[str, Entries]()
    for p in kernel.params:
        margin = leading_margin(p.type)
        extent = p.type.shape[0] if p.type.rank else None
        if margin is None or not isinstance(extent, int) or p.role in ("const", "scratch"):
            continue
        limits = [interval(a.index[0], constant_bounds(a.loops)) for a in table.all if a.buffer == p.name]
        known = [k for k in limits if k is not None]
        if known and len(known) == len(limits):
            low, high = min(k[0] for k in known), max(k[1] for k in known)
            if 0 <= low <= high < extent and (p.type.layout is not None or high - low + 1 < extent):
                entries[p.name] = Entries(margin + low, high - low + 1)
    return {} if tile.async_copies(kernel.body) else entries


def leading_margin(type: TensorType) -> int | None:
    """Return the margin before the first dimension of a row-major type without other margins; None for other layouts."""
    if type.dtype.element:
        return None
    dims = type.layout.physical_dims if type.layout else ()
    inner = (d.margin_before == d.margin_after == 0 for d in dims[1:])
    if any(d.dim != k or d.block_size for k, d in enumerate(dims)) or not all(inner):
        return None
    margin = dims[0].margin_before if dims else 0
    return margin if isinstance(margin, int) else None


def constant_bounds(loops: tuple[Range, ...]) -> Bounds:
    """Return the inclusive bounds of loops from and to constants."""
    return {r.var: (r.lo, r.hi - 1) for r in loops if isinstance(r.lo, int) and isinstance(r.hi, int)}


def can_take_views(program: Program, launch: Launch, accessed: Mapping[str, Entries]) -> bool:
    """Return True if the buffers of a launch are row-major where views would be taken, and none is taken twice."""
    params = program.kernels[launch.kernel].params
    roots = Counter(map(program.root_buffer, launch.arguments))
    return all(
        program.buffers[a].layout is None and (roots[program.root_buffer(a)] == 1)
        for p, a in zip(params, launch.arguments, strict=True)
        if p.name in accessed
    )


def with_earlier_entry(skipped: int, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the index in a view that begins `skipped` entries later than the buffer."""
    return (index[0] - skipped, *index[1:])


def with_views(kernel: Kernel, accessed: Mapping[str, Entries]) -> Kernel:
    """Return the kernel that takes the accessed entries of its parameters alone."""
    body = kernel.body
    for p in kernel.params:
        if p.name in accessed:
            skipped = accessed[p.name].first - (leading_margin(p.type) or 0)
            body = tile.map_accesses(body, p.name, partial(with_earlier_entry, skipped))

    def narrowed(p: Param) -> Param:
        return replace(p, type=view_type(p.type, accessed[p.name].size)) if p.name in accessed else p

    return replace(kernel, params=tuple(map(narrowed, kernel.params)), body=body)
