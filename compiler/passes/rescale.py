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

from compiler.ir import scalar, tile
from compiler.ir.index import Dim, var, variables
from compiler.ir.linear import coefficient
from compiler.ir.scalar import Call, Const, Expr, IndexValue, Load, Ref
from compiler.ir.structure import lowest
from compiler.ir.tile import Block, For, Let, Local, Range, Reduce, Stmt, Store
from compiler.ir.types import TensorType
from compiler.passes.nest import names_in

FREE, SCALED, FINAL = 0, 1, 2
"""How a value follows the maximum: not at all; in proportion to exp(-maximum); in another way, known when the row is done."""


@dataclass(frozen=True)
class Product:
    """Loops `chain` around one sum, `before` it and `after` it; `divisor` divides the sum when the row is done."""

    chain: tuple[Range, ...]
    before: Block
    sum: Reduce
    after: Block
    divisor: Expr | None = None


@dataclass
class Row:
    """The statements of one row by what becomes of them when it is taken in parts."""

    extent: Dim
    top: Reduce
    before: list[Stmt] = field(default_factory=list)
    shifts: list[Stmt] = field(default_factory=list)
    sums: list[Reduce] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)
    kept: dict[str, TensorType] = field(default_factory=dict)


def last_seen(top: Reduce) -> Dim | None:
    """The last place that takes part, where the maximum is of `where(place <= last, score, -inf)`; None where that is not so."""
    names = {s.name: s.value for s in top.body if isinstance(s, Let)}

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
        if isinstance(e, Call) and e.primitive in ("add", "sub"):
            a, b = map(index, e.operands)
            return None if a is None or b is None else a + b if e.primitive == "add" else a - b
        return None

    def bound(e: Expr) -> Dim | None:
        """What `place` may not pass where `e` holds."""
        e = resolved(e)
        if not isinstance(e, Call) or e.primitive not in ("le", "lt", "ge", "gt"):
            return None
        small, large = e.operands if e.primitive in ("le", "lt") else e.operands[::-1]
        a, b = index(small), index(large)
        if a is None or b is None or coefficient(a - b, place) != 1:
            return None
        last = var(place) - (a - b) - (e.primitive in ("lt", "gt"))
        return None if place in variables(last) else last

    place, value = top.ranges[0].var, resolved(top.value)
    if not isinstance(value, Call) or value.primitive != "where":
        return None
    hidden = resolved(value.operands[2])
    return bound(value.operands[0]) if isinstance(hidden, Const) and hidden.value == lowest(hidden.dtype) else None


def row_of(body: Block) -> Row | None:
    """The row that `body` computes; None where its sums do not follow one maximum."""
    return _Reader(body).read()


