"""merge-kernels: launches share a kernel if they differ in the entries of their arguments alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.errors import ParseError, VerifyError
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.verify.program import verify_program
from compiler.testing.checks import check_pass

HEAD = "program { input %x: f32[4, 6]  output %y: f32[3, 6] "
STEP = """kernel @{0}(in %x: f32[4, 6], in %h: f32[6], out %y: f32[1, 6]{{0+{1}:{2}, 1}}) {{
  parallel %i in 0..6 {{ store %x[{1}, %i] + %x[{3}, %i] * %h[%i], %y[0, %i] }} }}"""
FIRST, SECOND = STEP.format("first", 0, 2, 1), STEP.format("second", 1, 1, 2)
MERGED = """kernel @first(in %x: f32[2, 6], in %h: f32[6], out %y: f32[1, 6]) {
  parallel %i in 0..6 { store %x[0, %i] + %x[1, %i] * %h[%i], %y[0, %i] } }"""
LAST = "kernel @last(in %h: f32[6], out %y: f32[1, 6]{0+2:0, 1}) { parallel %i in 0..6 { store %h[%i], %y[0, %i] } }"


def test_steps_share_a_kernel() -> None:
    check_pass(
        "merge-kernels",
        before=f"{HEAD} input %h: f32[6] {FIRST} {SECOND} {LAST}"
        "launch @first(%x, %h, %y)  launch @second(%x, %h, %y)  launch @last(%h, %y) }",
        after=f"{HEAD} input %h: f32[6] {MERGED} {LAST} view %x.0 = %x[0:2]  view %y.0 = %y[0:1]  launch @first(%x.0, %h, %y.0)"
        "view %x.1 = %x[1:3]  view %y.1 = %y[1:2]  launch @first(%x.1, %h, %y.1)  launch @last(%h, %y) }",
        remark="1 kernels differ from others in the entries of their arguments alone",
    )


@pytest.mark.parametrize(
    "second",
    [
        STEP.format("second", 1, 1, 3),  # other entries, at another distance
        SECOND.replace("%x[1, %i] +", "%x[1, %i] -"),  # other arithmetic
        SECOND.replace("f32[4, 6]", "f32[4, 6]{1, 0}"),  # entries that are not contiguous
    ],
)
def test_other_kernels_stay_as_they_are(second: str) -> None:
    x = "buffer %x: f32[4, 6]{1, 0} kernel @fill(out %x: f32[4, 6]{1, 0}) { parallel %i in 0..4 { parallel %j in 0..6 { store 1.0, %x[%i, %j] } } }"
    transposed = "{1, 0}" in second
    head = f"program {{ output %y: f32[3, 6] {x}" if transposed else HEAD
    first = FIRST.replace("f32[4, 6]", "f32[4, 6]{1, 0}") if transposed else FIRST
    launches = "launch @first(%x, %h, %y)  launch @second(%x, %h, %y)  launch @last(%h, %y)"
    check_pass(
        "merge-kernels",
        unchanged=f"{head} input %h: f32[6] {first} {second} {LAST} {'launch @fill(%x)' if transposed else ''} {launches} }}",
    )


def test_kernels_of_other_sizes_stay() -> None:
    kernels = "".join(
        f"kernel @fill_{n}(size {n} in 1..9 hint 4, out %y: f32[{n}]) {{ parallel %i in 0..{n} {{ store cast<f32>(index({n})), %y[%i] }} }} "
        for n in "st"
    )
    check_pass(
        "merge-kernels",
        unchanged=f"""program {{ size s in 1..9 hint 4  size t in 1..9 hint 4  input %x: f32[s, t]  output %y: f32[s]  output %z: f32[t]  {kernels}
          launch @fill_s(%y)  launch @fill_t(%z) }}""",
    )


class Unrolled(nn.Module):
    """A recurrence written as a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h, results = torch.zeros(x.shape[1], 16), []
        for t in range(x.shape[0]):
            h = torch.tanh(self.inputs(x[t]) + self.state(h))
            results.append(h)
        return torch.stack(results)


def test_an_unrolled_recurrence_takes_the_kernels_of_a_short_one() -> None:
    model = Unrolled().eval()
    counts = []
    for steps in (6, 12):
        x = torch.randn(steps, 3, 8)
        compiled = compiler.compile(model, (x,), options={"cache": ""})
        torch.testing.assert_close(compiled(x), model(x))
        counts.append(len(compiled.stages.scheduled.kernels))
    assert counts[0] == counts[1] <= 4


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("%x[1:1]", "constant number of entries"),
        ("%x[2:5]", "index 2 is not in 0..4"),
    ],
)
def test_wrong_views_are_refused(view: str, message: str) -> None:
    copy = "kernel @copy(in %x: f32[3, 6], out %y: f32[3, 6]) { parallel %i in 0..3 { parallel %j in 0..6 { store %x[%i, %j], %y[%i, %j] } } }"
    with pytest.raises((ParseError, VerifyError), match=message):
        verify_program(parse_program(f"{HEAD} {copy} view %v = {view}  launch @copy(%v, %y) }}"))
