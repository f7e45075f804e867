"""Schedule a matrix product: the code of docs/tutorial-schedules.md."""

from compiler.codegen.backend import backend_of, target_by_name
from compiler.driver.given_kernels import given_kernel
from compiler.errors import PassError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, split_at_kernels
from compiler.passes.schedule.record import ScheduleRecorder
from compiler.report.render import render_plain
from compiler.tools.kernel_bench import bench, bench_table


def product(m: int, n: int, k: int) -> Kernel:
    """Return the naive product of an m x k matrix and the transpose of an n x k matrix of weights."""
    return parse_kernel(f"""
kernel @product(in %x: f32[{m}, {k}], const %w: f32[{n}, {k}], out %y: f32[{m}, {n}]) {{
  parallel %i in 0..{m} {{
    parallel %j in 0..{n} {{
      %sum = reduce add %k in 0..{k} {{ yield %x[%i, %k] * %w[%j, %k] }}
      store %sum, %y[%i, %j]
    }}
  }}
}}""")


steps = {}

steps["1 naive"] = """
schedule @product {
  serial
}"""


steps["2 lanes"] = """
schedule @product {
  vectorize %j by 16
  serial
}"""


steps["3 packed weights"] = """
schedule @product {
  vectorize %j by 16
  pack %w {0/16, 1, 0%16}
  serial
}"""


steps["4 columns"] = """
schedule @product {
  vectorize %j by 16
  tile %j by 48
  pack %w {0/48, 1, 0%48}
  serial
}"""


steps["5 rows"] = """
schedule @product {
  vectorize %j by 16
  tile %j by 48
  tile %i by 8
  pack %w {0/48, 1, 0%48}
  serial
}"""


target = target_by_name("x86-64-v4")
kernel = given_kernel(steps["5 rows"], product(128, 3072, 768), target, Context.for_target(target))
print(print_kernel(kernel))


steps["6 order"] = """
schedule @product {
  reorder %j, %i
  vectorize %j by 16
  tile %j by 48
  tile %i by 8
  pack %w {0/48, 1, 0%48}
  serial
}"""


for step in ("serial reorder %j, %i", "vectorize %j by 16 vectorize %i by 4", "tile %q by 8", "parallel %k"):
    try:
        given_kernel(f"schedule @product {{\n {step} }}", product(128, 3072, 768), target, Context.for_target(target))
    except PassError as error:
        print(f"{error}\n")


steps["7 prefetch"] = """
schedule @product {
  reorder %j, %i
  vectorize %j by 16
  tile %j by 48
  tile %i by 8
  pack %w {0/48, 1, 0%48}
  prefetch %w[%j, %k + 85] at %k
  serial
}"""


steps["8 threads"] = """
schedule @product {
  reorder %j, %i
  vectorize %j by 16
  tile %j by 48
  tile %i by 8
  pack %w {0/48, 1, 0%48}
  prefetch %w[%j, %k + 85] at %k
  parallel %j
}"""


def own_schedule(kernel: Kernel, target_name: str) -> str:
    """Return the schedule that the passes of a target make for a kernel."""
    target, recorder = target_by_name(target_name), ScheduleRecorder()
    _, tile_passes = split_at_kernels(parse_pipeline(backend_of(target).pipelines.program))
    run_pipeline(kernel, tile_passes, Context.for_target(target), [recorder])
    return str(recorder.schedules[kernel.name])


print(own_schedule(product(128, 3072, 768), "x86-64-v4"))


def measure(m: int, n: int, k: int, seconds: float) -> None:
    """Print the speed of every step, `seconds` for each, beside that of the schedule that the compiler makes for this machine."""
    kernel, target = product(m, n, k), target_by_name("host")
    texts = {**steps, "the compiler's own": own_schedule(kernel, "host")}
    kernels = {name: given_kernel(s, kernel, target, Context.for_target(target)) for name, s in texts.items()}
    print(render_plain(bench_table(bench(kernels, target, seconds)), 160))


measure(128, 3072, 768, seconds=1.0)
