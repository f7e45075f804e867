"""split: strips, pieces and residue classes of loops."""

from __future__ import annotations

import pytest

from compiler.errors import TransformError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Block, For, Range
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.transforms.split import split_at, split_by_remainder, split_index, strip_mine, strip_mine_to_end
from tests.transforms.apply import body_of, check_transform, loop_of


def kernel(body: str, size: str = "100", sizes: str = "") -> str:
    return f"kernel @k({sizes}in %x: f32[{size}], out %y: f32[{size}]) {{ {body} }}"


STEP = "store %x[%i] + 1.0, %y[%i]"


def strips(body: Block, to_end: bool) -> Block:
    loop = loop_of(body)
    split = (strip_mine_to_end if to_end else strip_mine)(loop.range, 8, "strip")
    main = wrap_in_nest([split.outer, split.inner], loop.body)
    if split.remainder is None:
        return main
    (rest,) = wrap_in_nest([split.remainder], loop.body)
    assert isinstance(rest, For)
    supply = NameSupply(parse_kernel(kernel("")).with_body(main))
    return (*main, with_fresh_names(rest, supply))


def test_full_strips_and_a_remainder() -> None:
    check_transform(
        lambda b: strips(b, to_end=False),
        before=kernel(f"for %i in 0..100 {{ {STEP} }}"),
        after=kernel(f"""for %s in 0..12 {{ for %i in %s*8..%s*8 + 8 {{ {STEP} }} }}
                         for %j in 96..100 {{ {STEP.replace("%i", "%j")} }}"""),
    )


def test_strips_that_divide_leave_no_remainder() -> None:
    check_transform(
        lambda b: strips(b, to_end=False),
        before=kernel(f"for %i in 4..100 {{ {STEP} }}"),
        after=kernel(f"for %s in 0..12 {{ for %i in %s*8 + 4..%s*8 + 12 {{ {STEP} }} }}"),
    )


def test_a_dynamic_extent_has_a_dynamic_remainder() -> None:
    size = "size n in 0..64 hint 20, "
    check_transform(
        lambda b: strips(b, to_end=False),
        before=kernel(f"for %i in 0..n {{ {STEP} }}", "n", size),
        after=kernel(
            f"""for %s in 0..n//8 {{ for %i in %s*8..%s*8 + 8 {{ {STEP} }} }}
                for %j in n//8*8..n {{ {STEP.replace("%i", "%j")} }}""",
            "n",
            size,
        ),
    )


def test_the_last_strip_ends_with_the_loop() -> None:
    check_transform(
        lambda b: strips(b, to_end=True),
        before=kernel(f"for %i in 0..100 {{ {STEP} }}"),
        after=kernel(f"for %s in 0..13 {{ for %i in %s*8..%s*8 + min(8, 100 - %s*8) {{ {STEP} }} }}"),
    )


def test_pieces_of_an_index_set() -> None:
    r = Range("i", 0, 100, tile=8)
    assert split_at(r, 96) == [Range("i", 0, 96, tile=8), Range("i", 96, 100, tile=8)]
    assert split_at(r, 0) == [r]
    assert split_at(r, 100) == [r]


DIVIDED = "kernel @k(in %x: f32[4, 2], out %y: f32[8]) { parallel %i in 0..8 { store %x[%i//2, %i%2], %y[%i] } }"


def test_quotient_and_remainder_become_two_loops() -> None:
    check_transform(
        lambda b: split_index(b, "i", 2, "r"),
        before=DIVIDED,
        after="""kernel @k(in %x: f32[4, 2], out %y: f32[8]) {
          parallel %i in 0..4 { parallel %r in 0..2 { store %x[%i, %r], %y[%i*2 + %r] } } }""",
    )


def test_a_divisor_that_leaves_a_remainder_is_refused() -> None:
    with pytest.raises(TransformError, match="3 does not divide the 8 steps of %i"):
        split_index(body_of(DIVIDED), "i", 3, "r")
    with pytest.raises(TransformError, match="%j is not a loop of a perfect nest"):
        split_index(body_of(DIVIDED), "j", 2, "r")


def test_each_remainder_has_a_loop_of_its_own() -> None:
    before = "kernel @k(in %x: f32[4], out %y: f32[7]) { parallel %i in 0..7 { store %x[(%i + 1)//2], %y[%i] } }"
    check_transform(
        lambda b: tuple(s for part in split_by_remainder(b, "i", 2, [1], "r") for s in part),
        before=before,
        after="""kernel @k(in %x: f32[4], out %y: f32[7]) {
          parallel %i in 0..4 { store %x[%i], %y[%i*2] }  parallel %i in 0..3 { store %x[%i + 1], %y[%i*2 + 1] } }""",
    )
    with pytest.raises(TransformError, match="its order matters"):
        split_by_remainder(body_of(before.replace("parallel", "for")), "i", 2, [1], "r")


def test_each_remainder_of_a_dynamic_loop_has_a_nest() -> None:
    """Any of them may be the first that fewer indices have."""
    check_transform(
        lambda b: tuple(s for part in split_by_remainder(b, "i", 2, [], "r") for s in part),
        before="kernel @k(size n in 0..64 hint 20, in %x: f32[n], out %y: f32[n]) { parallel %i in 0..n { store %x[%i], %y[%i] } }",
        after="""kernel @k(size n in 0..64 hint 20, in %x: f32[n], out %y: f32[n]) {
          parallel %i in 0..(n + 1)//2 { store %x[%i*2], %y[%i*2] }
          parallel %i in 0..n//2 { store %x[%i*2 + 1], %y[%i*2 + 1] } }""",
    )


def test_remainders_between_two_starts_share_a_nest() -> None:
    """Those that fewer indices have do not share it."""
    check_transform(
        lambda b: tuple(s for part in split_by_remainder(b, "i", 8, [4], "r") for s in part),
        before="kernel @k(in %x: f32[3], out %y: f32[14]) { parallel %i in 0..14 { store %x[(%i + 4)//8], %y[%i] } }",
        after="""kernel @k(in %x: f32[3], out %y: f32[14]) {
          parallel %i in 0..2 { parallel %r in 0..4 { store %x[%i], %y[%i*8 + %r] } }
          parallel %i in 0..2 { parallel %r in 0..2 { store %x[%i + 1], %y[%i*8 + %r + 4] } }
          parallel %i in 0..1 { parallel %r in 0..2 { store %x[%i + 1], %y[%i*8 + %r + 6] } } }""",
    )
