"""dot-products: contractions that multiply packed elements."""

from __future__ import annotations

import pytest

from compiler.target import MatrixShape
from compiler.testing.checks import check_pass

SHAPES = (
    MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),
    MatrixShape(1, 16, 4, "u8", "i8", "i32"),
    MatrixShape(1, 16, 2, "i16", "i16", "i32"),
)


def matmul(value: str, inputs: str, params: str, total: str = "f32", reduced: str = "0..8") -> str:
    """A program that multiplies `%a` by `%w`; `inputs` and `params` are their types outside and inside the kernel."""
    (outer_a, outer_w), (inner_a, inner_w) = (x.split(", %") for x in (inputs, params))
    return f"""program {{
      input %a: {outer_a}  input %b: {outer_w}  output %y: {total}[4, 6]
      kernel @k(in %a: {inner_a}, in %w: {inner_w}, out %y: {total}[4, 6]) {{
        for %i in 0..4 {{ for %j in 0..6 {{
          %s = reduce add %k in {reduced} {{ yield {value} }}
          store %s, %y[%i, %j]
        }} }}
      }}
      launch @k(%a, %b, %y)
    }}"""


BF16 = "cast<f32>(%a[%i, %k]) * cast<f32>(%w[%j, %k])"


def test_pairs_of_bf16() -> None:
    types = "bf16[4, 8], %bf16[6, 8]"
    check_pass(
        "dot-products",
        before=matmul(BF16, types, types),
        after=matmul("dot<f32>(%a[%i, %k], %w[%j, %k])", types, "bf16x2[4, 4], %bf16x2[6, 4]", reduced="0..4"),
        remark="%s: adds 2 products of bf16x2 and bf16x2 at once",
        matrix_shapes=SHAPES,
        special=False,
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_operands_of_two_dtypes_are_put_in_the_order_of_the_instruction(swapped: bool) -> None:
    types = "i8[4, 8], %u8[6, 8]" if swapped else "u8[4, 8], %i8[6, 8]"
    packed = "i8x4[4, 2], %u8x4[6, 2]" if swapped else "u8x4[4, 2], %i8x4[6, 2]"
    dot = "dot<i32>(%w[%j, %k], %a[%i, %k])" if swapped else "dot<i32>(%a[%i, %k], %w[%j, %k])"
    check_pass(
        "dot-products",
        before=matmul("cast<i32>(%a[%i, %k]) * cast<i32>(%w[%j, %k])", types, types, total="i32"),
        after=matmul(dot, types, packed, total="i32", reduced="0..2"),
        matrix_shapes=SHAPES,
    )


ACROSS = "cast<f32>(%a[%i, %k]) * cast<f32>(%w[%k, %j])"

PAIR = "pack<bf16x2>(%w[%k*2, %j], %w[%k*2 + 1, %j])"


def test_rows_of_an_operand_are_packed_in_registers() -> None:
    """Lanes run across them, and `hoist-operand` computes the pairs once for all rows of the other operand."""
    check_pass(
        "dot-products",
        before=matmul(ACROSS, *["bf16[4, 8], %bf16[8, 6]"] * 2),
        after=matmul(f"dot<f32>(%a[%i, %k], {PAIR})", "bf16[4, 8], %bf16[8, 6]", "bf16x2[4, 4], %bf16[8, 6]", reduced="0..4"),
        matrix_shapes=SHAPES,
        special=False,
    )  # fmt: skip


def test_four_rows_of_bytes_are_packed() -> None:
    rows = ", ".join(f"%w[%k*4{f' + {k}' if k else ''}, %j]" for k in range(4))
    check_pass(
        "dot-products",
        before=matmul(ACROSS.replace("f32", "i32"), *["u8[4, 8], %i8[8, 6]"] * 2, total="i32"),
        after=matmul(f"dot<i32>(%a[%i, %k], pack<i8x4>({rows}))", "u8[4, 8], %i8[8, 6]", "u8x4[4, 2], %i8[8, 6]", total="i32", reduced="0..2"),
        matrix_shapes=SHAPES,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("types", "value", "reason"),
    [
        ("bf16[4, 8]{1, 0}, %bf16[8, 6]", ACROSS, "neither operand is contiguous along %k"),
        ("bf16[4, 8], %bf16[8, 12]", ACROSS.replace("%j", "%j*2"), "%w is contiguous neither along %k nor across it"),
        ("bf16[4, 8], %bf16[8, 6]", ACROSS.replace("%w[%k, %j]", "load(%w[%k, %j], %j < 4, 0.0)"), "nor across it"),
        ("bf16[4, 9], %bf16[6, 8]", BF16, "%a does not consist of groups of 2 along %k"),
        (
            "bf16[4, 9], %bf16[6, 8]",
            "cast<f32>(%a[%i, %k + 1]) * cast<f32>(%w[%j, %k])",
            "%a does not consist of groups of 2",
        ),
        ("bf16[4, 8], %bf16[6, 8]", f"{BF16}".replace("%a[%i, %k]", "load(%a[%i, %k], %k < 5, 0.0)"), "%a is masked along %k"),
        ("bf16[4, 8], %bf16[6, 8]", f"{BF16}".replace("%a[%i, %k]", "load(%a[%i, %k], %i < 2, 1.0)"), "replaced by"),
    ],
)  # fmt: skip
def test_operands_that_cannot_be_packed(types: str, value: str, reason: str) -> None:
    check_pass("dot-products", unchanged=matmul(value, types, types), remark=reason, matrix_shapes=SHAPES)


def test_a_range_of_odd_length() -> None:
    types = "bf16[4, 7], %bf16[6, 7]"
    check_pass(
        "dot-products",
        unchanged=matmul(BF16, types, types, reduced="0..7"),
        remark="the range of %k does not consist of groups of 2",
        matrix_shapes=SHAPES,
    )


def test_dtypes_that_the_target_does_not_multiply() -> None:
    types = "i8[4, 8], %i8[6, 8]"
    text = matmul("cast<i32>(%a[%i, %k]) * cast<i32>(%w[%j, %k])", types, types, total="i32")
    check_pass("dot-products", unchanged=text, matrix_shapes=SHAPES)
    check_pass("dot-products", unchanged=matmul(BF16, "bf16[4, 8], %bf16[6, 8]", "bf16[4, 8], %bf16[6, 8]"))


def test_constants_may_be_narrower_than_what_the_target_multiplies() -> None:
    """They are widened in registers; of 16 bits, two of them fill half of a lane."""

    def product(image: str, weights: str, constant: str, value: str, extent: int) -> str:
        return f"""program {{
          input %a: i16[4, 4]  output %y: i32[4, 2]
          constant {constant} [[1, -2, 3, 4], [-128, 127, 0, 5]]
          kernel @k(in %a: {image}, const %w: {weights}, out %y: i32[4, 2]) {{
            for %i in 0..4 {{ for %j in 0..2 {{
              %s = reduce add %k in 0..{extent} {{ yield {value} }}
              store %s, %y[%i, %j]
            }} }}
          }}
          launch @k(%a, %w, %y)
        }}"""

    check_pass(
        "dot-products",
        before=product("i16[4, 4]", "i8[2, 4]", "%w: i8[2, 4]", "cast<i32>(%a[%i, %k]) * cast<i32>(%w[%j, %k])", 4),
        after=product("i16x2[4, 2]", "i8x2[2, 2]", "%w: i8[2, 4]", "dot<i32>(%a[%i, %k], %w[%j, %k])", 2),
        remark="adds 2 products of i16x2 and i8x2 at once",
        matrix_shapes=SHAPES,
    )


def test_an_operand_that_is_also_read_in_single_elements() -> None:
    types = "bf16[4, 8], %bf16[6, 8]"
    text = matmul(BF16, types, types).replace("store %s,", "store %s + cast<f32>(%a[%i, %j]),")
    check_pass("dot-products", unchanged=text, remark="an operand is read in single elements too", matrix_shapes=SHAPES)


def test_a_matrix_times_its_own_transpose() -> None:
    def gram(type: str, reduced: str, value: str) -> str:
        return f"""program {{
          input %a: bf16[4, 8]  output %y: f32[4, 4]
          kernel @k(in %a: {type}, out %y: f32[4, 4]) {{
            for %i in 0..4 {{ for %j in 0..4 {{
              %s = reduce add %k in {reduced} {{ yield {value} }}
              store %s, %y[%i, %j]
            }} }}
          }}
          launch @k(%a, %y)
        }}"""

    check_pass(
        "dot-products",
        before=gram("bf16[4, 8]", "0..8", "cast<f32>(%a[%i, %k]) * cast<f32>(%a[%j, %k])"),
        after=gram("bf16x2[4, 4]", "0..4", "dot<f32>(%a[%i, %k], %a[%j, %k])"),
        matrix_shapes=SHAPES,
        special=False,
    )


def test_neighbours_across_two_dimensions_of_one_array() -> None:
    """The heads of an attention, side by side: groups never straddle two of them."""
    before, after = "bf16[4, 2, 4], %bf16[6, 8]", "bf16x2[4, 2, 2], %bf16x2[6, 4]"
    check_pass(
        "dot-products",
        before=matmul("cast<f32>(%a[%i, %k//4, %k%4]) * cast<f32>(%w[%j, %k])", before, before),
        after=matmul("dot<f32>(%a[%i, %k//2, %k%2], %w[%j, %k])", before, after, reduced="0..4"),
        matrix_shapes=SHAPES,
        special=False,
    )


def test_constants_are_packed_along_any_dimension() -> None:
    """The kernel of a convolution over images whose channels are innermost."""

    def conv(image: str, weights: str, value: str, channels: int, name: str) -> str:
        return f"""program {{
          input %a: bf16[4, 6, 6]{{1, 2, 0}}  output %y: f32[5, 4, 4]
          constant {name} {[[[[1.0, 2.0, 3.0]] * 3] * 4] * 5}
          kernel @k(in %a: {image}, const %w: {weights}, out %y: f32[5, 4, 4]) {{
            for %o in 0..5 {{ for %i in 0..4 {{ for %j in 0..4 {{
              %s = reduce add %c in 0..{channels}, %u in 0..3, %v in 0..3 {{ yield {value} }}
              store %s, %y[%o, %i, %j]
            }} }} }}
          }}
          launch @k(%a, {name}, %y)
        }}"""

    image, weights = "%a[%c, %i + %u, %j + %v]", "%w[%o, %c, %u, %v]"
    before = conv("bf16[4, 6, 6]{1, 2, 0}", "bf16[5, 4, 3, 3]", f"cast<f32>({image}) * cast<f32>({weights})", 4, "%w")
    after = conv(
        "bf16x2[2, 6, 6]{1, 2, 0}", "bf16x2[5, 2, 3, 3]", f"dot<f32>({image}, {weights})", 2, "%w.0_1o2_2_3_1i2"
    )
    check_pass(
        "dot-products",
        before=before.replace("constant %w", "constant %w: bf16[5, 4, 3, 3]"),
        after=after.replace(
            "constant %w.0_1o2_2_3_1i2", "constant %w.0_1o2_2_3_1i2: bf16[5, 4, 3, 3]{0, 1/2, 2, 3, 1%2}"
        ),
        matrix_shapes=SHAPES,
        special=False,
    )


def words(value: str, reduced: str, operand: str) -> str:
    """A vector of bytes times codes of 4 bits, eight of which share a word."""
    return f"""kernel @k(in %a: {operand}, const %w: i32[6, 2], out %y: i32[6]) {{
      for %j in 0..6 {{
        %s = reduce add %k in {reduced} {{ yield {value} }}
        store %s, %y[%j]
      }}
    }}"""


def field(start: str, mask: str = " & 15") -> str:
    """A product of one code."""
    return f"cast<i32>(%a[%k]) * cast<i32>(cast<u8>(%w[%j, %k//8] >> cast<i32>(index({start})){mask}))"


def test_bytes_of_a_word_are_packed() -> None:
    dot = "dot<i32>(bitcast<u8x4>(%w[%j, %k//2] >> cast<i32>(index((%k%2)*4)) & 252645135), %a[%k])"
    check_pass(
        "dot-products",
        before=words(field("(%k//4)%2*4 + %k%4*8"), "0..16", "i8[16]"),
        after=words(dot, "0..4", "i8x4[4]"),
        remark="%s: adds 4 products of u8x4 and i8x4 at once",
        matrix_shapes=SHAPES,
    )


@pytest.mark.parametrize("value", [field("%k%8*4"), field("%k%4*8", " & 511"), field("%k//4%2*4 + %k%2*8")])
def test_other_fields_of_words_stay(value: str) -> None:
    """Neighbours that are no bytes, too wide for one, or the same."""
    check_pass("dot-products", unchanged=words(value, "0..16", "i8[16]"), matrix_shapes=SHAPES)
