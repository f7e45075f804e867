"""Shares of sums: numbers that are among the terms of their divisor.

%s = reduce add %k in 0..n { %e = exp(%x[%k])  store %e, %t[%k]  yield %e }
for %i in 0..n { store %t[%i] / %s, %y[%i] }                                  0 <= %t[%i] <= %s, or NaN
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall, Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Let, Local, Reduce, Store

EXPONENTIALS = frozenset({"exp", "exp2", "exp_ftz", "exp2_ftz"})


class SumShares:
    """The definitions of a kernel's names, and what its local buffers hold."""

    def __init__(self, kernel: Kernel) -> None:
        self.definitions: dict[str, Let | Reduce] = {}
        self.writers = defaultdict[str, set[str | None]](set)
        """For each local buffer, the sums declared beside it whose terms are stored in it; None is any other store."""
        self._visit(kernel.body)

    def _visit(self, body: Block) -> None:
        beside = {s.buffer for s in body if isinstance(s, Local)}
        for s in body:
            if isinstance(s, (Let, Reduce)):
                self.definitions[s.name] = s
            inner = tile.stmt_body(s)
            for store in (t for t in inner if isinstance(t, Store)):
                is_term = isinstance(s, Reduce) and s.op == "add" and store.value == s.value and store.buffer in beside
                self.writers[store.buffer].add(s.name if is_term and isinstance(s, Reduce) else None)
            self._visit(inner)

    def is_share(self, x: Expr, y: Expr) -> bool:
        """Return True if `x` is one of the terms, none of them negative, whose sum is `y`."""
        if isinstance(x, Ref) and isinstance(found := self.definitions.get(x.name), Let):
            x = found.value
        if not isinstance(x, Load) or x.mask is not None:
            return False
        sums, writers = set(self._sums(y)), self.writers[x.buffer]
        return bool(writers) and writers <= sums and all(n and self._has_positive_terms(n) for n in sums)

    def _sums(self, y: Expr) -> Iterator[str | None]:
        """Yield the names that `y` adds, and None for other operands."""
        if isinstance(y, PrimitiveCall) and y.primitive == "add":
            for part in y.operands:
                yield from self._sums(part)
        elif isinstance(y, Ref) and isinstance(found := self.definitions.get(y.name), Let):
            yield from self._sums(found.value)
        else:
            yield y.name if isinstance(y, Ref) else None

    def _has_positive_terms(self, name: str) -> bool:
        """Return True if a name is a sum of which no term is negative."""
        found = self.definitions.get(name)
        return isinstance(found, Reduce) and found.op == "add" and self._is_positive(found.value)

    def _is_positive(self, e: Expr) -> bool:
        """Return True if a value is known not to be negative; it may be NaN."""
        match e:
            case Ref(name=name):
                found = self.definitions.get(name)
                return isinstance(found, Let) and self._is_positive(found.value)
            case Const(value=value):
                return value >= 0
            case PrimitiveCall(primitive="abs"):
                return True
            case PrimitiveCall(primitive="max", operands=(a, b)):
                return self._is_positive(a) or self._is_positive(b)
            case PrimitiveCall(primitive="mul", operands=(a, b)):
                return a == b or (self._is_positive(a) and self._is_positive(b))
            case PrimitiveCall(primitive="where", operands=(_, a, b)):
                return self._is_positive(a) and self._is_positive(b)
        return isinstance(e, PrimitiveCall) and e.primitive in EXPONENTIALS
