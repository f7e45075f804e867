"""Text of Graph IR: what is printed parses back, and what does not parse says where."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import Loc, ParseError
from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Signature, constant_node, input_node, scalar_constant, scalar_value
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Opaque
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import graph_resources, print_graph
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import DTYPES, KERNEL_DTYPES, DType, Layout, TensorType, bf16, f32, i64

EVERYTHING = """
graph @all(%x: f32[4, s0*4], %"odd name": f32[4, s0*4], %layers.0.bias: f32[4, 1]) {
  %s = silu %x   %y: f32[4, s0*4] = add(%s, 0.5) loc("model.py":12, "y = f(x) + \\"1\\"")   # a note
  %c = constant bf16[2, 2] [[1, 2.5], [-0.0, -inf]]  %d = add 1, %c
  %w = constant i64[20] @some.weight
  %v = constant i64[0, 3]{1, 0} [] @empty
  %z = test_attrs %y, %"odd name" {a=-3, b=-0.0, c="s", d=[1, [true, none]], e=s0*2 - 1, f=bf16, g=f32[4]{0}, h={1, 0}}
  %q: f32[4, s0*4]{1, 0} = add %z, %layers.0.bias
  return %q, %d, %v, %w, %x -> %x
}
resources { @some.weight = "%s" }
""".replace('%s"', "AAAA" * 53 + "AA==" + '"')

ATTRS = dict.fromkeys("abcdefghi")


@pytest.fixture(scope="module", autouse=True)
def test_only_ops() -> Iterator[None]:
    """Ops with every kind of attribute, with a graph inside, and with two results."""

    def pair(s: Signature) -> tuple[TensorType, ...]:
        return (s.types[0], s.types[0].with_dtype(i64))

    before = set(OPS)
    declare_op("test_attrs", "x: float, y: float", Opaque("a test"), type_rule=lambda s: s.types[0], attrs=ATTRS)
    declare_op("test_body", "x*: any", Opaque("a test"), type_rule=lambda s: s.types[0], attrs={"body": None})
    declare_op("test_ones", "x: any", Opaque("a test"), type_rule=lambda s: s.types[0], attrs={"a": 1, "b": 0.0})
    declare_op("test_columns", "x: any", Opaque("a test"), type_rule=lambda s: parse_type("f32[4, 8]{1, 0}"))
    declare_op("test_pair", "x: any", Opaque("a test"), type_rule=pair)
    declare_op("test_where", "c: bool, x: any, y: any", Opaque("a test"), type_rule=lambda s: s.types[1])
    declare_op("test_bad", "x: any", Opaque("a test"), type_rule=lambda s: s.types[1], attrs={"dim": 0})
    yield
    for name in set(OPS) - before:
        del OPS[name]


def round_trip(graph: Graph, **options: Any) -> Graph:
    """The graph read from the text of `graph`, which must print the same again."""
    text = print_graph(graph, full=True, **options)
    again = parse_graph(text)
    assert print_graph(again, full=True, **options) == text
    return again


def body(statements: str, inputs: str = "%x: f32[4]") -> Graph:
    return parse_graph(f"graph({inputs}) {{ {statements} }}")


def test_the_printed_form() -> None:
    text = print_graph(parse_graph("graph @f(%x:f32[4]){%s=silu %x %y=add %s,2 return %y,%s->%x}"))
    assert text == (
        "graph @f(%x: f32[4]) {\n"
        "  %s: f32[4] = silu %x\n"
        "  %y: f32[4] = add %s, 2.0\n"
        "  return %y, %s -> %x\n"
        "}"
    )  # fmt: skip


def test_without_types_and_with_locations() -> None:
    graph = body('%y = silu %x loc("m.py":3, "silu(x)") return %y')
    assert print_graph(graph, types=False, locations=True) == (
        'graph(%x: f32[4]) {\n  %y = silu %x loc("m.py":3, "silu(x)")\n  return %y\n}'
    )


def test_a_long_header_has_a_line_per_input() -> None:
    graph = Graph(tuple(input_node(f"a_long_name_{k}", parse_type("f32[128, 768]")) for k in range(4)), ())
    text = print_graph(graph)
    assert text.split("\n")[1:3] == ["    %a_long_name_0: f32[128, 768],", "    %a_long_name_1: f32[128, 768],"]
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("locations", [False, True])
@pytest.mark.parametrize("types", [False, True])
def test_everything_round_trips(locations: bool, types: bool) -> None:
    graph = round_trip(parse_graph(EVERYTHING), locations=locations, types=types)
    q, d, v, w, x = graph.outputs
    assert graph.name == "all"
    assert graph.output_aliases == {4: 0}
    assert x is graph.inputs[0]
    assert [n.name for n in graph.inputs] == ["x", "odd name", "layers.0.bias"]
    assert d.type == TensorType(bf16, (2, 2))
    assert v.type == parse_type("i64[0, 3]{1, 0}")
    assert w.attrs["value"].name == "some.weight"
    assert v.attrs["value"].name == "empty"
    assert q.operands[0].attrs == {
        "a": -3, "b": -0.0, "c": "s", "d": (1, (True, None)), "e": var("s0") * 2 - 1, "f": bf16,
        "g": TensorType(f32, (4,), Layout.from_order([0])), "h": Layout.from_order([1, 0]), "i": None,
    }  # fmt: skip
    assert str(q.operands[0].attrs["b"]) == "-0.0"
    y = q.operands[0].operands[0]
    assert y.loc == (Loc("model.py", 12, 'y = f(x) + "1"') if locations else None)


def test_a_located_operand_gives_nothing_to_its_user() -> None:
    graph = round_trip(body('%s = silu %x loc("m.py":3) %y = silu %s return %y'), locations=True)
    assert graph.outputs[0].loc is None


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 1e-300, 0.1, 10**30, True, 0])
def test_attribute_numbers_are_exact(value: float) -> None:
    x = input_node("x", parse_type("f32[4]"))
    again = round_trip(Graph((x,), (OPS["test_attrs"](x, x, a=value),))).outputs[0].attrs["a"]
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_a_default_attribute_is_left_out() -> None:
    assert "{" not in print_graph(body("%y = test_attrs %x, %x {a=none} return %y")).split("\n")[1]


def test_what_only_equals_a_default_is_not_left_out() -> None:
    graph = round_trip(body("%y = test_ones %x {a=true, b=-0.0} %z = test_ones %y {a=1, b=0.0} return %z"))
    assert repr(graph.outputs[0].operands[0].attrs) == "{'a': True, 'b': -0.0}"
    assert repr(graph.outputs[0].attrs) == "{'a': 1, 'b': 0.0}"


def test_an_annotation_adds_a_layout_but_changes_none() -> None:
    assert body("%y: f32[4]{0} = silu %x return %y").outputs[0].type == parse_type("f32[4]{0}")
    assert body("%y: f32[4, 8] = test_columns %x return %y").outputs[0].type == parse_type("f32[4, 8]{1, 0}")
    with pytest.raises(ParseError, match="inferred type"):
        body("%y: f32[4, 8]{0, 1} = test_columns %x return %y")


def test_a_graph_inside_a_graph() -> None:
    inner = "graph @inner(%a: f32[4]) { %c = constant f32[20] @w %b = silu %a return %b }"
    text = print_graph(parse_graph(
        f"graph(%x: f32[4]) {{ %y = test_body %x {{body={inner}}} return %y }}",
        {"w": ConstantData(f32, np.zeros(20, np.float32), "w")},
    ))  # fmt: skip
    assert text == (
        "graph(%x: f32[4]) {\n"
        "  %y: f32[4] = test_body %x {body=graph @inner(%a: f32[4]) {\n"
        "    %b: f32[4] = silu %a\n"
        "    return %b\n"
        "  }}\n"
        "  return %y\n"
        "}"
    )
    assert print_graph(parse_graph(text)) == text


def test_two_results() -> None:
    graph = round_trip(body("%t: (f32[4], i64[4]) = test_pair %x return %t"))
    assert graph.outputs[0].result_type == (parse_type("f32[4]"), parse_type("i64[4]"))
    with pytest.raises(ParseError, match="inferred type"):
        body("%t: (f32[4], f32[4]) = test_pair %x return %t")
    with pytest.raises(ParseError, match="inferred type"):
        body("%t: f32[4] = test_pair %x return %t")


# constants


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@given(raw=st.binary(min_size=16, max_size=16))
@settings(max_examples=40, deadline=None)
def test_every_bit_of_a_constant_survives(dtype: DType, raw: bytes) -> None:
    if dtype.kind == "bool":
        raw = bytes(b & 1 for b in raw)
    array = np.frombuffer(raw, dtype.storage)
    again = round_trip(Graph((), (constant_node(ConstantData(dtype, array)),))).outputs[0]
    assert again.attrs["value"].array.tobytes() == raw
    assert again.dtype == dtype


@pytest.mark.parametrize("dtype", KERNEL_DTYPES.values(), ids=str)
@given(raw=st.binary(min_size=16, max_size=16))
@settings(max_examples=40, deadline=None)
def test_every_bit_of_a_scalar_operand_survives(dtype: DType, raw: bytes) -> None:
    storage = dtype.storage
    raw = raw[: storage.itemsize] if dtype.kind != "bool" else bytes([raw[0] & 1])
    scalar = constant_node(ConstantData(dtype, np.frombuffer(raw, storage).reshape(())))
    x = input_node("x", TensorType(dtype, (4,)))
    again = round_trip(Graph((x,), (ops.eq(x, scalar),))).outputs[0]
    assert again.operands[1].attrs["value"].array.tobytes() == raw


def test_contents_come_from_resources_or_from_the_text() -> None:
    data = ConstantData(f32, np.arange(20, dtype=np.float32), "w")
    graph = Graph((), (constant_node(data), constant_node(data, name="again")))
    assert graph_resources(graph) == {"w": data}
    shared = parse_graph(print_graph(graph), {"w": data})
    assert [n.attrs["value"] for n in shared.outputs] == [data, data]
    copied = parse_graph(print_graph(graph, full=True))
    assert np.array_equal(copied.outputs[0].attrs["value"].array, data.array)
    assert copied.outputs[0].attrs["value"] is copied.outputs[1].attrs["value"]


def test_equal_names_of_different_contents_are_told_apart() -> None:
    one, two = (ConstantData(f32, np.full(20, k, np.float32), "w") for k in (1, 2))
    again = round_trip(Graph((), (constant_node(one), constant_node(two))))
    assert [n.attrs["value"].array[0] for n in again.outputs] == [1, 2]


def test_a_number_rounds_to_the_nearest_of_its_type() -> None:
    graph = body("%y = add %x, 0.1 return %y", "%x: bf16[4]")
    assert scalar_value(graph.outputs[0].operands[1]) == struct.unpack("f", b"\0\0\xcd\x3d")[0]  # not 0x3dcc, below 0.1


def test_a_scalar_stays_a_constant_where_a_number_would_change_type() -> None:
    x, c = input_node("x", parse_type("i64[4]")), input_node("c", parse_type("bool[4]"))
    both = OPS["test_where"](c, scalar_constant(1.0, f32), scalar_constant(2.0, f32))
    text = print_graph(round_trip(Graph((x, c), (both, ops.add(x, scalar_constant(3, i64))))))
    assert "constant f32[] 1.0" in text
    assert "add %x, 3\n" in text


def test_a_scalar_that_is_an_output_has_a_name() -> None:
    x = input_node("x", parse_type("f32[4]"))
    one = scalar_constant(1.0)
    graph = round_trip(Graph((x,), (ops.add(x, one), one)))
    assert graph.outputs[0].operands[1] is graph.outputs[1]


def test_unnamed_and_equally_named_values_are_told_apart() -> None:
    x = input_node("x", parse_type("f32[4]"))
    one, two = ops.silu(x).with_name("x"), ops.silu(ops.silu(x))
    again = round_trip(Graph((x,), (ops.add(one, two),)))
    assert len({n.name for n in again.nodes}) == len(again.nodes) == 5


def test_bf16_bits_are_printed_as_the_numbers_they_denote() -> None:
    data = ConstantData(bf16, to_storage(np.array([1.5, -2.0], np.float32), bf16))
    assert "constant bf16[2] [1.5, -2.0]" in print_graph(Graph((), (constant_node(data),)))


# errors


@pytest.mark.parametrize(
    ("statements", "column", "message"),
    [
        ("%y = sil %x return %y", 26, "unknown op `sil`; did you mean silu"),
        ("%y = silu %z return %y", 31, "unknown value `%z`"),
        ("%y = silu %xx return %y", 31, "did you mean x"),
        ("%x = silu %x return %x", 21, "`%x` is defined twice"),
        ("%y: f32[5] = silu %x return %y", 25, "inferred type f32.4. does not match annotation f32.5."),
        ("%y: bf16[4] = silu %x return %y", 25, "inferred type f32.4. does not match annotation bf16.4."),
        ("%y = silu %x, %x return %y", 26, "takes 1 operands"),
        ("%y = add %x, true return %y", 34, "true is not representable in f32"),
        ("%y = silu %x {dim=1} return %y", 26, "unknown dim"),
        ("%y = silu %x {dim=1, dim=2} return %y", 42, "given twice"),
        ("%y = test_bad %x return %y", 26, "IndexError"),
        ("%y = input return %y", 26, "inputs are declared in the graph's parameter list"),
        ("%y = constant f32[2] [1] return %y", 44, "expected `,`"),
        ("%y = constant i8[1] [300] return %y", 42, "300 is not representable in i8"),
        ("%y = constant i8[1] [1.5] return %y", 42, "1.5 is not representable in i8"),
        ("%y = constant f32[n] [1] return %y", 42, "must be static .*got f32.n."),
        ("%y = constant f32[4] @w return %y", 42, "no contents for `@w`"),
        ("%y = silu %x return %y -> %y", 47, "not an input"),
        ("%y = silu %x", 34, "expected a statement or `return`, found `}`"),
        ("return %x } graph", 33, "expected end of input"),
    ],
)
def test_errors_say_where(statements: str, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        body(statements)
    assert (caught.value.line, caught.value.column) == (1, column)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('@w = "AAAA"', "3 bytes do not match the size of f32.20."),
        ('@w = "?"', "not base64"),
        ("@w = 3", "expected base64 text"),
        ('@v = "AAAA"', "no contents for `@w`"),
    ],
)
def test_bad_resources(section: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_graph(f"graph() {{ %y = constant f32[20] @w return %y }} resources {{ {section} }}")


def test_resources_of_another_type() -> None:
    with pytest.raises(ParseError, match=r"holds f32\[3\], not f32\[20\]"):
        parse_graph("graph() { %y = constant f32[20] @w return %y }", {"w": ConstantData(f32, np.zeros(3, np.float32))})


def test_nesting_without_end() -> None:
    for opening in ("(", "[", "{a=graph(%x:f32[4]){%y=test_body %x", "-"):
        with pytest.raises(ParseError):
            body(f"%y = test_attrs %x, %x {{a={opening * 3000}")


def test_node_repr_needs_no_names() -> None:
    x: Node = input_node("x", parse_type("f32[4]"))
    assert repr(ops.silu(x)) == "%?: f32[4] = silu(%x)"


def test_locations_with_modules_round_trip() -> None:
    locs = (Loc("m.py", 3, "y = f(x)", "layers.0"), Loc("m.py", 3, "", "fc"), Loc(module="layers.1.norm"))
    x = parse_graph("graph(%x: f32[4]) { return %x }").inputs[0]
    graph = Graph((x,), tuple(OPS["exp"](x, loc=loc) for loc in locs))
    again = parse_graph(print_graph(graph, locations=True))
    assert tuple(n.loc for n in again.outputs) == locs
    assert [str(loc) for loc in locs] == ["m.py:3 in layers.0", "m.py:3 in fc", "module layers.1.norm"]
