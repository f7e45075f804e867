"""Miscompiles planted in passes, one each, that bisection must name.

    python -m tests.tools.planted_faults [PASS ...]

Prints a table: the pass and rewrite that were found, the size of the reduced IR, and the seconds that it took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import compiler.transforms.fuse as fuse_transform
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import constant_node, input_node
from compiler.ir.symbolic.index_expr import ceildiv
from compiler.ir.text.ir_text import AnyIR, parse_ir
from compiler.ir.types import TensorType, f32
from compiler.math import expansions
from compiler.options import Options
from compiler.passes.graph import (
    canonicalize,
    constant_indices,
    cse,
    eliminate_padding,
    fold,
    fold_scale,
    fuse,
    integer_contraction,
    separate_windows,
    sink_gather,
    two_level_argmax,
    two_level_reduction,
    two_level_scan,
    winograd,
)
from compiler.passes.graph.decompose import Decompose
from compiler.passes.program.compute_at import ProducerConsumer
from compiler.passes.program.update_in_place import Update
from compiler.passes.tile import (
    cache_blocking,
    cascade_sums,
    delinearize,
    parallelize,
    peel,
    split_epilogue,
    tighten_reductions,
)
from compiler.passes.tile import vectorize as vectorize_pass
from compiler.passes.tile.online_softmax import OnlineSoftmaxBuilder
from compiler.passes.tile.pack import Pack
from compiler.passes.tile.unroll import Unroll
from compiler.testing import Bisection, bisect
from compiler.transforms import distribute

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Fault:
    """A fault in the pass `name`: IR that it spoils under `passes`, and how to plant it; `message` is part of the rewrite's."""

    name: str
    what: str
    ir: str | Callable[[], AnyIR]
    plant: Callable[[], AbstractContextManager[Any]]
    passes: str = "default"
    message: str = ""


def replaced(owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], Any]:
    """Return what plants `change` of a function or method."""
    return lambda: patch.object(owner, name, change(getattr(owner, name)))


def graph(body: str, inputs: str = "%x: f32[8, 8]") -> str:
    return f"graph({inputs}) {{ {body} }}"


def numbers(*shape: int) -> str:
    """The text of a constant of small numbers."""
    count = iter(range(10**6))

    def nest(dims: Sequence[int]) -> str:
        return f"[{', '.join(nest(dims[1:]) for _ in range(dims[0]))}]" if dims else str(next(count) * 7 % 11 - 5)

    return f"constant f32{list(shape)} {nest(shape)}"


SOFTMAX = (EXAMPLES / "softmax.ir").read_text(encoding="utf-8").replace("128", "6")
MATMUL = """kernel @k(in %x: f32[10, 6], in %w: f32[10, 3], out %y: f32[6, 3]) {
  parallel %i in 0..6 { parallel %j in 0..3 { %s = reduce add %r in 0..10 { yield %x[%r, %i] * %w[%r, %j] } store %s, %y[%i, %j] } } }"""
ROWS = """kernel @rows(in %x: f32[4, 2, 3], in %w: f32[3], out %y: f32[8]) {
  parallel %i in 0..8 { %s = reduce add %k in 0..3 { yield %x[%i//2, %i%2, %k] * %w[%k] } store %s, %y[%i] } }"""
TAPS = """kernel @k(in %x: f32[12], in %w: f32[8], out %y: f32[8]) { parallel %i in 0..8 {
  %s = reduce add %t in 0..3 { %in = index(%t - 1) >= 0
    yield where(%in, load(%x[%i + %t], %in, 0.0) * load(%w[%t], %in, 0.0), 0.0:f32) } store %s, %y[%i] } }"""
ATTENTION = """kernel @k(in %s: f32[3, 10], in %v: f32[10, 3], out %y: f32[3, 3]) { parallel %i in 0..3 {
  local %e: f32[10]
  %m = reduce max %r in 0..10 { yield %s[%i, %r] }
  %t = reduce add %r in 0..10 { %p = exp(%s[%i, %r] - %m) store %p, %e[%r] yield %p }
  for %j in 0..3 { %a = reduce add %r in 0..10 { yield %e[%r] * %v[%r, %j] } store %a / %t, %y[%i, %j] } } }"""
