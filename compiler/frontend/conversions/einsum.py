"""Conversion of Einstein sums: matrix products of two operands at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.frontend.conversions.contraction import matmul
from compiler.frontend.conversions.views import diagonal, permute, view
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import product


@dataclass(frozen=True)
class Labelled:
    """A tensor with a label for each dimension."""

    x: Node
    labels: tuple[str, ...]

    def in_order(self, *groups: Sequence[str]) -> Node:
        """Return the tensor with its dimensions in the order of `groups`."""
        order = [label for labels in groups for label in labels]
        return permute(self.x, [self.labels.index(label) for label in order])

    def flattened(self, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> Node:
        """Return matrices with the dimensions of `rows` and `columns` flattened."""
        sizes = dict(zip(self.labels, self.x.shape, strict=True))
        matrix = (product(sizes[label] for label in labels) for labels in (rows, columns))
        return view(self.in_order(batch, rows, columns), (*(sizes[label] for label in batch), *matrix))

    def reduced(self, kept: Collection[str]) -> Labelled:
        """Return the sum over the labels that are not kept."""
        dims = tuple(d for d, label in enumerate(self.labels) if label not in kept)
        total = ops.sum_(self.x, dims=dims) if dims else self.x
        return Labelled(total, tuple(label for label in self.labels if label in kept))


@converts("aten.einsum.default")
def einsum(equation: str, tensors: Sequence[Node], path: Sequence[int] | None = None) -> Node:
    """Contract two operands at a time: the first two, or those that `path` names."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = [_expand_ellipsis(term, x.type.rank) for term, x in zip(given.split(","), tensors, strict=True)]
    counts = Counter(label for term in terms for label in term)
    batch = sorted((label for label in counts if len(label) > 1), key=lambda label: -int(label[3:]))
    if arrow:
        before, dots, after = result.partition("...")
        target = [*before, *(batch if dots else ()), *after]
    else:
        target = [*batch, *sorted(label for label, n in counts.items() if n == 1 and len(label) == 1)]
    operands = _without_broadcast_dims([_diagonal(x, term) for x, term in zip(tensors, terms, strict=True)])
    pairs = zip(path[::2], path[1::2], strict=True) if path else ((0, 1) for _ in operands[1:])
    for i, j in pairs:
        b, a = (operands.pop(k) for k in sorted((i, j), reverse=True))
        kept = {*target, *(label for o in operands for label in o.labels)}
        operands.append(_contract(a, b, kept))
    return operands[0].reduced(target).in_order(target)


def _expand_ellipsis(term: str, rank: int) -> list[str]:
    """Return the labels of an operand; dimensions of an ellipsis are numbered from the last one."""
    before, dots, after = term.partition("...")
    count = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{k}" for k in reversed(range(count))), *after]


def _diagonal(x: Node, labels: Sequence[str]) -> Labelled:
    """Return the operand with each label once: the diagonal of the dimensions that share one."""
    rest = list(labels)
    while repeated := next((label for label in rest if rest.count(label) > 1), None):
        first = rest.index(repeated)
        second = rest.index(repeated, first + 1)
        x = diagonal(x, 0, first, second)
        rest = [label for k, label in enumerate(rest) if k not in (first, second)] + [repeated]
    return Labelled(x, tuple(rest))


def _without_broadcast_dims(operands: Sequence[Labelled]) -> list[Labelled]:
    """Remove dimensions of one element whose label has more elements elsewhere."""
    wide = {label for o in operands for label, n in zip(o.labels, o.x.shape, strict=True) if n != 1}
    result = []
    for o in operands:
        kept = [(label, n) for label, n in zip(o.labels, o.x.shape, strict=True) if n != 1 or label not in wide]
        result.append(Labelled(view(o.x, tuple(n for _, n in kept)), tuple(label for label, _ in kept)))
    return result


def _contract(a: Labelled, b: Labelled, kept: Collection[str]) -> Labelled:
    """Multiply two operands, and sum over the labels that are not kept."""
    a, b = a.reduced({*kept, *b.labels}), b.reduced({*kept, *a.labels})
    rows, columns = ([n for n in x.labels if n not in y.labels] for x, y in ((a, b), (b, a)))
    batch = [label for label in a.labels if label in b.labels and label in kept]
    inner = [label for label in a.labels if label in b.labels and label not in kept]
    labels = (*batch, *rows, *columns)
    sizes = dict(zip((*a.labels, *b.labels), (*a.x.shape, *b.x.shape), strict=True))
    if inner:
        y = matmul(a.flattened(batch, rows, inner), b.flattened(batch, inner, columns))
    else:
        y = ops.mul(a.flattened(batch, rows, ()), b.flattened(batch, (), columns))
    return Labelled(view(y, tuple(sizes[label] for label in labels)), labels)
