"""Text of index expressions, layouts and types; tokens and their places."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import ParseError
from compiler.ir.symbolic.index_expr import Dim, evaluate, floordiv, minimum, mod, var
from compiler.ir.text.lexer import Cursor, parse_all, tokenize
from compiler.ir.text.type_parser import parse_type, read_dim
from compiler.ir.types import Layout, PhysicalDim, TensorType, f32


def combine(children: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    positive = st.integers(1, 9)
    return st.one_of(
        st.tuples(children, children).map(lambda p: p[0] + p[1]),
        st.tuples(children, children).map(lambda p: p[0] * p[1]),
        st.tuples(children, children).map(lambda p: p[0] - p[1]),
        st.tuples(children, children).map(lambda p: minimum(*p)),
        st.tuples(children, positive).map(lambda p: floordiv(*p)),
        st.tuples(children, positive).map(lambda p: mod(*p)),
        children.map(lambda d: floordiv(d, var("n"))),
        children.map(lambda d: mod(d, var("n") + 1)),
    )


dims = st.recursive(st.sampled_from([var("i"), var("j"), var("n"), 1, -3, 4]), combine, max_leaves=8)


@given(dims)
@settings(deadline=None)
def test_index_text_parses_back(d: Dim) -> None:
    assert parse_all(str(d), read_dim) == d


@given(dims)
@settings(deadline=None)
def test_index_text_means_in_python_what_it_means_here(d: Dim) -> None:
    values = {"i": 7, "j": -5, "n": 3}
    assert eval(str(d), {}, values) == evaluate(d, values)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("s0*4", "s0*4"),
        ("i//4", "i//4"),
        ("-(i//4)", "-(i//4)"),
        ("(i//4)*(j//8)", "(i//4)*(j//8)"),
        ("i*(j//4)", "i*(j//4)"),
        ("%i + %n%4 - 1", "i + n%4 - 1"),
        ("(4 + i)%(n*2)", "(i + 4)%(n*2)"),
        ("min(%i, n + 1)*2 - min(4, 5)", "min(i, n + 1)*2 - 4"),
        ("2*3 + 1", "7"),
        ("0 - -3", "3"),
    ],
)
def test_index_spelling(text: str, again: str) -> None:
    assert str(parse_all(text, read_dim)) == again


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[128, s0*4]",
        "bf16[n, 3, h//2]{0, 2, 1}",
        "i8[64, 64]{0/16, 1, 0%16}",
        "bool[0]",
        "f32[2, 3]{1+2:0, 0+0:1}",
    ],
)
def test_types_round_trip(text: str) -> None:
    assert str(parse_type(text)) == text


def test_a_margin_of_nothing_is_none() -> None:
    assert str(parse_type("f32[2, 3]{1 + 0:0, 0+1 : 2}")) == "f32[2, 3]{1, 0+1:2}"


def test_a_type_is_what_it_says() -> None:
    layout = Layout((PhysicalDim(0, 16), PhysicalDim(1), PhysicalDim(0, 16, True)))
    assert parse_type("f32[ 128,s0 * 4 ]{0/16,1,0 % 16}") == TensorType(f32, (128, var("s0") * 4), layout)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("f32[4", 1, 6, "expected `,` or `.`, found end of input"),
        ("f33[4]", 1, 1, "did you mean f32"),
        ("f32[\n 4 4]", 2, 4, "expected `,` or `.`, found `4`"),
        ("f32[n//0]", 1, 6, "division by zero"),
        ("f32[4]{1}", 1, 8, "dimension 1 of a type of rank 1"),
        ("f32[4]{0/0}", 1, 10, "block of size 0"),
        ("f32[4]{0+1}", 1, 11, "expected `:`, found `}`"),
        ("f32[4]{0+1:-1}", 1, 8, "negative margin"),
        ("f32[4]{0+1:1/2}", 1, 13, "expected"),
        ("f32[4] ?", 1, 8, "unexpected character '?'"),
        ("f32[4] f32", 1, 8, "expected end of input"),
        ("f32[1.5]", 1, 5, "expected an index expression"),
        ("f32[" + "(" * 5000, 1, None, "nested too deeply"),
        ("f32[" + "9" * 5000 + "]", 1, 5, "too long"),
        ('f32["\\q"]', 1, 5, "malformed string"),
    ],
)
def test_errors_say_where(text: str, line: int, column: int | None, message: str) -> None:
    with pytest.raises(ParseError, match=message.replace("(", r"\(").replace("?", r"\?")) as caught:
        parse_type(text)
    assert caught.value.line == line
    assert column in (None, caught.value.column)


def test_a_percent_sign_is_read_by_what_it_touches() -> None:
    def kinds(text: str) -> list[str]:
        return [t.kind for t in tokenize(text)][:-1]

    assert kinds("i%n") == kinds("%i%n".removeprefix("%")) == ["word", "mark", "word"]
    assert kinds("%i%n") == ["value", "mark", "word"]
    assert kinds("i %n") == ["word", "value"]
    assert kinds("(i)%n") == ["mark", "word", "mark", "mark", "word"]
    assert kinds("%x[0] %y") == ["value", "mark", "int", "mark", "value"]


def test_tokens_know_their_line_and_column() -> None:
    tokens = list(tokenize('a # note\n  %b.c "d\\n" @"e f" 1.5e-3..'))
    assert [(t.kind, t.text, t.line, t.column) for t in tokens] == [
        ("word", "a", 1, 1),
        ("value", "b.c", 2, 3),
        ("string", "d\n", 2, 8),
        ("global", "e f", 2, 14),
        ("float", "1.5e-3", 2, 21),
        ("mark", "..", 2, 27),
        ("end", "", 2, 29),
    ]


def test_a_range_is_not_a_number() -> None:
    assert [t.text for t in tokenize("0..128")][:-1] == ["0", "..", "128"]
    assert [t.text for t in tokenize("s0..s1")][:-1] == ["s0", "..", "s1"]


def test_an_error_shows_the_line() -> None:
    assert str(Cursor("ab\n  cd").error("no", list(tokenize("ab\n  cd"))[1])) == "line 2, column 3: no\n    cd\n    ^"