MAP = """kernel @k(in %x: f32[100], out %y: f32[100]) { parallel %i in 0..100 { store exp(%x[%i]) * 2.0, %y[%i] } }"""
PREFIX = """kernel @k(in %x: f32[64, 9], inout %y: f32[64, 9]) { parallel %i in 0..64 {
  for %j in 1..9 { store %y[%i, %j - 1] + %x[%i, %j], %y[%i, %j] } } }"""
REVERSED = """kernel @k(in %x: f32[9], out %y: f32[9]) { local %e: f32[9]
  for %k in 0..9 { store %x[%k] * 2.0, %e[%k] }  for %j in 0..9 { store %e[8 - %j], %y[%j] } }"""
GATES = """kernel @k(in %x: f32[8, 9], in %w: f32[9, 64], out %y: f32[8, 64]) { parallel %j in 0..64 tile 32 lanes 16 {
  parallel %i in 0..8 tile 4 { %s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%k, %j] }
    %t = exp(%s) store %t / (%t + 1.0), %y[%i, %j] } } }"""
PROLOGUE = """kernel @k(in %x: f32[8, 9], in %w: f32[9, 64], out %y: f32[8, 64]) { parallel %i in 0..8 tile 4 { local %t: f32[9]
  for %k in 0..9 { store %x[%i, 8 - %k], %t[%k] }
  for %j in 0..64 tile 32 lanes 16 { %s = reduce add %k in 0..9 { yield %t[%k] * %w[%k, %j] } store %s, %y[%i, %j] } } }"""
PANELS = """kernel @matmul(in %x: f32[6, 9], const %w: f32[48, 9], out %y: f32[6, 48]) { parallel %i in 0..6 { parallel %j in 0..48 {
  %s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%j, %k] } store %s, %y[%i, %j] } } }"""
SUMS = """kernel @k(in %x: f32[31, 8], out %y: f32[8]) { parallel %i in 0..8 {
  %s = reduce add %r in 0..31 { yield %x[%r, %i] }  store %s, %y[%i] } }"""
UPDATE = """program { input %x: f32[4, 6]  input %v: f32[6]  output %y: f32[4, 6] -> %x  output %s: f32[4]
  kernel @put(in %x: f32[4, 6], in %v: f32[6], out %y: f32[4, 6]) {
    parallel %i in 0..4 { parallel %j in 0..6 { store %x[%i, %j], %y[%i, %j] } }
    parallel %k in 0..6 { store %v[%k], %y[2, %k] } }
  kernel @sums(in %x: f32[4, 6], out %s: f32[4]) {
    parallel %i in 0..4 { %a = reduce add %j in 0..6 { yield %x[%i, %j] } store %a, %s[%i] } }
  launch @put(%x, %v, %y)  launch @sums(%x, %s) }"""
PAD_AND_SUM = """program { input %a: f32[64, 4, 6]  input %b: f32[64, 3]  output %d: f32[64, 4, 6]  buffer %t: f32[64, 6, 6]
  kernel @pad(in %x0: f32[64, 4, 6], out %p: f32[64, 6, 6]) {
    parallel %i in 0..64 { parallel %j in 1..5 { parallel %k in 0..6 { store %x0[%i, %j - 1, %k], %p[%i, %j, %k] } } }
    parallel %g in 0..64 { parallel %k in 0..6 { store 0.0, %p[%g, 0, %k] } }
    parallel %g in 0..64 { parallel %k in 0..6 { store 0.0, %p[%g, 5, %k] } } }
  kernel @sums(in %x0: f32[64, 6, 6], in %w: f32[64, 3], out %y: f32[64, 4, 6]) {
    parallel %c in 0..64 { parallel %i in 0..4 { parallel %j in 0..6 {
      %s = reduce add %r in 0..3 { yield %x0[%c, %i + %r, %j] * %w[%c, %r] } store %s, %y[%c, %i, %j] } } } }
  launch @pad(%a, %t)  launch @sums(%t, %b, %d) }"""


