"""Code of GPU kernels, compiled without a GPU: what benchmarks/gpu_static.py asks of it, on small kernels."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from benchmarks.gpu_accesses import line_seconds, parameter_accesses
from benchmarks.gpu_static import StaticRow, case, faults, fills_matrix_units, static_rows
from compiler.analysis.accesses import Accesses
from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.loader import compile_offline
from compiler.codegen.triton.resources import KernelResources
from compiler.codegen.triton.targets import GPU_TARGETS
from compiler.cost.machine import GPU
from compiler.ir import ops
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.options import Options
from compiler.pipeline import lower_and_schedule
from tests.triton_process import NEEDS_TRITON

pytestmark = NEEDS_TRITON

CASES = {
    "softmax": case("softmax", lambda x: ops.softmax(x, dim=1), "f32[1024, 512]"),
    "transpose": case("transpose", lambda x: ops.permute(x, dims=(1, 0)), "f16[4096, 4096]"),
    "linear": case("linear", lambda x, w: ops.relu(ops.linear(x, w)), "f16[2048, 512]", "f16[1024, 512]"),
}


def compiled_rows(name: str, target: str) -> list[StaticRow]:
    return list(static_rows([CASES[name]], [target]))


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_have_no_faults(offline: ProcessPoolExecutor, name: str, target: str) -> None:
    for row in offline.submit(compiled_rows, name, target).result():
        assert row.faults == ()
        assert 0 < row.resources.registers <= 255
        assert bool(row.resources.matrix_instructions) == (name == "linear")
        assert row.resources.shared_bytes > 0  # rows are reduced, blocks transposed and operands multiplied through it


def test_faults_are_found(offline: ProcessPoolExecutor) -> None:
    """What is planted in the counts of a good kernel is reported."""
    (row,) = offline.submit(compiled_rows, "linear", "sm90").result()

    def found(**changes: object) -> tuple[str, ...]:
        return tuple(faults(row.kernel, row.target, replace(row.resources, **changes)))  # type: ignore[arg-type]

    code = dict(row.resources.instructions)
    assert found(spilled_bytes=8) == ("spills 8 bytes",)
    assert found(registers=300) == ("300 registers",)
    assert found(shared_bytes=1 << 20) == ("1048576 bytes of shared memory",)
    without = {name: n for name, n in code.items() if "MMA" not in name}
    assert found(instructions=without) == ("no matrix instructions",)
    assert found(instructions={**without, "HMMA.16816.F32": 4}) == ("mma.sync instead of wgmma",)


@pytest.mark.parametrize(
    ("target", "precision", "instruction"),
    [
        ("sm90", "tf32", "HGMMA.64x"),
        ("sm80", "tf32", "HMMA.1688.F32.TF32"),
        ("gfx942", "tf32", "xf32"),
        ("sm90", "f32", ""),
    ],
)
def test_matrix_units_multiply_tf32_only_where_asked(
    offline: ProcessPoolExecutor, target: str, precision: str, instruction: str
) -> None:
    graph = case("linear", ops.linear, "f32[2048, 512]", "f32[1024, 512]").graph()
    program = lower_and_schedule(graph, Options(target=target, matmul_precision=precision)).scheduled
    (kernel,) = program.kernels.values()
    resources = offline.submit(compile_offline, emit_triton(kernel), GPU_TARGETS[target]).result().resources
    products = [name for name in resources.instructions if "MMA" in name or "mfma" in name]
    assert bool(products) == bool(instruction)
    assert all(instruction in name and "tf32" in name.lower().replace("xf32", "tf32") for name in products)
    assert not resources.spilled_bytes


def test_narrow_accesses_are_found_where_memory_is_the_bound(offline: ProcessPoolExecutor) -> None:
    """A product has as many operations as bytes pay for, so its accesses may be narrow."""
    narrow = {}
    for name in ("transpose", "linear"):
        (row,) = offline.submit(compiled_rows, name, "sm90").result()
        code = {k.replace(".128", ".64").replace("UTMA", "X"): n for k, n in row.resources.instructions.items()}
        narrow[name] = tuple(faults(row.kernel, row.target, replace(row.resources, instructions=code)))
    assert narrow == {"transpose": ("narrow loads", "narrow stores"), "linear": ()}


@pytest.mark.parametrize(
    ("extent", "stride", "found"),
    [(2, 2, ("narrow loads",)), (3, 2, ()), (5, 2, ("narrow loads",)), (3, 1, ("narrow loads",))],
)
def test_windows_of_stride_2_that_overlap_may_have_narrow_loads(
    extent: int, stride: int, found: tuple[str, ...]
) -> None:
    """Three elements are 12 bytes, whose lines take 0.4 of the time of memory; those of five take 1.02."""
    results = (112 - extent) // stride + 1
    kernel = parse_kernel(f"""kernel @sums(in %x: f32[96, 112, 112], out %y: f32[96, {results}, {results}]) {{
      parallel %c in 0..96 {{
        parallel %i in 0..{results} tile 8 {{
          parallel %j in 0..{results} tile 64 {{
            %s = reduce add %k in 0..{extent}, %l in 0..{extent} {{ yield %x[%c, {stride}*%i + %k, {stride}*%j + %l] }}
            store %s, %y[%c, %i, %j]
          }}
        }}
      }}
    }}""")
    code = KernelResources(32, 0, 0, 4, {"LDG.E": 36, "STG.E.128": 1})
    assert tuple(faults(kernel, GPU_TARGETS["sm90"], code)) == found


def products(rows: int, columns: int, tile: int) -> Kernel:
    """A product of f16 with blocks of `tile` rows and 32 columns."""
    return parse_kernel(f"""kernel @product(in %x: f16[{rows}, 64], in %w: f16[{columns}, 64], out %y: f16[{rows}, {columns}]) warps 4 {{
      parallel %i in 0..{rows} tile {tile} {{
        parallel %j in 0..{columns} tile 32 {{
          %s = reduce add %k in 0..64 tile 64 {{ yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }}
          store cast<f16>(%s), %y[%i, %j]
        }}
      }}
    }}""")


@pytest.mark.parametrize(
    ("rows", "columns", "tile", "filled"),
    [
        (64, 32, 64, True),
        (64, 32, 32, False),
        (256, 33 * 32, 32, True),
        (256, 32 * 32, 32, False),
        (32, 4096, 32, False),
    ],
)
def test_blocks_of_fewer_rows_are_for_products_that_leave_multiprocessors_idle(
    rows: int, columns: int, tile: int, filled: bool
) -> None:
    """132 multiprocessors: 4 x 33 blocks of 64 rows are enough, 4 x 32 are not."""
    gpu = GPU_TARGETS["sm90"].machine
    assert isinstance(gpu, GPU)
    assert fills_matrix_units(products(rows, columns, tile), gpu) == filled


def test_every_second_element_of_a_row_that_two_loops_were() -> None:
    """32 elements of f16, two apart, are one line, although the index is a remainder."""
    kernel = parse_kernel("""kernel @spread(in %x: f16[4096], out %y: f16[64, 128]) {
      parallel %i in 0..4096 tile 256 { store %x[%i], %y[%i//64, 2*(%i%64)] } }""")
    gpu = GPU_TARGETS["sm90"].machine
    assert isinstance(gpu, GPU)
    table = Accesses(kernel)
    assert line_seconds(table, parameter_accesses(table, True), gpu) == line_seconds(
        table, parameter_accesses(table, False), gpu
    )
