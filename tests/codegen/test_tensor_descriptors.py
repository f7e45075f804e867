"""Matrix products by tensor descriptors in persistent programs: their source, numbers in Triton's interpreter, and code for GPUs."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import compile_offline
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.resources import KernelResources
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.runtime.gpu_executable import GPUExecutable
from tests.triton_process import NEEDS_TRITON

PRODUCT = """kernel @product(in %x: f16[3, ROWS, DEPTH] descriptor, in %w: f16[3, DEPTH, 72] descriptor, out %y: f16[3, ROWS, 72]) warps 4 SCHEDULE {
  parallel %b in 0..3 {
    parallel %i in 0..ROWS tile 64 {
      parallel %j in 0..72 tile 32 {
        %s = reduce add %k in 0..DEPTH tile 32 stages 3 { yield cast<f32>(%x[%b, %i, %k]) * cast<f32>(%w[%b, %k, %j]) }
        store cast<f16>(%s), %y[%b, %i, %j]
      }
    }
  }
}"""


def product(schedule: str = "persistent 4", rows: int = 150, depth: int = 104) -> str:
    """A batch of products whose last blocks are partial along every dimension."""
    return PRODUCT.replace("SCHEDULE", schedule).replace("ROWS", str(rows)).replace("DEPTH", str(depth))


def test_blocks_are_loaded_as_boxes_in_a_loop_over_blocks() -> None:
    text = emit_triton(parse_kernel(product()))
    assert "    x_boxes = tl.make_tensor_descriptor(x, [3, 150, 104], [15600, 104, 1], [1, 64, 32])\n" in text
    assert "    for pid in tl.range(tl.program_id(0), 27, tl.num_programs(0), flatten=True):\n" in text
    assert "            x_block = x_boxes.load([b, i_start, k_start]).reshape(64, 32)\n" in text
    assert "            s = tl.dot(x_block, w_block, s)\n" in text
    assert "    triton.set_allocator(allocate)\n    kernel[(4,)](x, w, y, **options)" in text


def test_other_kernels_need_no_allocator() -> None:
    text = emit_triton(parse_kernel(product("").replace(" descriptor", "")))
    assert "allocate" not in text
    assert "import torch" not in text
    assert "kernel[(27,)]" in text


def test_rows_that_are_not_aligned_are_loaded_by_threads() -> None:
    text = emit_triton(parse_kernel(product(depth=100)))
    assert "x_boxes" not in text
    assert "w_boxes.load([b, k_start, j_start])" in text


def test_specialized_warps_take_the_stages_of_the_loop() -> None:
    text = emit_triton(parse_kernel(product("persistent 4 warp_specialized")))
    assert "flatten=True, warp_specialize=True" in text
    assert "'num_stages': 3" in text


def errors(offsets: tuple[int, ...]) -> list[float]:
    """Return the largest error of a product whose first operand begins so many elements behind an aligned address."""
    program = parse_program(f"""program {{
      input %a: f16[3, 150, 104]  input %b: f16[3, 104, 72]  output %c: f16[3, 150, 72]
      {product()}
      launch @product(%a, %b, %c)
    }}""")
    executable = GPUExecutable(program, GPU_TARGETS["sm90"], emit_program(program))
    torch.manual_seed(0)
    memory, w, found = torch.randn(3 * 150 * 104 + 8).half(), torch.randn(3, 104, 72).half(), []
    for offset in offsets:
        x = memory[offset : offset + 3 * 150 * 104].view(3, 150, 104)
        (y,) = executable.run((x, w))
        found.append((y.double() - x.double() @ w.double()).abs().max().item())
    return found


@NEEDS_TRITON
def test_numbers_and_inputs_that_are_not_aligned(interpreter: ProcessPoolExecutor) -> None:
    """The interpreter refuses descriptors of addresses that are not aligned: such inputs are copied."""
    assert all(e < 0.03 for e in interpreter.submit(errors, (0, 1)).result())


def resources(text: str, target: str) -> KernelResources:
    return compile_offline(emit_triton(parse_kernel(text)), GPU_TARGETS[target]).resources


@NEEDS_TRITON
@pytest.mark.parametrize(
    ("schedule", "target", "warps"), [("persistent 132", "sm90", 4), ("persistent 148 warp_specialized", "sm100", 8)]
)
def test_code_copies_boxes_and_multiplies_them(
    offline: ProcessPoolExecutor, schedule: str, target: str, warps: int
) -> None:
    r = offline.submit(resources, product(schedule, 4096, 1024), target).result()
    assert r.count("UTMALDG")
    assert not r.count("LDGSTS")
    assert r.warp_group_instructions
    assert (r.spilled_bytes, r.warps) == (0, warps)