def wrong_winograd(original: Callable[..., Any]) -> Callable[..., Any]:
    def matrices(m: int, r: int) -> Any:
        output, kernel, image = original(m, r)
        return output, ((kernel[0][0] + Fraction(1, 8), *kernel[0][1:]), *kernel[1:]), image

    return matrices


def without_bias(original: Callable[..., Any]) -> Callable[..., Any]:
    def body(self: Any, g: Any) -> Any:
        made, operands = original(self, g)
        last = made.outputs[0]
        if len(g.members) > 1 and last.op.name == "add":
            made = replace(made, outputs=(last.operands[0].with_name(last.name), *made.outputs[1:]))
        return made, operands

    return body


def halves_softmax(original: Callable[..., Any]) -> Callable[..., Any]:
    def expand(self: Any, n: Any, context: Any) -> Any:
        new = original(self, n, context)
        return ops.mul(new, 0.5).with_name(n.name) if n.op.name == "softmax" and new is not n else new

    return expand


def padded_convolution() -> AnyIR:
    x, w = input_node("x", TensorType(f32, (1, 64, 28, 28))), constant_node(np.ones((64, 64, 3, 3), np.float32))
    sides = (0, 0, 12, 12)
    return Graph((x,), (ops.conv(ops.pad(x, before=sides, after=sides), w, stride=[1, 1], dilation=[12, 12]),))


