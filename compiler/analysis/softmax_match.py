"""Recognition of softmax rows: a row maximum, sums scaled by exp(-maximum), and products with the weights.

    local %s                                                     the scores of the row
    %m = reduce max %r { ...  store %x, %s[%r]  yield %x }
    local %e
    %t = reduce add %r { store exp(%s[%r] - %m), %e[%r]  yield %e[%r] }
    for %j { %a = reduce add %r { yield %e[%r] * v[%r, %j] }  store %a / %t, out[%j] }

Every sum is proportional to exp(-%m).  It can be computed block by block with a running maximum, and multiplied by
exp(old - new) when the maximum grows: Milakov and Gimelshein, "Online Normalizer Calculation for Softmax", 2018.
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
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.uses import names_read
from compiler.ir.types import TensorType

INDEPENDENT, PROPORTIONAL, NONLINEAR = 0, 1, 2
"""Degree of a value: independent of the maximum; proportional to exp(-maximum); or any other dependence.

A NONLINEAR value is known only at the end of the row.
"""

POWERS_OF_2 = {"exp": scalar.exp2, "exp_ftz": scalar.exp2_ftz}
"""The primitives that are exponentials, and the functions that take their place where scores are scaled by 1 / ln 2."""


@dataclass(frozen=True)
class WeightedSum:
    """Perfectly nested `loops` around one sum, with the statements before and after it.

    `divisor` divides the sum at the end of the row.
    """

    loops: tuple[Range, ...]
    prologue: Block
    reduction: Reduce
    epilogue: Block
    divisor: Expr | None = None


@dataclass
class SoftmaxRow:
    """The statements of one softmax row, by their role when the row is computed in blocks.

    `shifts` are the guarded maxima that scores are shifted by; `row_buffers` are local buffers as long as the row, of which
    `quotients` hold weights divided by a divisor.
    """

    extent: Dim
    max_reduction: Reduce
    prologue: list[Stmt] = field(default_factory=list)
    shifts: list[Stmt] = field(default_factory=list)
    reductions: list[Reduce] = field(default_factory=list)
    weighted_sums: list[WeightedSum] = field(default_factory=list)
    epilogue: list[Stmt] = field(default_factory=list)
    row_buffers: dict[str, TensorType] = field(default_factory=dict)
    quotients: set[str] = field(default_factory=set)


def last_unmasked_index(max_reduction: Reduce) -> Dim | None:
    """Return `last` if the maximum is of `where(i <= last, score, -inf)`, as with a causal mask; None otherwise."""
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
        """Return the largest loop index for which `e` holds, or None if `e` is not an upper bound on it."""
        e = resolved(e)
        if not isinstance(e, PrimitiveCall) or e.primitive not in ("le", "lt", "ge", "gt"):
            return None
        small, large = e.operands if e.primitive in ("le", "lt") else e.operands[::-1]
        a, b = index(small), index(large)
        if a is None or b is None or coefficient(a - b, loop) != 1:
            return None
        last = var(loop) - (a - b) - (e.primitive in ("lt", "gt"))
        return None if loop in variables(last) else last

    loop, value = max_reduction.ranges[0].var, resolved(max_reduction.value)
    if not isinstance(value, PrimitiveCall) or value.primitive != "where":
        return None
    masked = resolved(value.operands[2])
    return bound(value.operands[0]) if isinstance(masked, Const) and masked.value == lowest(masked.dtype) else None


def match_softmax_row(body: Block) -> SoftmaxRow | None:
    """Return the softmax row that `body` computes, or None if its sums are not all relative to one maximum."""
    return _SoftmaxMatcher(body).match()


class _SoftmaxMatcher:
    """Classifies the statements of a row in one pass, in order."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.degrees: dict[str, int] = {}  # of names and local buffers
        self.locals = {s.buffer: s.type for s in body if isinstance(s, Local)}
        self.ratios: dict[str, tuple[str, Expr]] = {}  # buffers that contain another buffer divided by a scalar
        self.row: SoftmaxRow | None = None

    def match(self) -> SoftmaxRow | None:
        prologue: list[Stmt] = []
        for stmt in self.body:
            if isinstance(stmt, Local):
                continue
            if self.row is None:
                if isinstance(stmt, Let):
                    prologue.append(stmt)
                elif not self.match_max(stmt, prologue):
                    return None
            elif not self.match_stmt(self.row, stmt):
                return None
        row = self.row
        return row if row is not None and row.reductions and row.weighted_sums else None

    def match_max(self, stmt: Stmt, prologue: list[Stmt]) -> bool:
        """Match the maximum of the scores and start the row."""
        if not isinstance(stmt, Reduce) or stmt.op != "max" or len(stmt.ranges) != 1 or not stmt.value.dtype.is_float:
            return False
        r = stmt.ranges[0]
        if r.lo != 0 or variables(r.hi) or not self.stores_only_row_buffers(stmt.body, r):
            return False
        if any(t.shape != (r.hi,) for t in self.locals.values()):
            return False
        self.row = SoftmaxRow(r.hi, stmt, prologue=prologue, row_buffers=dict(self.locals))
        return True

    def stores_only_row_buffers(self, body: Block, r: Range) -> bool:
        """Return True if every store in `body` is to a local buffer at the index of loop `r`."""
        return all(
            s.buffer in self.locals and s.index == (var(r.var),) for s in tile.walk(body) if isinstance(s, Store)
        )

    def match_stmt(self, row: SoftmaxRow, stmt: Stmt) -> bool:
        """Assign a statement its role in the row; False if it has none."""
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
        """Match a scalar of the row: the guarded maximum, an independent value, or one known at the end of the row."""
        if is_guarded_max(stmt.value, row.max_reduction.name):
            row.shifts.append(stmt)
            return True
        degree = NONLINEAR if row.max_reduction.name in names_read(stmt.value) else self.degree(stmt.value)
        self.degrees[stmt.name] = degree or INDEPENDENT
        (row.prologue if degree == INDEPENDENT else row.epilogue).append(stmt)
        return degree in (INDEPENDENT, NONLINEAR)

    def reduction_degree(self, row: SoftmaxRow, stmt: Reduce) -> int | None:
        """Return the degree of a sum over the row, or None if `stmt` is not such a sum."""
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
        """Match `for %k { store %e[%k] / t, %p[%k] }`: the division is deferred to the weighted sums."""
        r = stmt.range
        if len(stmt.body) != 1 or not isinstance(stmt.body[0], Store) or (r.lo, r.hi) != (0, row.extent):
            return False
        store, quotient = stmt.body[0], stmt.body[0].value
        if not isinstance(quotient, PrimitiveCall) or quotient.primitive != "div":
            return False
        dividend, divisor = quotient.operands
        if not (self.stores_only_row_buffers(stmt.body, r) and isinstance(dividend, Load)):
            return False
        if dividend.index != (var(r.var),) or self.degree(dividend) != PROPORTIONAL:
            return False
        if self.degree(divisor) != NONLINEAR or r.var in names_read(divisor):
            return False
        self.ratios[store.buffer] = dividend.buffer, divisor
        row.quotients.add(store.buffer)
        return True

    def match_weighted_sum(self, row: SoftmaxRow, stmt: For) -> bool:
        """Match `for %j { %a = reduce add %r { e[%r] * v[%r, %j] } ... }`, where `e` may be divided by a scalar."""
        nest = perfect_nest((stmt,))
        loops, body = tuple(f.range for f in nest), nest[-1].body
        k = next((k for k, s in enumerate(body) if isinstance(s, Reduce)), None)
        if k is None or any(r.lo != 0 or not isinstance(r.hi, int) for r in loops):
            return False
        before, after = body[:k], body[k + 1 :]
        divisors: list[Expr] = []

        def undivided(e: Expr) -> Expr:
            if isinstance(e, Load) and e.buffer in self.ratios:
                source, divisor = self.ratios[e.buffer]
                divisors.append(divisor)
                return Load(e.dtype, source, e.index, e.mask, e.other)
            return e

        reduction = tile.map_exprs((body[k],), lambda e: scalar.transform(e, undivided))[0]
        assert isinstance(reduction, Reduce)
        if any(not isinstance(s, Let) or self.degree(s.value) != INDEPENDENT for s in before) or len(divisors) > 1:
            return False
        if reduction.op != "add" or self.reduction_degree(row, reduction) != PROPORTIONAL:
            return False
        if any(isinstance(s, (For, Reduce, Local)) for s in after):
            return False
        if any(s.buffer in self.locals for s in tile.walk(after) if isinstance(s, Store)):
            return False
        row.weighted_sums.append(WeightedSum(loops, before, reduction, after, divisors[0] if divisors else None))
        return True

    # degrees of values

    def degree(self, e: Expr) -> int | None:
        """Return INDEPENDENT, PROPORTIONAL or NONLINEAR; None if it is unknown."""
        assert self.row is not None
        if isinstance(e, Ref):
            return None if self.is_row_max(e) else self.degrees.get(e.name, INDEPENDENT)
        if isinstance(e, Load):
            known = self.degrees.get(e.buffer, INDEPENDENT)
            return known if all(self.degree(a) == INDEPENDENT for a in e.args) else None
        if not isinstance(e, PrimitiveCall):
            return INDEPENDENT
        if e.primitive in POWERS_OF_2 and self.is_shifted(e.operands[0]):
            return PROPORTIONAL
        return call_degree(e, [self.degree(a) for a in e.operands])

    def is_shifted(self, e: Expr) -> bool:
        """Return True if `e` is a value minus the maximum."""
        if not (isinstance(e, PrimitiveCall) and e.primitive == "sub"):
            return False
        x, maximum = e.operands
        return self.degree(x) == INDEPENDENT and self.is_row_max(maximum)

    def is_row_max(self, e: Expr) -> bool:
        """Return True if `e` is the row maximum, guarded or not."""
        assert self.row is not None
        names = {self.row.max_reduction.name, *(s.name for s in self.row.shifts if isinstance(s, Let))}
        return isinstance(e, Ref) and e.name in names


def call_degree(e: PrimitiveCall, degrees: list[int | None]) -> int | None:
    """Return the degree of a call, given the degrees of its operands; None if it is unknown."""
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
        branches = zip(e.operands[1:], known[1:], strict=True)
        scaled = known[0] == INDEPENDENT and all(k == PROPORTIONAL or is_zero(x) for x, k in branches)
        return PROPORTIONAL if scaled else None
    return None


def is_zero(e: Expr) -> bool:
    """Return True if `e` is the constant 0."""
    return isinstance(e, Const) and e.value == 0


def is_guarded_max(e: Expr, top: str) -> bool:
    """Return True if `e` is `where(top == -inf, 0, top)`."""
    return e.dtype.is_float and e.is_structurally_equal(guarded_max(Ref(e.dtype, top)))


def guarded_max(top: Expr) -> Expr:
    """Return a maximum that is safe to subtract: 0 while every score is masked (-inf)."""
    return scalar.where(top.eq(lowest(top.dtype)), 0.0, top)
