"""The writer of LLVM IR: what it writes once, and what again."""

from __future__ import annotations

from compiler.codegen.llvm.builder import IRBuilder

ADD = "add i64 %a, %b"
LOAD = "load float, ptr %p, align 4"


def test_an_instruction_is_written_once() -> None:
    b = IRBuilder()
    assert b.emit(ADD) == b.emit(ADD)
    assert len(b.lines) == 1


def test_a_load_is_written_again_after_a_store() -> None:
    b = IRBuilder()
    first = b.emit(LOAD)
    assert b.emit(LOAD) == first
    b.emit_void("store float 0.0, ptr %p, align 4")
    assert b.emit(LOAD) != first


def test_a_load_is_written_again_in_a_loop_and_after_it() -> None:
    b, inside = IRBuilder(), []
    before = b.emit(LOAD)
    b.loop("0", "8", 1, [], lambda counter, carried: inside.append(b.emit(LOAD)) or [])
    assert len({before, *inside, b.emit(LOAD)}) == 3


def test_what_a_loop_computes_is_known_after_it_where_it_surely_runs() -> None:
    for may_be_empty in (False, True):
        b, inside = IRBuilder(), []
        b.loop("0", "%n", 1, [], lambda counter, carried: inside.append(b.emit(ADD)) or [], may_be_empty=may_be_empty)  # noqa: B023  # called at once
        assert (b.emit(ADD) == inside[0]) == (not may_be_empty)


def test_what_is_known_before_a_loop_is_known_inside() -> None:
    b, inside = IRBuilder(), []
    before = b.emit(ADD)
    b.loop("0", "%n", 1, [], lambda counter, carried: inside.append(b.emit(ADD)) or [], may_be_empty=True)
    assert inside == [before]


def test_calls_are_written_each_time() -> None:
    b = IRBuilder()
    assert b.intrinsic("i1", "f", ("i64", "%a")) != b.intrinsic("i1", "f", ("i64", "%a"))
