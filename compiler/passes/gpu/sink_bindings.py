"""Move bindings into the innermost parallel loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.tile.kernel import Block, Kernel, Let, is_parallel_loop
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class SinkBindings(TilePass):
    """Move bindings between parallel loops into the inner loop, so that the loops are perfectly nested.

    parallel %i { %v = f(%i)  parallel %j { ... %v ... } }  ->  parallel %i { parallel %j { %v = f(%i) ... %v ... } }

    A program of a GPU runs one iteration of all parallel loops, so it computes the value once either way.
    """

    name = "sink-bindings"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        body = sink(ir.body, ())
        return ir if body == ir.body else ir.with_body(body)


def sink(body: Block, bindings: Block) -> Block:
    """Return `body` with `bindings` before it, or inside the parallel loop that is all that follows its own bindings."""
    *own, last = body
    if is_parallel_loop(last) and all(isinstance(s, Let) for s in own):
        return (replace(last, body=sink(last.body, (*bindings, *own))),)
    return (*bindings, *body)
