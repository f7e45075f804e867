"""Rows whose sums follow their maximum: softmax, and what is multiplied by it.

    local %s                                                     a score for each place of the row
    %m = reduce max %r { ...  store %x, %s[%r]  yield %x }
    local %e
    %t = reduce add %r { store exp(%s[%r] - %m), %e[%r]  yield %e[%r] }
    for %j { %a = reduce add %r { yield %e[%r] * v[%r, %j] }  store %a / %t, out[%j] }

Every sum is linear in exp(-%m).  So it can be taken over a part of the row with the maximum known by then, and multiplied by
exp(old - new) when a larger one turns up: Milakov and Gimelshein, "Online Normalizer Calculation for Softmax", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir import scalar
from compiler.ir.graph.structure import lowest
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Let, Local, Range, Reduce, Stmt, Store
from compiler.ir.tile.uses import names_read
from compiler.ir.types import TensorType

INDEPENDENT, PROPORTIONAL, NONLINEAR = 0, 1, 2
"""How a value follows the maximum: not at all; in proportion to exp(-maximum); in another way, known when the row is done."""


@dataclass(frozen=True)
class WeightedSum:
    """Loops `chain` around one sum, `before` it and `after` it; `divisor` divides the sum when the row is done."""

    loops: tuple[Range, ...]
    prologue: Block
    reduction: Reduce
    epilogue: Block
    divisor: Expr | None = None


@dataclass
class SoftmaxRow:
    """The statements of one row by what becomes of them when it is taken in parts."""

    extent: Dim
    max_reduction: Reduce
    prologue: list[Stmt] = field(default_factory=list)
    shifts: list[Stmt] = field(default_factory=list)
    reductions: list[Reduce] = field(default_factory=list)
    weighted_sums: list[WeightedSum] = field(default_factory=list)
    epilogue: list[Stmt] = field(default_factory=list)
    row_buffers: dict[str, TensorType] = field(default_factory=dict)


def last_unmasked_index(max_reduction: Reduce) -> Dim | None:
    """The last place that takes part, where the maximum is of `where(place <= last, score, -inf)`; None where that is not so."""
    names = {s.name: s.value for s in max_reduction.body if isinstance(s, Let)}

    def resolved(e: Expr) -> Expr:
        while isinstance(e, Ref) and e.name in names:
            e = names[e.name]
        return e

    def index(e: Expr) -> Dim | None:
        e = resolved(e)
        if isinstance(e, IndexValue):
            return e.index
        if isinstance(e, Const) and isinstance(e.value, int):
            return e.value
        if isinstance(e, PrimitiveCall) and e.primitive in ("add", "sub"):
            a, b = map(index, e.operands)
            return None if a is None or b is None else a + b if e.primitive == "add" else a - b
        return None

    def bound(e: Expr) -> Dim | None:
        """What `place` may not pass where `e` holds."""
        e = resolved(e)
        if not isinstance(e, PrimitiveCall) or e.primitive not in ("le", "lt", "ge", "gt"):
            return None
        small, large = e.operands if e.primitive in ("le", "lt") else e.operands[::-1]
        a, b = index(small), index(large)
        if a is None or b is None or coefficient(a - b, place) != 1:
            return None
        last = var(place) - (a - b) - (e.primitive in ("lt", "gt"))
        return None if place in variables(last) else last

    place, value = max_reduction.ranges[0].var, resolved(max_reduction.value)
    if not isinstance(value, PrimitiveCall) or value.primitive != "where":
        return None
    hidden = resolved(value.operands[2])
    return bound(value.operands[0]) if isinstance(hidden, Const) and hidden.value == lowest(hidden.dtype) else None


def match_softmax_row(body: Block) -> SoftmaxRow | None:
    """The row that `body` computes; None where its sums do not follow one maximum."""
    return _SoftmaxMatcher(body).match()


class _SoftmaxMatcher:
    """One pass over the statements of a row, in order."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.degrees: dict[str, int] = {}  # of names and local buffers
        self.locals = {s.buffer: s.type for s in body if isinstance(s, Local)}
        self.ratios: dict[str, tuple[str, Expr]] = {}  # buffers that hold another one divided by a value of the row
        self.row: SoftmaxRow | None = None

    def match(self) -> SoftmaxRow | None:
        early: list[Stmt] = []
        for stmt in self.body:
            if isinstance(stmt, Local):
                continue
            if self.row is None:
                if isinstance(stmt, Let):
                    early.append(stmt)
                elif not self.match_max(stmt, early):
                    return None
            elif not self.match_stmt(self.row, stmt):
                return None
        row = self.row
        return row if row is not None and row.reductions and row.weighted_sums else None

    def match_max(self, stmt: Stmt, early: list[Stmt]) -> bool:
        """The maximum of the scores."""
        if not isinstance(stmt, Reduce) or stmt.op != "max" or len(stmt.ranges) != 1 or not stmt.value.dtype.is_float:
            return False
        r = stmt.ranges[0]
        if r.lo != 0 or variables(r.hi) or not self.stores_only_row_buffers(stmt.body, r):
            return False
        lengthwise = {n: t for n, t in self.locals.items() if t.shape == (r.hi,)}
        if len(lengthwise) < len(self.locals):
            return False
        self.row = SoftmaxRow(r.hi, stmt, prologue=early, row_buffers=lengthwise)
        return True

    def stores_only_row_buffers(self, body: Block, r: Range) -> bool:
        """Whether local buffers are stored to at the place of the loop alone, and nothing else is."""
        return all(
            s.buffer in self.locals and s.index == (var(r.var),) for s in tile.walk(body) if isinstance(s, Store)
        )

    def match_stmt(self, row: SoftmaxRow, stmt: Stmt) -> bool:
        """Give a statement its part; False where it has none."""
        if isinstance(stmt, Let):
            return self.match_let(row, stmt)
        if isinstance(stmt, Store):
            row.epilogue.append(stmt)
            return stmt.buffer not in self.locals
        if isinstance(stmt, Reduce):
            if stmt.op != "add" or self.reduction_degree(row, stmt) != PROPORTIONAL:
                return False
            row.reductions.append(stmt)
            self.degrees[stmt.name] = NONLINEAR
            return True
        return isinstance(stmt, For) and (self.match_division(row, stmt) or self.match_weighted_sum(row, stmt))

    def match_let(self, row: SoftmaxRow, stmt: Let) -> bool:
        """A value of the row: the maximum with nothing for a row that is all hidden, or one that is known in the end."""
        if is_guarded_max(stmt.value, row.max_reduction.name):
            row.shifts.append(stmt)
            return True
        degree = NONLINEAR if row.max_reduction.name in names_read(stmt.value) else self.degree(stmt.value)
        self.degrees[stmt.name] = degree or INDEPENDENT
        (row.prologue if degree == INDEPENDENT else row.epilogue).append(stmt)
        return degree in (INDEPENDENT, NONLINEAR)

    def reduction_degree(self, row: SoftmaxRow, stmt: Reduce) -> int | None:
        """How the sum of a row follows the maximum; None where it is no such sum."""
        r = stmt.ranges[0]
        if len(stmt.ranges) != 1 or (r.lo, r.hi) != (0, row.extent) or not self.stores_only_row_buffers(stmt.body, r):
            return None
        for s in stmt.body:
            if not isinstance(s, (Let, Store)):
                return None
            degree = self.degree(s.value)
            if degree not in (INDEPENDENT, PROPORTIONAL):
                return None
            self.degrees[s.name if isinstance(s, Let) else s.buffer] = degree
        return self.degree(stmt.value)

    def match_division(self, row: SoftmaxRow, stmt: For) -> bool:
        """for %k { store %e[%k] / t, %p[%k] }: the division can wait."""
        if (
            len(stmt.body) != 1
            or not isinstance(stmt.body[0], Store)
            or (stmt.range.lo, stmt.range.hi) != (0, row.extent)
        ):
            return False
        store, here = stmt.body[0], (var(stmt.range.var),)
        e = store.value
        if not (
            isinstance(e, PrimitiveCall)
            and e.primitive == "div"
            and self.stores_only_row_buffers(stmt.body, stmt.range)
        ):
            return False
        held, by = e.operands
        if not (isinstance(held, Load) and held.index == here and self.degree(held) == PROPORTIONAL):
            return False
        if self.degree(by) != NONLINEAR or stmt.range.var in names_read(by):
            return False
        self.ratios[store.buffer] = held.buffer, by
        return True

    def match_weighted_sum(self, row: SoftmaxRow, stmt: For) -> bool:
        """for %j { %a = reduce add %r { e[%r] * v[%r, %j] } ... }"""
        chain, body = [stmt.range], stmt.body
        while len(body) == 1 and isinstance(body[0], For):
            chain.append(body[0].range)
            body = body[0].body
        place = next((k for k, s in enumerate(body) if isinstance(s, Reduce)), None)
        if place is None or any(r.lo != 0 or not isinstance(r.hi, int) for r in chain):
            return False
        before, found, after = body[:place], body[place], body[place + 1 :]
        assert isinstance(found, Reduce)
        divisors: list[Expr] = []

        def whole(e: Expr) -> Expr:
            if isinstance(e, Load) and e.buffer in self.ratios:
                source, by = self.ratios[e.buffer]
                divisors.append(by)
                return Load(e.dtype, source, e.index, e.mask, e.other)
            return e

        undivided = tile.map_exprs((found,), lambda e: scalar.transform(e, whole))[0]
        assert isinstance(undivided, Reduce)
        simple = all(isinstance(s, Let) and self.degree(s.value) == INDEPENDENT for s in before)
        if (
            not simple
            or len(divisors) > 1
            or undivided.op != "add"
            or self.reduction_degree(row, undivided) != PROPORTIONAL
        ):
            return False
        if any(isinstance(s, (For, Reduce, Local)) for s in after) or any(
            s.buffer in self.locals for s in tile.walk(after) if isinstance(s, Store)
        ):
            return False
        row.weighted_sums.append(WeightedSum(tuple(chain), before, undivided, after, divisors[0] if divisors else None))
        return True

    # how values follow the maximum

    def degree(self, e: Expr) -> int | None:
        """FREE, SCALED or FINAL; None for what is none of them."""
        assert self.row is not None
        if isinstance(e, Ref):
            return None if self.is_row_max(e) else self.degrees.get(e.name, INDEPENDENT)
        if isinstance(e, Load):
            known = self.degrees.get(e.buffer, INDEPENDENT)
            return known if all(self.degree(a) == INDEPENDENT for a in e.args) else None
        if not isinstance(e, PrimitiveCall):
            return INDEPENDENT
        if e.primitive == "exp" and self.is_shifted(e.operands[0]):
            return PROPORTIONAL
        return call_degree(e, [self.degree(a) for a in e.operands])

    def is_shifted(self, e: Expr) -> bool:
        """x - maximum"""
        if not (isinstance(e, PrimitiveCall) and e.primitive == "sub"):
            return False
        x, top = e.operands
        return self.degree(x) == INDEPENDENT and self.is_row_max(top)

    def is_row_max(self, e: Expr) -> bool:
        """Whether `e` is the maximum, as it is or with 0 for nothing."""
        assert self.row is not None
        names = {self.row.max_reduction.name, *(s.name for s in self.row.shifts if isinstance(s, Let))}
        return isinstance(e, Ref) and e.name in names


