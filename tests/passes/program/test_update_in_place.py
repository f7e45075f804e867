"""update-in-place: assignments write into the buffer that they change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.testing.checks import check_pass

PUT = """kernel @{0}(in %x: f32[4, 6], in %v: f32[6], out %y: f32[4, 6]) {{
  parallel %i in 0..4 {{ parallel %j in 0..6 {{ store %x[%i, %j], %y[%i, %j] }} }}
  parallel %k in 0..6 {{ store {1}, %y[2, %k] }} }}"""
IN_PLACE = """kernel @{0}(in %v: f32[6], inout %y: f32[4, 6]) {{ parallel %k in 0..6 {{ store {1}, %y[2, %k] }} }}"""
SUMS = """kernel @sums(in %x: f32[4, 6], out %s: f32[4]) {
  parallel %i in 0..4 { %a = reduce add %j in 0..6 { yield %x[%i, %j] }  store %a, %s[%i] } }"""
NEW, ADDED = "%v[%k]", "%y[2, %k] + %v[%k]"
HEAD = "program { input %x: f32[4, 6]  input %v: f32[6]  "


def test_an_input_that_the_program_writes_is_updated() -> None:
    """What reads the result reads the input then."""
    check_pass(
        "update-in-place",
        before=f"{HEAD} output %y: f32[4, 6] -> %x  output %s: f32[4] {PUT.format('put', NEW)} {SUMS}"
        "launch @put(%x, %v, %y)  launch @sums(%y, %s) }",
        after=f"{HEAD} output %x: f32[4, 6]  output %s: f32[4] {SUMS} {IN_PLACE.format('put_2', NEW)}"
        "launch @put_2(%v, %x)  launch @sums(%x, %s) }",
        remark="%y is %x, updated in place",
    )


def test_a_chain_of_updates_shares_one_kernel() -> None:
    check_pass(
        "update-in-place",
        before=f"{HEAD} output %y: f32[4, 6] -> %x  buffer %t: f32[4, 6] {PUT.format('put', ADDED)}"
        "launch @put(%x, %v, %t)  launch @put(%t, %v, %y) }",
        after=f"{HEAD} output %x: f32[4, 6] {IN_PLACE.format('put_1', ADDED)} launch @put_1(%v, %x)  launch @put_1(%v, %x) }}",
    )


def test_an_intermediate_becomes_the_output() -> None:
    fill = "kernel @fill(out %y: f32[4, 6]) { parallel %i in 0..4 { parallel %j in 0..6 { store 1.0, %y[%i, %j] } } }"
    check_pass(
        "update-in-place",
        before=f"program {{ input %v: f32[6]  output %y: f32[4, 6]  buffer %t: f32[4, 6] {fill} {PUT.format('put', NEW)}"
        "launch @fill(%t)  launch @put(%t, %v, %y) }",
        after=f"program {{ input %v: f32[6]  output %y: f32[4, 6] {fill} {IN_PLACE.format('put_2', NEW)}"
        "launch @fill(%y)  launch @put_2(%v, %y) }",
    )


RESULT, WRITTEN = "output %y: f32[4, 6]", "output %y: f32[4, 6] -> %x"
KEEP = {
    "it is an input that keeps its value": f"{HEAD} {RESULT} {PUT.format('put', NEW)} launch @put(%x, %v, %y) }}",
    "it is read later": f"{HEAD} {WRITTEN}  output %s: f32[4] {PUT.format('put', NEW)} {SUMS} launch @put(%x, %v, %y)  launch @sums(%x, %s) }}",
    "it keeps its value": f"{HEAD} {RESULT}  output %t: f32[4, 6] {PUT.format('put', NEW)} {PUT.format('other', '1.0')}"
    "launch @other(%x, %v, %t)  launch @put(%t, %v, %y) }",
    "the copy is written before": f"{HEAD} {WRITTEN} {PUT.format('put', NEW)} {PUT.format('ones', '1.0').replace('in %x: f32[4, 6], ', '').replace('%x[%i, %j]', '1.0')}"
    "launch @ones(%v, %y)  launch @put(%x, %v, %y) }",
    "one of them is no argument of kernels alone": f"{HEAD} {WRITTEN}  output %z: f32[4, 6] {PUT.format('put', NEW)} launch @put(%x, %v, %y)  copy %y -> %z }}",
}  # fmt: skip


@pytest.mark.parametrize("reason", KEEP)
def test_copies_that_stay(reason: str) -> None:
    check_pass("update-in-place", unchanged=KEEP[reason], remark=reason)


def test_a_copy_between_local_buffers_is_no_update() -> None:
    kernel = """kernel @k(in %x: f32[4], out %y: f32[4]) {
      local %a: f32[4]  local %b: f32[4]
      for %i in 0..4 { store %x[%i] * 2.0, %a[%i] }
      for %i in 0..4 { store %a[%i], %b[%i] }
      for %i in 0..4 { store %a[%i] + %b[%i], %y[%i] } }"""
    check_pass(
        "update-in-place", unchanged=f"program {{ input %x: f32[4]  output %y: f32[4] {kernel} launch @k(%x, %y) }}"
    )


class Cache(nn.Module):
    """Writes a row of a buffer and returns sums of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 16))

    def forward(self, row: Tensor, position: Tensor) -> Tensor:
        self.rows[position] = row
        return self.rows.sum(1)


def test_a_cache_of_a_module_is_written_without_a_copy() -> None:
    model, row = Cache(), torch.randn(1, 16)
    compiled = compiler.compile(model, (row, torch.tensor([0])))
    assert {"b_rows"} == {*compiled.stages.scheduled.inputs} & {*compiled.stages.scheduled.outputs}
    for position in (3, 5, 3):
        row, before = torch.randn(1, 16), model.rows.clone()
        got = compiled(row, torch.tensor([position]))
        before[position] = row
        torch.testing.assert_close(model.rows, before, rtol=0, atol=0)
        torch.testing.assert_close(got, before.sum(1))


def test_an_argument_that_has_to_be_copied_is_written_back() -> None:
    class Assign(nn.Module):
        def forward(self, x: Tensor, v: Tensor, position: Tensor) -> Tensor:
            x[position] = v
            return x * 2

    compiled = compiler.compile(Assign(), (torch.zeros(4, 6), torch.ones(1, 6), torch.tensor([1])))
    x = torch.zeros(6, 8)[:, ::2].T
    assert not x.is_contiguous()
    got = compiled(x, torch.ones(1, 6), torch.tensor([1]))
    assert torch.equal(x, torch.eye(4)[1][:, None].expand(4, 6))
    assert torch.equal(got, 2 * x)
