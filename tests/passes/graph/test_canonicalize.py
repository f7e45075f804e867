"""Canonicalize: identities go, and nothing that changes a bit does."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

IDENTITIES = {
    "x * 1": ("graph(%x: f32[4]) { %y = mul %x, 1.0  return %y }", "graph(%x: f32[4]) { return %x }"),
    "1 * x, i64": ("graph(%x: i64[4]) { %y = mul 1, %x  return %y }", "graph(%x: i64[4]) { return %x }"),
    "x / 1": ("graph(%x: f32[4]) { %y = div %x, 1.0  return %y }", "graph(%x: f32[4]) { return %x }"),
    "x / 1 in half": ("graph(%x: bf16[4]) { %y = div %x, 1.0  return %y }", "graph(%x: bf16[4]) { return %x }"),
    "x - 0.0": ("graph(%x: f32[4]) { %y = sub %x, 0.0  return %y }", "graph(%x: f32[4]) { return %x }"),
    "x + -0.0": ("graph(%x: f32[4]) { %y = add %x, -0.0  return %y }", "graph(%x: f32[4]) { return %x }"),
    "x + 0, i64": ("graph(%x: i64[4]) { %y = add %x, 0  return %y }", "graph(%x: i64[4]) { return %x }"),
    "neg neg": ("graph(%x: f32[4]) { %a = neg %x  %y = neg %a  return %y }", "graph(%x: f32[4]) { return %x }"),
    "cast to the same": ("graph(%x: f32[4]) { %y = cast %x {dtype=f32}  return %y }", "graph(%x: f32[4]) { return %x }"),
    "there and back": (
        "graph(%x: bf16[4]) { %a = cast %x {dtype=f32}  %y = cast %a {dtype=bf16}  return %y }",
        "graph(%x: bf16[4]) { return %x }",
    ),
    "transposes that cancel": (
        "graph(%x: f32[2, 3]) { %a = permute %x {dims=[1, 0]}  %b = permute %a {dims=[1, 0]}  %y = exp %b  return %y }",
        "graph(%x: f32[2, 3]) { %y = exp %x  return %y }",
    ),
    "a rotation in three steps": (
        "graph(%x: f32[2, 2, 2]) { %a = permute %x {dims=[1, 2, 0]}  %b = permute %a {dims=[1, 2, 0]}"
        "  %y = permute %b {dims=[1, 2, 0]}  return %y }",
        "graph(%x: f32[2, 2, 2]) { return %x }",
    ),
    "reshape there and back": (
        "graph(%x: f32[4, 6]) { %a = reshape %x {shape=[24]}  %y = reshape %a {shape=[4, 6]}  return %y }",
        "graph(%x: f32[4, 6]) { return %x }",
    ),
    "reshape to the same, symbolic": (
        "graph(%x: f32[n, 6]) { %y = reshape %x {shape=[n, 6]}  return %y }", "graph(%x: f32[n, 6]) { return %x }",
    ),
    "the maximum of one row": (
        "graph(%x: f32[1, 6]) { %y = amax %x {dims=[0]}  return %y }",
        "graph(%x: f32[1, 6]) { %y = reshape %x {shape=[6]}  return %y }",
    ),
    "the sum of one row, which begins with 0.0": (
        "graph(%x: f32[n, 1]) { %y = sum %x {dims=[1], keepdim=true}  return %y }",
        "graph(%x: f32[n, 1]) { %y = add %x, 0.0  return %y }",
    ),
    "the sum of one integer": (
        "graph(%x: i64[6, 1]) { %s = sum %x {dims=[1], keepdim=true}  %y = mul %s, 3  return %y }",
        "graph(%x: i64[6, 1]) { %y = mul %x, 3  return %y }",
    ),
    "constants to the right": (
        "graph(%x: f32[4]) { %y = add 2.0, %x  return %y }", "graph(%x: f32[4]) { %y = add %x, 2.0  return %y }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IDENTITIES)
def test_identities_go(case: str) -> None:
    before, after = IDENTITIES[case]
    check_pass("canonicalize", before=before, after=after)


UNSAFE = {
    "x + 0.0 turns -0.0 into 0.0": "graph(%x: f32[4]) { %y = add %x, 0.0  return %y }",
    "x * 0.0 keeps NaN": "graph(%x: f32[4]) { %y = mul %x, 0.0  return %y }",
    "x - x keeps NaN": "graph(%x: f32[4]) { %y = sub %x, %x  return %y }",
    "x - -0.0 turns -0.0 into 0.0": "graph(%x: f32[4]) { %y = sub %x, -0.0  return %y }",
    "a rule of two widths, seen in half types": "graph(%x: bf16[4]) { %y = lgamma %x  return %y }",
    "a narrow cast rounds": "graph(%x: f32[4]) { %a = cast %x {dtype=bf16}  %y = cast %a {dtype=f32}  return %y }",
    "an integer may not fit a float": "graph(%x: i64[4]) { %a = cast %x {dtype=f32}  %y = cast %a {dtype=i64}  return %y }",
    "windows of one element, two apart": "graph(%x: f32[1, 1, 6]) { %y = max_pool %x {size=[1], stride=[2], dilation=[1]}  return %y }",
    "a maximum of two rows": "graph(%x: f32[2, 6]) { %y = amax %x {dims=[0]}  return %y }",
    "one transpose": "graph(%x: f32[3, 3]) { %y = permute %x {dims=[1, 0]}  return %y }",
}


@pytest.mark.parametrize("case", UNSAFE)
def test_what_changes_a_bit_stays(case: str) -> None:
    check_pass("canonicalize", unchanged=UNSAFE[case])


def test_an_identity_that_stretches_stays() -> None:
    check_pass(
        "canonicalize", unchanged="graph(%x: f32[1]) { %c = constant f32[4] [1, 1, 1, 1]  %y = mul %x, %c  return %y }"
    )
    check_pass("canonicalize", unchanged="graph(%x: f32[1]) { %y = expand %x {shape=[4]}  return %y }")


def test_nothing_is_computed_for_a_tensor_without_elements() -> None:
    check_pass(
        "canonicalize",
        before="graph(%x: f32[0, 8]) { %m = mean %x {dims=[1], keepdim=true}   %y = exp %m   return %y }",
        after="graph(%x: f32[0, 8]) { %z = constant f32[] 0.0   %y: f32[0, 1] = expand %z {shape=[0, 1]}   return %y }",
    )


def test_a_sum_of_no_elements_is_still_computed() -> None:
    check_pass("canonicalize", unchanged="graph(%x: f32[8, 0]) { %y = sum %x {dims=[1]}   return %y }")


@pytest.mark.parametrize("narrow", ["bool", "i8", "u8"])
def test_narrow_integers_are_added_in_32_bits(narrow: str) -> None:
    check_pass(
        "canonicalize",
        before=f"graph(%x: {narrow}[8, 5]) {{ %a = cast %x {{dtype=i64}}  %y = sum %a {{dims=[1]}}  return %y }}",
        after=f"""graph(%x: {narrow}[8, 5]) {{
          %a = cast %x {{dtype=i32}}  %s = sum %a {{dims=[1]}}  %y = cast %s {{dtype=i64}}  return %y
        }}""",
    )


def test_sums_that_may_exceed_32_bits_stay() -> None:
    for x in ("u8[8, 16777216]", "i32[8, 5]", "u8[8, n]", "f32[8, 5]"):
        check_pass(
            "canonicalize",
            unchanged=f"graph(%x: {x}) {{ %a = cast %x {{dtype=i64}}  %y = sum %a {{dims=[1]}}  return %y }}",
        )
    for reduce in ("prod", "amax"):
        check_pass(
            "canonicalize",
            unchanged=f"graph(%x: u8[8, 5]) {{ %a = cast %x {{dtype=i64}}  %y = {reduce} %a {{dims=[1]}}  return %y }}",
        )


def slices(*parts: str) -> str:
    """Text of slices %p0, %p1, ... of %x, each by its dimension, start, size and step for one dimension or several."""
    lines = []
    for k, part in enumerate(parts):
        value, names = "%x", part.split("; ")
        for j, one in enumerate(names):
            name = f"%p{k}" if j == len(names) - 1 else f"%p{k}_{j}"
            dim, start, size, step = one.split()
            lines.append(f"{name} = slice {value} {{dim={dim}, start={start}, size={size}, step={step}}}")
            value = name
    return "\n".join(lines)


PARTS = {
    "corners of blocks of 2 x 2": (
        "graph(%x: f32[n, 4, 6, 3]) {"
        + slices("1 0 2 2; 2 0 3 2", "1 1 2 2; 2 0 3 2", "1 0 2 2; 2 1 3 2", "1 1 2 2; 2 1 3 2")
        + "%y = cat %p0, %p1, %p2, %p3 {dim=3}  return %y }",
        "graph(%x: f32[n, 4, 6, 3]) { %a = reshape %x {shape=[n, 2, 2, 3, 2, 3]}  %b = permute %a {dims=[0, 1, 3, 4, 2, 5]}"
        "  %y = reshape %b {shape=[n, 2, 3, 12]}  return %y }",
    ),
    "heads below each other": (
        f"graph(%x: f32[5, 6]) {{ {slices('1 0 2 1', '1 2 2 1', '1 4 2 1')}  %y = cat %p0, %p1, %p2 {{dim=0}}  return %y }}",
        "graph(%x: f32[5, 6]) { %a = reshape %x {shape=[5, 3, 2]}  %b = permute %a {dims=[1, 0, 2]}"
        "  %y = reshape %b {shape=[15, 2]}  return %y }",
    ),
    "even and odd elements": (
        f"graph(%x: i64[6]) {{ {slices('0 0 3 2', '0 1 3 2')}  %y = cat %p0, %p1 {{dim=0}}  return %y }}",
        "graph(%x: i64[6]) { %a = reshape %x {shape=[3, 2]}  %b = permute %a {dims=[1, 0]}  %y = reshape %b {shape=[6]}  return %y }",
    ),
    "blocks side by side again": (
        f"graph(%x: f32[6, 2]) {{ {slices('0 0 3 1', '0 3 3 1')}  %y = cat %p0, %p1 {{dim=0}}  return %y }}",
        "graph(%x: f32[6, 2]) { return %x }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_a_tensor_are_a_view(case: str) -> None:
    before, after = PARTS[case]
    check_pass("canonicalize", before=before, after=after)


OTHER_PARTS = {
    "in another order": ("f32[4, 6]", ("1 3 3 1", "1 0 3 1"), 0),
    "one is missing": ("f32[4, 6]", ("1 0 2 1", "1 2 2 1"), 0),
    "one twice": ("f32[4, 6]", ("1 0 3 1", "1 0 3 1"), 0),
    "they overlap": ("f32[4, 6]", ("1 0 3 1", "1 2 3 1"), 0),
    "one is turned": ("f32[6]", ("0 0 3 1", "0 5 3 -1"), 0),
    "of different sizes": ("f32[4, 6]", ("1 0 4 1", "1 4 2 1"), 1),
    "diagonal": ("f32[4, 6]", ("0 0 2 1; 1 0 3 1", "0 2 2 1; 1 3 3 1"), 0),
}


@pytest.mark.parametrize("case", OTHER_PARTS)
def test_other_parts_are_concatenated(case: str) -> None:
    x, parts, dim = OTHER_PARTS[case]
    check_pass(
        "canonicalize", unchanged=f"graph(%x: {x}) {{ {slices(*parts)}  %y = cat %p0, %p1 {{dim={dim}}}  return %y }}"
    )