def call_degree(e: PrimitiveCall, degrees: list[int | None]) -> int | None:
    """How a call follows the maximum, given how its operands do."""
    known = [p for p in degrees if p is not None]
    if len(known) < len(degrees):
        return None
    if NONLINEAR in known:
        return NONLINEAR if PROPORTIONAL not in known else None
    if PROPORTIONAL not in known:
        return INDEPENDENT
    if e.primitive == "mul":
        return PROPORTIONAL if known.count(PROPORTIONAL) == 1 else None
    if e.primitive in ("div", "neg"):
        return PROPORTIONAL if known[1:] in ([], [INDEPENDENT]) else None
    if e.primitive in ("add", "sub"):
        return PROPORTIONAL if known == [PROPORTIONAL, PROPORTIONAL] else None
    if e.primitive == "where":
        chosen = zip(e.operands[1:], known[1:], strict=True)
        return (
            PROPORTIONAL
            if known[0] == INDEPENDENT and all(k == PROPORTIONAL or is_zero(x) for x, k in chosen)
            else None
        )
    return None


def is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def is_guarded_max(e: Expr, top: str) -> bool:
    """where(top == -inf, 0, top)"""
    own = Ref(e.dtype, top)
    return e.dtype.is_float and e.is_structurally_equal(guarded_max(own))


def guarded_max(top: Expr) -> Expr:
    """A maximum that may be subtracted: 0 where there is nothing yet."""
    return scalar.where(top.eq(lowest(top.dtype)), 0.0, top)
