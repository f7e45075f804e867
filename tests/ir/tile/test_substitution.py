"""Names inside kernels."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import For, Reduce, walk
from compiler.ir.tile.substitution import (
    NameSupply,
    map_indices,
    names_bound_by,
    substitute_indices,
    substitute_names,
    with_fresh_names,
    with_unique_names,
)
from compiler.testing.checks import canonical_text, check_equivalent

TWICE = """
kernel @k(in %x: f32[4], in %t: i64[4], out %y: f32[4], out %z: f32[4]) {
  for %i in 0..4 {
    %v = %x[%i]
    %s = reduce add %k in 0..4 { local %b: f32[1] store %v, %b[0] %w = %b[0] * 2.0 yield %w }
    store %s + %v, %y[%i]
  }
  for %i in 0..4 {
    %n = %t[%i]
    check %n in 0..8
    %v = %x[%i] * 3.0
    %s = reduce add %k in %i..%i + 2 { local %b: f32[1] store %v, %b[0] %w = %b[0] + cast<f32>(%k) yield %w }
    for %j in 0..1 { store %s + %v + cast<f32>(index(%i)), %z[%i + %j] }
  }
}"""


def names(text: str) -> list[str]:
    return [n for s in walk(with_unique_names(parse_kernel(text)).body) for n in names_bound_by(s)]


def test_names_bound_twice_become_unique() -> None:
    old = parse_kernel(TWICE)
    new = with_unique_names(old)
    found = names(TWICE)
    assert len(set(found)) == len(found) == 14
    check_equivalent(old, new, exact=True)
    assert with_unique_names(new) is new


def test_a_statement_whose_names_stay_is_kept() -> None:
    loop, _ = parse_kernel(TWICE).body
    assert substitute_names(loop, {"i": "i"}) is loop
    assert substitute_names(loop, {"i": "j"}) is not loop


def test_a_fresh_name_is_in_no_use() -> None:
    fresh = NameSupply(parse_kernel(TWICE))
    assert [fresh("q"), fresh("q"), fresh("v"), fresh("x"), fresh("q")] == ["q", "q_1", "v_1", "x_1", "q_2"]


def test_a_renamed_statement_means_the_same() -> None:
    kernel = parse_kernel("""kernel @k(in %x: f32[4], out %y: f32[]) {
      %a = %x[1]
      %s = reduce add %k in 0..4 { local %b: f32[2] %n = index(%k % 2) store %x[%k] * %a, %b[%n] yield %b[%k % 2] }
      store 1.0, %y[]
    }""")
    reduce = kernel.body[1]
    assert isinstance(reduce, Reduce)
    twin = with_fresh_names(reduce, NameSupply(kernel))
    assert not set(names_bound_by(reduce)) & set(names_bound_by(twin))
    assert canonical_text(kernel.with_body((kernel.body[0], twin, kernel.body[2]))) == canonical_text(kernel)


EVERYWHERE = """kernel @k(in %x: f32[40], out %y: f32[40]) {{ parallel %i in 0..4 {{
  prefetch %x[{i} + 2]
  for %j in {i}..{i} + 2 {{
    %n = index({i} + %j)
    check %n in 0..{i} + 9
    %s = reduce add %k in 0..{i} + 1 {{ yield load(%x[{i} + %k], index({i}) > 0, 0.0) }}
    store %s, %y[{i} + %j]
  }} }} }}"""


def test_indices_change_wherever_they_stand() -> None:
    before, after = (parse_kernel(EVERYWHERE.format(i=i)) for i in ("%i", "(%i*3 + 1)"))
    (loop,) = before.body
    assert isinstance(loop, For)
    inside = tuple(substitute_indices(s, {"i": var("i") * 3 + 1}) for s in loop.body)
    assert before.with_body((replace(loop, body=inside),)) == after


def test_a_rule_for_every_index() -> None:
    kernel = parse_kernel(EVERYWHERE.format(i="%i"))
    seen = []
    (same,) = (map_indices(s, lambda d: seen.append(str(d)) or d) for s in kernel.body)
    assert same == kernel.body[0]
    assert {"i + 2", "i + j", "i + k", "i + 9", "i + 1", "0", "4"} <= set(seen)