FAULTS = (
    Fault("canonicalize", "any view cancels", graph("%t = permute %x {dims=[1, 0]}  %u = permute %t {dims=[0, 1]}  %y = exp %u  return %y"),
          replaced(canonicalize, "_same_position", lambda f: lambda *a: True), message="view identity"),
    Fault("cse", "a key without attributes", graph("%a = sum %x {dims=[0]}  %b = sum %x {dims=[1]}  %y = mul %a, %b  return %y"),
          replaced(cse, "_value_key", lambda f: lambda n: (n.op.name, n.operands) if n.operands else f(n)), message="merged with sum"),
    Fault("decompose", "half of the value", SOFTMAX, replaced(Decompose, "_expand", halves_softmax), message="softmax expanded"),
    Fault("fold", "the negated value", graph(f"%c = {numbers(8, 8)}  %e = exp %c  %y = mul %x, %e  return %y"),
          replaced(fold, "constant_values", lambda f: lambda nodes: {n: f([ops.neg(n)]).popitem()[1] for n in nodes}), message="compile time"),
    Fault("fold-scale", "the other dimension", graph(f"%w = {numbers(8, 8)}  %s = {numbers(8)}  %p = matmul %x, %w  %y = mul %p, %s  return %y"),
          replaced(fold_scale, "_weight_channel_dim", lambda f: lambda n, s: None if f(n, s) is None else 1 - f(n, s)), message="factor folded"),
    Fault("integer-contraction", "sums of the other operand", graph(
        "%w = constant i8[2, 2] [[-128, 5], [7, -1]]  %f = cast %x {dtype=f32}  %d = sub %f, 3.0  %a = mul %d, 0.25"
        "  %g = cast %w {dtype=f32}  %b = mul %g, 0.5  %y = matmul %a, %b  return %y", "%x: u8[2, 2]"),
          replaced(integer_contraction, "_sums", lambda f: lambda n, codes, number: ops.neg(f(n, codes, number))), message="runs in integers"),
    Fault("constant-indices", "no sign", graph("%i = constant i64[2] [-1, 0]  %y = index %x, %i {dims=[0]}  return %y", "%x: f32[3]"),
          replaced(constant_indices, "checked_indices", lambda f: lambda *a: (v := f(*a)) and constant_node(np.zeros_like(v.attrs["value"].array))), message="within bounds"),
    Fault("sink-gather", "another dimension", graph("%a = take %x, %i {dim=0}  %y = exp %a  return %y", "%x: f32[3, 3], %i: i64[3]"),
          replaced(sink_gather.IndexVector, "gather", lambda f: lambda self, x, dim: f(self, x, 1 - dim)),
          "default,-sink-gather,+sink-gather{max-share=100.0}@before:fuse", "is gathered along"),
    Fault("separate-windows", "the negated value", graph("%y = max_pool %x {size=[3, 3], stride=[1, 1], dilation=[1, 1]}  return %y", "%x: f32[2, 9, 9]"),
          replaced(separate_windows, "reduce_windows", lambda f: lambda n, order: ops.neg(f(n, order))),
          "default,-separate-windows,+separate-windows{max-time-ratio=1000.0}@before:fuse", "windows reduced"),
    Fault("two-level-argmax", "the negated index", graph("%y = argmax %x {dim=0}  return %y", "%x: f32[1048576]"),
          replaced(two_level_argmax, "two_level_index", lambda f: lambda n, extreme, blocks: ops.neg(f(n, extreme, blocks))), message="searched in"),
    Fault("two-level-reduction", "the negated value", graph("%y = sum %x {dims=[0]}  return %y", "%x: f32[1048576]"),
          replaced(two_level_reduction, "two_level_reduction", lambda f: lambda n, count: ops.neg(f(n, count))), message="reduced in"),
    Fault("two-level-scan", "totals that include the block", graph("%y = cumsum %x {dim=0}  return %y", "%x: f32[64]"),
          replaced(two_level_scan, "two_level_scan", lambda f: lambda n, size: ops.neg(f(n, size))),
          "default,-two-level-scan,+two-level-scan{min-length=8, block-size=4, max-rows=64}@before:fuse", "two-level scan"),
    Fault("winograd", "a wrong coefficient", graph(f"%w = {numbers(4, 4, 3, 3)}  %y = conv %x, %w {{stride=[1, 1], dilation=[1, 1]}}  return %y", "%x: f32[1, 4, 10, 10]"),
          replaced(winograd, "toom_cook_matrices", wrong_winograd), "default,-winograd,+winograd{max-time-ratio=1000.0}@before:fuse", "Winograd tiles"),
    Fault("eliminate-padding", "off by one", padded_convolution,
          replaced(eliminate_padding, "without_padding", lambda f: lambda n, c, d: f(n, replace(c, padding=tuple((b + 1, a - 1) for b, a in c.padding)), d)),
          message="padding eliminated"),
    Fault("fuse", "a dropped bias", graph("%b = exp %c  %p = mul %x, %x  %y = add %p, %b  return %y", "%x: f32[8, 8], %c: f32[8]"),
          replaced(fuse.GroupSearch, "body", without_bias), message="fused into the kernel of add"),
    Fault("update-in-place", "a reader after the update", UPDATE, replaced(Update, "conflict", lambda f: lambda *a: ""), message="updated in place"),
    Fault("compute-at", "a producer that is not moved along", PAD_AND_SUM,
          replaced(ProducerConsumer, "fused_kernel", lambda f: lambda self, name: f(replace(self, producer=replace(self.producer, body=self.producer.body[:1])), name)),
          "default,-compute-at,+compute-at{min-steps-per-thread=0}@after:update-in-place", "computed at its consumer's loop"),
    Fault("delinearize", "a lost remainder", ROWS, replaced(delinearize, "split_index", lambda f: lambda body, v, n, inner: f(body, v, n, inner)[:0] or (f(body, v, n, inner)[::-1][:1] and tuple(replace(s, range=s.range.with_(hi=s.range.hi - 1)) for s in f(body, v, n, inner)))), message="split by 2"),
    Fault("tighten-reductions", "off by one", TAPS, replaced(tighten_reductions, "restrict_ranges", lambda f: lambda ranges, d: f(ranges, d + 1)), message="tightened"),
    Fault("cache-blocking", "a lost remainder", MATMUL, replaced(cache_blocking, "strip_mine", lambda f: lambda *a: f(*a)._replace(remainder=None) if hasattr(f(*a), "_replace") else replace(f(*a), remainder=None)),
          "cache-blocking{depth-block=4, min-depth=8, conflict-stride=32},vectorize,tile,peel", "in blocks of 4"),
    Fault("fuse-loops", "a dependence that is not seen", REVERSED, replaced(fuse_transform, "conflicting_buffer", lambda f: lambda *a: None), "fuse-loops,vectorize,tile,peel", "fused two loops"),
    Fault("online-softmax", "sums that start at 1", ATTENTION,
          replaced(OnlineSoftmaxBuilder, "initialize_state", lambda f: lambda self, count: f(self, count)[:-1]),
          "online-softmax{max-untiled-length=4, column-block=4, row-block=4},vectorize,tile,peel,expand-math", "online softmax"),
    Fault("vectorize", "a lost mask", MAP, replaced(vectorize_pass.tile, "map_ranges", lambda f: lambda body, rule: f(body, lambda r, s: (q := rule(r, s)).with_(hi=ceildiv(q.hi, q.lanes) * q.lanes) if rule(r, s).lanes and not r.lanes else rule(r, s))),
          "vectorize", "vectorized by"),
    Fault("cascade-sums", "a dropped remainder", SUMS, replaced(cascade_sums, "strip_mine", lambda f: lambda *a: replace(f(*a), remainder=None)), "cascade-sums{max-terms=8, min-block=4}", "in blocks"),
    Fault("peel", "a dropped remainder", SOFTMAX, replaced(peel, "peel_range", lambda f: lambda *a: f(*a)[:1]), message="partial tiles"),
    Fault("split-prologue", "one row for all", PROLOGUE, replaced(distribute, "in_row", lambda f: lambda body, local, rows, row: f(body, local, rows, (0,))),
          "split-prologue,unroll,peel", "row by row"),
    Fault("split-epilogue", "the epilogue first", GATES, replaced(split_epilogue, "distribute", lambda f: lambda *a: (f(*a)[0], *f(*a)[:0:-1])),
          "split-epilogue{max-epilogue-ops=150},unroll,peel,expand-math", "split into its own loop"),
    Fault("pack", "a layout without a dimension", PANELS, replaced(Pack, "packed_layout", lambda f: lambda *a: None if f(*a) is None else replace(f(*a), physical_dims=f(*a).physical_dims[:-1])), message="stored as"),
    Fault("unroll", "a lost last step", PANELS, replaced(Unroll, "fully_unroll", lambda f: lambda self, ranges, copies: tuple(r.with_(hi=r.hi - 1) for r in f(self, ranges, copies))), message="unrolled"),
    Fault("parallelize", "a lost last iteration", PREFIX, replaced(parallelize.Parallelize, "keep_parallel", lambda f: lambda self, loop, *a: f(self, replace(loop, range=loop.range.with_(hi=63)), *a)),
          "vectorize,parallelize{min-seconds=0}", "parallel"),
    Fault("expand-math", "a wrong polynomial", MAP, replaced(expansions, "expand", lambda f: lambda call: f(call) * 1.001), message="exp expanded"),
)  # fmt: skip
"""One fault for each of many passes."""


