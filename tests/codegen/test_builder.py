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


def test_index_arithmetic_goes_before_the_loop_that_does_not_change_it() -> None:
    b = IRBuilder()

    def inner(counter: str, carried: list[str]) -> list[str]:
        scaled = b.emit("mul nsw i64 %a, 12", may_hoist=True)
        address = b.emit(f"getelementptr float, ptr %p, i64 {scaled}", may_hoist=True)
        b.emit(f"getelementptr float, ptr {address}, i64 {counter}", may_hoist=True)
        return []

    b.loop("0", "8", 1, [], lambda outer, carried: b.loop("0", "%n", 1, [], inner, may_be_empty=True))
    assert [line.split(" = ")[-1].strip() for line in b.lines][:12] == [
        "br label %loop1",
        "loop1:",
        "phi i64 [ 0, %entry ], [ %v14, %done5 ]",
        "icmp slt i64 0, %n",
        "br i1 %v6, label %entered7, label %done5",
        "entered7:",
        "mul nsw i64 %a, 12",
        "getelementptr float, ptr %p, i64 %v9",
        "br label %loop4",
        "loop4:",
        "phi i64 [ 0, %entered7 ], [ %v12, %loop4 ]",
        "getelementptr float, ptr %v10, i64 %i8",
    ]


def test_what_went_before_a_loop_belongs_to_the_loop_around() -> None:
    b, inside = IRBuilder(), list[str]()

    def outer(counter: str, carried: list[str]) -> list[str]:
        b.loop("0", "8", 1, [], lambda k, c: inside.append(b.emit(f"mul nsw i64 {counter}, 2", may_hoist=True)) or [])
        inside.append(b.emit(f"add nsw i64 {inside[0]}, 1", may_hoist=True))
        return []

    b.loop("0", "8", 1, [], outer)
    head = next(k for k, line in enumerate(b.lines) if line.endswith(":"))
    assert all(k > head for k, line in enumerate(b.lines) if line.strip().startswith(tuple(inside)))
