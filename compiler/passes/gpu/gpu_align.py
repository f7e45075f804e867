"""Let rows inside larger buffers begin where a thread may make its widest access."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.program import Program, non_launch_buffers, walk_steps
from compiler.ir.types import Layout, PhysicalDim, TensorType
from compiler.passes.base import Context, ProgramPass, register
from compiler.passes.gpu.gpu_rows import gpu_of


@register
@dataclass(frozen=True)
class GpuAlign(ProgramPass):
    """Align rows that kernels access inside a margin: elements in front of and behind each row, which nobody accesses.

    buffer %b: f32[64, 258]    kernel @k(out %y: f32[64, 256]{0, 1+1:1})   launch @k(%b)
    ->
    buffer %b: f32[64, 264]    kernel @k(out %y: f32[64, 256]{0, 1+4:4})   launch @k(%b)

    The widest access of a thread needs an address that is a multiple of its size.  Only types change.  Applies to
    intermediates of kernels alone, together with all that are passed for the same parameters.
    """

    name = "gpu-align"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        arguments: dict[tuple[str, str], set[str]] = defaultdict(set)
        for launch in ir.launches:
            for p, argument in zip(ir.kernels[launch.kernel].params, launch.arguments, strict=True):
                arguments[launch.kernel, p.name].add(argument)
        params = {(k.name, p.name): p for k in ir.kernels.values() for p in k.params}
        fixed = {
            *ir.inputs,
            *ir.outputs,
            *ir.constants,
            *(b for s in walk_steps(ir.steps) for b in non_launch_buffers(s)),
        }
        buffers = dict(ir.buffers)
        for group in connected_sets(list(arguments.values())):
            places = [place for place, names in arguments.items() if names & group]
            types = {ir.buffers[name] for name in group}
            if group & fixed or len(types) > 1:
                continue
            room = row_room(types.pop(), [params[p].type for p in places], gpu_of(context).access_bytes)
            if room is None:
                continue
            message = f"rows of %{', %'.join(sorted(group))} with {room[0]} elements before and {room[1]} behind"
            if context.may_apply(self, message):
                buffers |= {name: widened(buffers[name], *room) for name in group}
                params |= {p: replace(params[p], type=with_row_margin(params[p].type, *room)) for p in places}
        kernels = {n: replace(k, params=tuple(params[n, p.name] for p in k.params)) for n, k in ir.kernels.items()}
        return replace(ir, buffers=buffers, kernels=kernels) if buffers != ir.buffers else ir


def connected_sets(sets: Sequence[set[str]]) -> list[set[str]]:
    """Return the unions of sets that share elements."""
    unions: list[set[str]] = []
    for one in sets:
        overlapping = [u for u in unions if u & one]
        unions = [u for u in unions if not u & one] + [one.union(*overlapping)]
    return unions


def row_room(buffer: TensorType, params: Sequence[TensorType], access_bytes: int) -> tuple[Dim, Dim] | None:
    """Return the elements to add before and after each row, so that all rows inside margins are aligned.

    None if there are no such rows, if they are aligned, if they begin in different places, or if some type is no box of constant margins.
    """
    step = max(1, access_bytes // buffer.dtype.bytes)
    rows = [p.layout.physical_dims[-1] for p in params if p.layout and p.is_subview_of(buffer) and not p.dtype.element]
    if buffer.layout or not rows or len(rows) + list(params).count(buffer) < len(params):
        return None
    length, margins = buffer.shape[-1], [n for row in rows for n in (row.margin_before, row.margin_after)]
    starts = {row.margin_before for row in rows if row.margin_before or row.margin_after}
    if not all(isinstance(n, int) for n in (length, *margins)) or len(offsets := {n % step for n in starts}) != 1:
        return None
    before = -offsets.pop() % step
    after = -(before + length) % step
    return (before, after) if before or after else None


def widened(buffer: TensorType, before: Dim, after: Dim) -> TensorType:
    """Return a dense type with so many more elements in each row."""
    return buffer.with_shape((*buffer.shape[:-1], buffer.shape[-1] + before + after))


def with_row_margin(box: TensorType, before: Dim, after: Dim) -> TensorType:
    """Return the type of the same elements between so many more of each row."""
    dims = box.layout.physical_dims if box.layout else tuple(map(PhysicalDim, range(box.rank)))
    row = replace(dims[-1], margin_before=dims[-1].margin_before + before, margin_after=dims[-1].margin_after + after)
    return replace(box, layout=Layout((*dims[:-1], row)))