class _Reader:
    """One pass over the statements of a row, in order."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.degrees: dict[str, int] = {}  # of names and local buffers
        self.locals = {s.buffer: s.type for s in body if isinstance(s, Local)}
        self.ratios: dict[str, tuple[str, Expr]] = {}  # buffers that hold another one divided by a value of the row
        self.row: Row | None = None

    def read(self) -> Row | None:
        early: list[Stmt] = []
        for stmt in self.body:
            if isinstance(stmt, Local):
                continue
            if self.row is None:
                if isinstance(stmt, Let):
                    early.append(stmt)
                elif not self.starts(stmt, early):
                    return None
            elif not self.takes(self.row, stmt):
                return None
        row = self.row
        return row if row is not None and row.sums and row.products else None

    def starts(self, stmt: Stmt, early: list[Stmt]) -> bool:
        """The maximum of the scores."""
        if not isinstance(stmt, Reduce) or stmt.op != "max" or len(stmt.ranges) != 1 or not stmt.value.dtype.is_float:
            return False
        r = stmt.ranges[0]
        if r.lo != 0 or variables(r.hi) or not self.keeps(stmt.body, r):
            return False
        lengthwise = {n: t for n, t in self.locals.items() if t.shape == (r.hi,)}
        if len(lengthwise) < len(self.locals):
            return False
        self.row = Row(r.hi, stmt, before=early, kept=lengthwise)
        return True

    def keeps(self, body: Block, r: Range) -> bool:
        """Whether local buffers are stored to at the place of the loop alone, and nothing else is."""
        return all(
            s.buffer in self.locals and s.index == (var(r.var),) for s in tile.walk(body) if isinstance(s, Store)
        )

    def takes(self, row: Row, stmt: Stmt) -> bool:
        """Give a statement its part; False where it has none."""
        if isinstance(stmt, Let):
            return self.named(row, stmt)
        if isinstance(stmt, Store):
            row.after.append(stmt)
            return stmt.buffer not in self.locals
        if isinstance(stmt, Reduce):
            if stmt.op != "add" or self.reduced(row, stmt) != SCALED:
                return False
            row.sums.append(stmt)
            self.degrees[stmt.name] = FINAL
            return True
        return isinstance(stmt, For) and (self.ratio(row, stmt) or self.product(row, stmt))

    def named(self, row: Row, stmt: Let) -> bool:
        """A value of the row: the maximum with nothing for a row that is all hidden, or one that is known in the end."""
        if is_shift(stmt.value, row.top.name):
            row.shifts.append(stmt)
            return True
        degree = FINAL if row.top.name in names_in(stmt.value) else self.degree(stmt.value)
        self.degrees[stmt.name] = degree or FREE
        (row.before if degree == FREE else row.after).append(stmt)
        return degree in (FREE, FINAL)

    def reduced(self, row: Row, stmt: Reduce) -> int | None:
        """How the sum of a row follows the maximum; None where it is no such sum."""
        r = stmt.ranges[0]
        if len(stmt.ranges) != 1 or (r.lo, r.hi) != (0, row.extent) or not self.keeps(stmt.body, r):
            return None
        for s in stmt.body:
            if not isinstance(s, (Let, Store)):
                return None
            degree = self.degree(s.value)
            if degree not in (FREE, SCALED):
                return None
            self.degrees[s.name if isinstance(s, Let) else s.buffer] = degree
        return self.degree(stmt.value)

    def ratio(self, row: Row, stmt: For) -> bool:
        """for %k { store %e[%k] / t, %p[%k] }: the division can wait."""
        if (
            len(stmt.body) != 1
            or not isinstance(stmt.body[0], Store)
            or (stmt.range.lo, stmt.range.hi) != (0, row.extent)
        ):
            return False
        store, here = stmt.body[0], (var(stmt.range.var),)
        e = store.value
        if not (isinstance(e, Call) and e.primitive == "div" and self.keeps(stmt.body, stmt.range)):
            return False
        held, by = e.operands
        if not (isinstance(held, Load) and held.index == here and self.degree(held) == SCALED):
            return False
        if self.degree(by) != FINAL or stmt.range.var in names_in(by):
            return False
        self.ratios[store.buffer] = held.buffer, by
        return True

    def product(self, row: Row, stmt: For) -> bool:
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
        simple = all(isinstance(s, Let) and self.degree(s.value) == FREE for s in before)
        if not simple or len(divisors) > 1 or undivided.op != "add" or self.reduced(row, undivided) != SCALED:
            return False
        if any(isinstance(s, (For, Reduce, Local)) for s in after) or any(
            s.buffer in self.locals for s in tile.walk(after) if isinstance(s, Store)
        ):
            return False
        row.products.append(Product(tuple(chain), before, undivided, after, divisors[0] if divisors else None))
        return True

    # how values follow the maximum

    def degree(self, e: Expr) -> int | None:
        """FREE, SCALED or FINAL; None for what is none of them."""
        assert self.row is not None
        if isinstance(e, Ref):
            return None if self.shift(e) else self.degrees.get(e.name, FREE)
        if isinstance(e, Load):
            known = self.degrees.get(e.buffer, FREE)
            return known if all(self.degree(a) == FREE for a in e.args) else None
        if not isinstance(e, Call):
            return FREE
        if e.primitive == "exp" and self.shifted(e.operands[0]):
            return SCALED
        return combined(e, [self.degree(a) for a in e.operands])

    def shifted(self, e: Expr) -> bool:
        """x - maximum"""
        if not (isinstance(e, Call) and e.primitive == "sub"):
            return False
        x, top = e.operands
        return self.degree(x) == FREE and self.shift(top)

    def shift(self, e: Expr) -> bool:
        """Whether `e` is the maximum, as it is or with 0 for nothing."""
        assert self.row is not None
        names = {self.row.top.name, *(s.name for s in self.row.shifts if isinstance(s, Let))}
        return isinstance(e, Ref) and e.name in names


def combined(e: Call, parts: list[int | None]) -> int | None:
    """How a call follows the maximum, given how its operands do."""
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    if FINAL in known:
        return FINAL if SCALED not in known else None
    if SCALED not in known:
        return FREE
    if e.primitive == "mul":
        return SCALED if known.count(SCALED) == 1 else None
    if e.primitive in ("div", "neg"):
        return SCALED if known[1:] in ([], [FREE]) else None
    if e.primitive in ("add", "sub"):
        return SCALED if known == [SCALED, SCALED] else None
    if e.primitive == "where":
        chosen = zip(e.operands[1:], known[1:], strict=True)
        return SCALED if known[0] == FREE and all(k == SCALED or is_zero(x) for x, k in chosen) else None
    return None


def is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def is_shift(e: Expr, top: str) -> bool:
    """where(top == -inf, 0, top)"""
    own = Ref(e.dtype, top)
    return e.dtype.is_float and e.same(guarded(own))


def guarded(top: Expr) -> Expr:
    """A maximum that may be subtracted: 0 where there is nothing yet."""
    return scalar.where(top.eq(lowest(top.dtype)), 0.0, top)