def find(fault: Fault, reduce: bool = True) -> Bisection | None:
    """Bisect the IR of a fault while that is planted."""
    ir = parse_ir(fault.ir) if isinstance(fault.ir, str) else fault.ir()
    with fault.plant():
        return bisect(ir, options=Options(cache=""), passes=fault.passes, reduce=reduce)


def is_named(fault: Fault, found: Bisection | None) -> bool:
    """Return True if the right pass and rewrite were found."""
    return found is not None and found.pass_name == fault.name and fault.message in found.message


def main(names: Sequence[str]) -> int:
    """Print the table; 1 if a fault was not named."""
    missed = 0
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        start = time.perf_counter()
        found, lines = None, 0
        try:
            found = find(fault)
            lines = len(found.reduced.splitlines()) if found else 0
        except Exception as error:
            print(f"{fault.name}: {type(error).__name__}: {error}")
        right = is_named(fault, found)
        missed += not right
        what = f"{found.pass_name or found.stage}: {found.message}" if found else "nothing"
        count = f"{found.number}/{found.total}, {found.compilations} compilations" if found else ""
        seconds = time.perf_counter() - start
        print(
            f"{'ok ' if right else 'NO '} {fault.name:20} {seconds:6.1f} s  {lines:3} lines  {count:28} {what[:90]}",
            flush=True,
        )
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
