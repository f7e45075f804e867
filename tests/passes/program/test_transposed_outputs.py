"""layout: an output computed in another order than the caller's, and turned by a kernel of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import compiler
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.types import TensorType, f32
from compiler.ir.verify.kernel import verify_kernel
from compiler.passes.program.layout import transpose_kernel


def test_the_turning_kernel_copies_every_element() -> None:
    for dim in range(3):
        type_ = TensorType(f32, (2, 3, 5))
        kernel = transpose_kernel(type_, dim, "turn")
        verify_kernel(kernel)
        x, y = np.arange(30, dtype=np.float32).reshape(2, 3, 5), np.zeros((2, 3, 5), np.float32)
        run_kernel(kernel, {"x0": x, "out0": y})
        assert (x == y).all()


def test_a_convolution_whose_channels_lie_far_apart_is_turned() -> None:
    """Lanes lie across channels, 4096 bytes from each other in the output."""
    torch.manual_seed(0)
    model, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, 32, 32)
    compiled = compiler.compile(model, (x,), options={"verify": True})
    kernels = compiled.stages.scheduled.launched_kernels()
    wanted = model.double()(x.double())
    assert ((compiled(x) - wanted).abs().max() / wanted.abs().max()).item() < 1e-5
    assert kernels[-1] == "turn"
