"""Rewriting statements."""

from __future__ import annotations

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Block, Stmt, Store, expand_stmts, walk

KERNEL = parse_kernel("""
kernel @twice(in %x: f32[4, 8], out %y: f32[4, 8], out %z: f32[4]) {
  for %i in 0..4 {
    for %j in 0..8 {
      store %x[%i, %j] * 2.0, %y[%i, %j]
    }
    store 0.0, %z[%i]
  }
}
""")


def test_statements_that_a_rule_keeps_are_the_very_same() -> None:
    """Whoever looks at the kernel again finds what is known of it."""
    assert expand_stmts(KERNEL.body, lambda s: (s,)) is KERNEL.body
    assert KERNEL.with_body(KERNEL.body) is KERNEL


def test_only_what_holds_a_changed_statement_is_made_again() -> None:
    def rule(stmt: Stmt) -> Block:
        return () if isinstance(stmt, Store) and stmt.buffer == "z" else (stmt,)

    outer, inner, stored, _ = walk(KERNEL.body)
    new_outer, new_inner, new_stored = walk(expand_stmts(KERNEL.body, rule))
    assert new_outer is not outer
    assert new_inner is inner
    assert new_stored is stored
