"""Descriptions of machines for the cost model: every number that says what code costs, or how much of it is worthwhile.

A description is a `Machine`, or a file that names another one as `base` and gives the fields that differ:

    base = "avx2"                                  cpu (or gpu), date, command and note say where the numbers come from
    [machine]
    l2 = 524288

compiler/cost/machines has the descriptions that are shipped.  One that is called as LLVM calls a CPU describes this CPU.
`tilewright calibrate` writes one of the machine it runs on.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from compiler.errors import TargetError

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""

RANKED = "chosen so that variants of kernels rank as measured: python -m benchmarks rank"
TIMED = "chosen by timing programs: python -m benchmarks"
COUNTED = "counted in generated code"
LISTED = "listed by LLVM, Linux or PyTorch"
DATA_SHEET = "data sheet, white paper or programming guide, named in the file"
PUBLISHED = "published microbenchmarks, named in the file"

UNMEASURED = "first choice, not measured yet"

ORIGINS = (RANKED, TIMED, COUNTED, LISTED, DATA_SHEET, PUBLISHED, UNMEASURED)
"""Where a quantity comes from that no microbenchmark measures."""

N = TypeVar("N", bound=float)


def quantity(default: N, unit: str, meaning: str, origin: str, least: float = 1e-300) -> N:
    """Declare a field of a description: its unit, what it means, and the microbenchmark that measures it or its origin.

    The default describes a Zen 5 server core.
    """
    result: N = field(default=default, metadata={"unit": unit, "meaning": meaning, "origin": origin, "least": least})
    return result


@dataclass(frozen=True, kw_only=True)
class Core:
    """The vector unit of one core.  An operation is a vector multiply-add, or another instruction that takes as long."""

    vector_bits: int = quantity(512, "bits", "Width of a vector register.", LISTED)
    registers: int = quantity(32, "registers", "Vector registers.", LISTED)
    frequency: float = quantity(4.2e9, "Hz", "Clock rate that turns cycles into seconds.", "frequency")
    fma_per_cycle: int = quantity(2, "1/cycle", "Vector multiply-adds that begin in a cycle.", "fma_per_cycle")
    fma_latency: int = quantity(4, "cycles", "Until the result of a multiply-add can be used.", "fma_latency")
    bf16_dots_per_cycle: float = quantity(
        2.0, "1/cycle", "Vector dot products of pairs of bf16 that begin in a cycle.", "bf16_dots_per_cycle"
    )
    loads_per_cycle: int = quantity(2, "1/cycle", "Vector loads that begin in a cycle.", "loads_per_cycle")
    stores_per_cycle: float = quantity(1.0, "1/cycle", "Vector stores that begin in a cycle.", "stores_per_cycle")
    shuffles_per_cycle: int = quantity(1, "1/cycle", "Vector shuffles that begin in a cycle.", "shuffles_per_cycle")
    shuffle_latency: int = quantity(3, "cycles", "Until a shuffled register can be used.", "shuffle_latency")
    loads_per_broadcast: float = quantity(1.15, "vector loads", "Cost of a broadcast load.", "loads_per_broadcast")
    has_embedded_broadcast: bool = quantity(True, "bool", "Multiply-adds take a scalar from memory themselves.", LISTED)
    has_mask_registers: bool = quantity(True, "bool", "Masked accesses take no longer than others.", LISTED)
    converts_beside_products: bool = quantity(True, "bool", "Conversions have units of their own.", LISTED)
    adds_beside_products: bool = quantity(
        False, "bool", "Additions and selections have units of their own.", DATA_SHEET
    )
    instructions_per_cycle: int = quantity(6, "1/cycle", "Begin in a cycle, with two threads on a core.", RANKED)
    issue_width: int = quantity(8, "1/cycle", "Instructions that begin, with the core to one thread.", DATA_SHEET)
    fma_instructions: int = quantity(1, "instructions", "For a multiply-add.", COUNTED)
    library_call_cycles: float = quantity(
        4.4, "cycles", "Of a function of one number for which a CPU has no instruction.", "library_call_cycles"
    )
    vector_unit_ratio: float = quantity(1.5, "1", "Vector units, per unit for multiply-adds.", RANKED)
    unit_overlap: int = quantity(4, "exponent", "Of the norm that joins cycles of busy units.", RANKED)
    unit_overlap_alone: int = quantity(8, "exponent", "The same, with the core to one thread.", RANKED)
    masked_access_cycles: float = quantity(6.0, "cycles", "Stall of an access without mask registers.", RANKED)
    nan_aware_ops: int = quantity(3, "operations", "Maximum that propagates NaN.", COUNTED)
    combine_stall_share: float = quantity(0.25, "share", "Of the latency of combining lanes: not hidden.", RANKED)
    loop_overhead: float = quantity(0.5, "cycles", "Of an iteration that overlap with nothing.", RANKED)
    loop_entry: float = quantity(6.0, "cycles", "Of entering and leaving a loop.", RANKED)
    loop_end_instructions: int = quantity(3, "instructions", "End of a loop: counter, comparison, branch.", COUNTED)
    instruction_bytes: float = quantity(7.0, "bytes", "Of a vector instruction.", COUNTED)
    step_instructions: int = quantity(5, "instructions", "Step of a contraction: counter, addresses, branch.", COUNTED)
    branch_cycles: float = quantity(14.0, "cycles", "Of a branch in PyTorch's sorting, often mispredicted.", TIMED)
    bucket_cycles: float = quantity(7.0, "cycles", "Of counting an element in its bucket and moving it there.", TIMED)
    gather_shuffles: float = quantity(2.5, "shuffles", "For each lane of a gather or scatter.", RANKED)
    gather_instructions: float = quantity(3.0, "instructions", "The same.", RANKED)


@dataclass(frozen=True, kw_only=True)
class Caches:
    """The memory hierarchy, and how far code can hide it."""

    l1: int = quantity(48 << 10, "bytes", "First-level data cache of a core.", LISTED)
    l1_ways: int = quantity(12, "lines", "Lines in a set of the first-level cache.", LISTED)
    usable_ways: int = quantity(10, "lines", "Lines of a set that stay while others stream.", RANKED)
    l2: int = quantity(1 << 20, "bytes", "Second-level cache of a core.", LISTED)
    l3: int = quantity(32 << 20, "bytes", "Last cache, which cores share.", LISTED)
    l2_line_cycles: float = quantity(1.05, "cycles/line", "Streamed from the second-level cache.", "l2_line_cycles")
    l3_line_cycles: float = quantity(2.4, "cycles/line", "Streamed from the last cache.", "l3_line_cycles")
    memory_line_cycles: float = quantity(11.0, "cycles/line", "Streamed from memory.", "memory_line_cycles")
    scattered_line_cycles: float = quantity(
        11.0, "cycles/line", "From memory, in runs shorter than a page.", "scattered_line_cycles"
    )
    l3_latency: float = quantity(50.0, "cycles", "Of one line from the last cache, in order.", "l3_latency")
    memory_latency: float = quantity(400.0, "cycles", "Of one line from memory, in order.", "memory_latency")
    tlb_pages: int = quantity(4096, "pages", "Whose translations a core keeps in its last TLB.", DATA_SHEET)
    page_walk_cycles: float = quantity(40.0, "cycles", "Of a translation that it has to find.", "page_walk_cycles")
    l2_bytes_per_cycle: int = quantity(32, "bytes/cycle", "From L2, as choices of tiles count it.", RANKED)
    l3_bytes_per_cycle: int = quantity(
        10, "bytes/cycle", "From beyond L2, as choices of ops and kernels count it.", TIMED
    )
    memory_slowdown: float = quantity(2.0, "1", "A line surely from memory, in lines from beyond L2.", TIMED)
    line_latency: int = quantity(100, "cycles", "Of a line from memory, with several lines in flight.", TIMED)
    panel_stall_share: float = quantity(0.1, "share", "Of transfers of panels from L2: not hidden.", RANKED)
    row_stall_share: float = quantity(0.3, "share", "Of transfers of rows from L2: not hidden.", RANKED)
    transfer_overlap: int = quantity(3, "exponent", "Of the norm that joins cycles of the core and of lines.", RANKED)
    store_transfers: float = quantity(1.5, "transfers", "For a line that is read and written back.", RANKED)
    kept_share: float = quantity(0.75, "share", "Of a cache, up to which all data stay in it.", RANKED)
    lost_share: float = quantity(1.25, "share", "Of a cache, from which on no data stay.", RANKED)
    prefetch_distance: int = quantity(16384, "bytes", "From a step to the panel that it prefetches from memory.", TIMED)
    prefetched_operations: int = quantity(
        1 << 20, "operations", "Most on a line of a panel for a few rows that waits for a prefetch.", TIMED
    )
    strided_prefetch_steps: int = quantity(
        8, "steps", "From a step to the row, far away in memory, that it prefetches.", TIMED
    )
    l1_prefetch_distance: int = quantity(4096, "bytes", "The same from L2: L1 has room for few lines.", TIMED)
    resident_constants: int = quantity(8, "1/l3", "Constants of a repeated kernel stay in it.", TIMED)
    streamed_output: int = quantity(4, "1/l3", "Outputs beyond this part of the last cache are stored past it.", TIMED)
    combined_lines: int = quantity(4, "lines", "That stores past the caches fill part by part at once.", TIMED)

    @property
    def way_bytes(self) -> int:
        """Bytes of a way of the first-level cache; addresses a multiple of it apart share one set."""
        return self.l1 // self.l1_ways


@dataclass(frozen=True, kw_only=True)
class AccessCosts:
    """Memory accesses relative to plain ones, and stores of contractions relative to multiply-adds."""

    unaligned_cost: float = quantity(1.5, "aligned accesses", "May straddle two lines.", "unaligned_cost")
    deinterleave_cost: float = quantity(1.5, "aligned accesses", "Each vector that a deinterleaved load reads.", TIMED)
    transpose_cost: int = quantity(2, "aligned accesses", "Each vector of a block transposed in registers.", TIMED)
    aliased_transpose_cost: int = quantity(4, "aligned accesses", "Each element of it evicted half written.", TIMED)
    gather_cost: float = quantity(1.5, "scalar accesses", "One lane of a gather.", TIMED)
    scatter_cost: float = quantity(5.0, "scalar accesses", "One lane of a scatter.", TIMED)
    aliased_gather_cost: float = quantity(8.0, "scalar accesses", "The same where lanes share one set of L1.", TIMED)
    aliased_scatter_cost: float = quantity(21.0, "scalar accesses", "The same where lanes share one set of L1.", TIMED)
    masked_load_cost: int = quantity(8, "loads", "Masked load.", TIMED)
    division_ops: int = quantity(8, "operations", "Division or remainder in an address.", TIMED)
    lookup_ops: int = quantity(16, "operations", "Load whose innermost index is looked up: no lanes share it.", TIMED)
    operand_reuse: int = quantity(1, "products", "That share an operand, which is loaded and computed once.", TIMED)
    combine_ops: int = quantity(4, "operations", "Combining the lanes of a reduction.", TIMED)
    contraction_combine_ops: int = quantity(24, "operations", "Combining the lanes of a contraction.", TIMED)
    element_store_cost: int = quantity(2, "multiply-adds", "Storing one result of a contraction.", TIMED)
    evicted_element_store_cost: int = quantity(12, "multiply-adds", "The same, evicted before its line is full.", TIMED)
    row_store_cost: int = quantity(2, "multiply-adds", "Storing a row transposed in registers.", TIMED)
    unaligned_row_store_cost: int = quantity(4, "multiply-adds", "The same, of rows that do not divide a line.", TIMED)
    evicted_row_store_cost: int = quantity(6, "multiply-adds", "The same, evicted before its line is full.", TIMED)


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits between which transformations pay on the machine."""

    recompute_ops: int = quantity(6, "operations", "From which a value is stored rather than computed again.", TIMED)
    max_local_elements: int = quantity(1 << 16, "elements", "Local buffers of an iteration.", TIMED)
    max_row_elements: int = quantity(1 << 18, "elements", "The same, of one that can lie in a result.", TIMED)
    max_stack_elements: int = quantity(1 << 18, "elements", "Of a local buffer for any dynamic size.", TIMED)
    max_reread_bytes: int = quantity(1 << 18, "bytes", "That fused rows read again, as they stay in a cache.", TIMED)
    products_efficiency: float = quantity(0.9, "share", "Of the peak that batches of small products reach.", TIMED)
    max_tile_vectors: int = quantity(6, "vectors", "In a row of a tile.", RANKED)
    max_unpacked_tile_vectors: int = quantity(16, "vectors", "The same of a single, unpacked row.", RANKED)
    epilogue_registers: int = quantity(2, "registers", "For the epilogue of sums over windows.", RANKED)
    partial_tile_penalty: float = quantity(0.03, "share", "Time added for each kind of partial tile.", RANKED)
    loop_nest_penalty: float = quantity(0.01, "share", "Time added for each further loop nest.", TIMED)
    unordered_lines: int = quantity(8, "lines", "That CPUs foresee if a step reads short rows in any order.", TIMED)
    min_channels: int = quantity(16, "channels", "Fewest for lanes along the channels of a convolution.", TIMED)
    min_lane_iterations: int = quantity(4, "iterations", "Fewest of a loop with lanes.", TIMED)
    lane_loop_vectors: int = quantity(4, "vectors", "In a step of a loop with lanes without contraction.", RANKED)
    resident_rows: float = quantity(0.5, "share", "Of a cache, for rows kept in it while panels stream.", RANKED)
    reduction_block: int = quantity(256, "steps", "In a block of a long reduction.", TIMED)
    min_blocked_depth: int = quantity(1024, "steps", "Fewest of a reduction in blocks.", TIMED)
    min_part_length: int = quantity(128, "rows", "Fewest in a part of a contraction split for threads.", TIMED)
    min_tile_extent: int = quantity(16, "rows", "That fill a tile of accumulators.", TIMED)
    min_block_rows: int = quantity(4, "rows", "Fewest in a block that sibling loops share.", TIMED)
    max_collapsed_extent: int = quantity(512, "iterations", "Inner loops from this length on are not collapsed.", TIMED)
    min_dense_reuse: int = quantity(
        128, "steps", "Fewest that read a block of an operand again, for a dense copy.", TIMED
    )
    min_operand_reuse: int = quantity(
        16, "steps", "Fewest that read an operand again that is gathered or shares few sets, for a copy.", TIMED
    )
    max_expanded_ops: int = quantity(3000, "operations", "In the code of all remainders: instruction cache.", TIMED)
    max_code_ops: int = quantity(
        2304, "operations", "In the code of a kernel before tiles are peeled: compile time.", TIMED
    )
    max_loop_parts: int = quantity(
        32, "loop nests", "For the parts of a result whose windows have different taps: compile time.", TIMED
    )
    code_share: int = quantity(8, "1", "A loop with less than 1/8 of the most operations gets less code.", TIMED)
    expanded_op_seconds: float = quantity(
        1e-8,
        "s",
        "In a call, for an op in place of a call into PyTorch: it compiles in 1 ms, for 100,000 calls.",
        TIMED,
    )
    max_epilogue_ops: int = quantity(1000, "operations", "In an epilogue beside a contraction's accumulators.", TIMED)
    max_unrolled_steps: int = quantity(9, "steps", "Of a range that is unrolled entirely.", TIMED)
    max_unrolled_vectors: int = quantity(64, "vectors", "The same of a range with lanes.", TIMED)
    partial_unroll: int = quantity(4, "steps", "Of a long range that are unrolled to hide its overhead.", TIMED)
    max_unrolled_periods: int = quantity(128, "vectors", "Of the steps that share a word of narrow constants.", TIMED)
    jammed_rows: int = quantity(4, "rows", "Of a scan interleaved to hide its latency.", TIMED)
    jammed_reductions: int = quantity(4, "rows", "Of reductions that wait for each other, interleaved.", TIMED)
    jammed_vectors: int = quantity(16, "vectors", "In the rows of reductions that are interleaved.", TIMED)
    min_lane_ops: int = quantity(24, "operations", "In a step of a scan, from which rows become lanes.", TIMED)
    softmax_untiled_length: int = quantity(640, "elements", "Longest row of a softmax whose scores are stored.", TIMED)
    softmax_columns: int = quantity(256, "columns", "In a block of scores.", TIMED)
    softmax_rows: int = quantity(512, "rows", "In a block of scores.", TIMED)
    softmax_causal_block: int = quantity(64, "rows and columns", "In a block of causal scores.", TIMED)
    scan_min_length: int = quantity(8192, "elements", "Shortest row that is scanned in blocks.", TIMED)
    scan_block: int = quantity(2048, "elements", "In a block of a row.", TIMED)
    scan_max_rows: int = quantity(4, "rows", "That leave threads and registers idle.", TIMED)


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The runtime: launches, and threads that share a kernel."""

    threads: int = quantity(2, "threads", "That run at once.", LISTED)
    launch_seconds: float = quantity(1.5e-8, "s", "Of a launch, and of 4 KiB that it reads again.", "launch_seconds")
    traffic_bytes_per_cycle: int = quantity(32, "bytes/cycle", "Parameters of a kernel, as fusion counts it.", TIMED)
    call_seconds: float = quantity(2.5e-6, "s", "Of a call into PyTorch.", TIMED)
    parallel_seconds: float = quantity(4.5e-7, "s", "Of work that is worth waking other threads.", "parallel_seconds")
    steps_per_thread: int = quantity(16, "steps", "Of parallel loops for each thread, which even out the load.", TIMED)
    slices_per_thread: int = quantity(2, "slices", "Fewest of a buffer computed at its consumer's loop.", TIMED)
    min_scatter_steps: int = quantity(16, "steps", "Of parallel loops around a scatter that are enough.", TIMED)
    scatter_block: int = quantity(256, "elements", "In a parallel block of a scatter's innermost loop, at most.", TIMED)


@dataclass(frozen=True, kw_only=True)
class Machine(Threads, Thresholds, AccessCosts, Caches, Core):
    """One core, the caches around it, and the runtime; the defaults describe a Zen 5 server core."""

    def lanes(self, bits: int) -> int:
        """Return the number of elements of `bits` bits in one register."""
        return max(1, self.vector_bits // bits)

    def seconds(self, cycles: float) -> float:
        """Return the seconds of so many cycles."""
        return cycles / self.frequency

    @property
    def operations_per_cycle(self) -> float:
        """Operations of scalar loops that are done in a cycle, in vectors of f32."""
        return self.fma_per_cycle * self.lanes(32)

    def operation_seconds(self, operations: float) -> float:
        """Return the seconds of operations of scalar loops, as they are counted before these have lanes."""
        return self.seconds(operations / self.operations_per_cycle)

    def operations_in(self, seconds: float) -> int:
        """Return the number of operations of scalar loops that take so many seconds, as `operation_seconds` counts them."""
        return round(seconds * self.frequency * self.operations_per_cycle)

    def traffic_seconds(self, size: float) -> float:
        """Return the seconds in which a kernel reads or writes parameters of `size` bytes, whichever cache holds them."""
        return self.seconds(size / self.traffic_bytes_per_cycle)

    def round_trip_seconds(self, size: float) -> float:
        """Return the seconds in which kernels write `size` bytes and read them again, with a launch."""
        return self.launch_seconds + self.seconds(2 * size / self.bytes_per_cycle(size))

    def launching_seconds(self, loop_nests: int) -> float:
        """Return the seconds of launching a kernel of so many loop nests, which threads go through one after another."""
        return self.launch_seconds

    def multiplies_sooner(self, dtype: str, count: int) -> bool:
        """Return True if a dot product of `count` elements of a dtype takes less time than multiply-adds of widened ones."""
        per_cycle = self.bf16_dots_per_cycle if dtype == "bf16" else self.fma_per_cycle
        return count * per_cycle > self.fma_per_cycle

    @property
    def reads_padding_through_masks(self) -> bool:
        """Whether readers of padding mask their loads, at no cost, rather than find it in memory, where it must be filled in first."""
        return self.masked_load_cost == 1

    @property
    def recomputes_operands(self) -> bool:
        """Whether products share operands in blocks, each of which computes them again."""
        return self.operand_reuse > 1

    def idle_factor(self, iterations: int) -> float:
        """Return how many times longer work takes whose parallel iterations threads cannot share evenly."""
        return -(-iterations // self.threads) * self.threads / max(1, iterations)

    @property
    def concurrent_blocks(self) -> int:
        """Blocks of rows that run at once; a CPU's threads share rows whatever blocks they have."""
        return 1

    def softmax_share(self, dtype: str) -> float:
        """Return the share of the blocks of a softmax (`softmax_rows` and so on) that fits where scores are products of a dtype."""
        return 1

    def bytes_per_cycle(self, size: float) -> float:
        """Return the bytes that a core reads in a cycle from the smallest cache that holds `size` bytes."""
        if size <= self.l1:
            return self.loads_per_cycle * self.vector_bits / 8
        return self.l2_bytes_per_cycle if size <= self.l2 else self.l3_bytes_per_cycle


@dataclass(frozen=True, kw_only=True)
class GPU(Machine):
    """A GPU: multiprocessors that run blocks of threads, and the memory they share; the defaults describe an H100 SXM.

    Rates are those of one multiprocessor (compute unit), unless they say otherwise.  The second-level cache is the device's.
    """

    frequency: float = quantity(1.83e9, "Hz", "Clock rate under the stated peak rates.", DATA_SHEET)
    l2: int = quantity(50 << 20, "bytes", "Last cache of the device.", DATA_SHEET)
    l2_bytes_per_cycle: int = quantity(38, "bytes/cycle", "From the last cache.", DATA_SHEET)
    multiprocessors: int = quantity(132, "processors", "Multiprocessors of the device.", DATA_SHEET)
    warp_threads: int = quantity(32, "threads", "Of a warp (wavefront).", DATA_SHEET)
    resident_threads: int = quantity(2048, "threads", "That a multiprocessor holds at once.", DATA_SHEET)
    resident_blocks: int = quantity(32, "blocks", "That a multiprocessor holds at once.", DATA_SHEET)
    register_file: int = quantity(1 << 16, "registers", "Of 32 bits.", DATA_SHEET)
    thread_registers: int = quantity(255, "registers", "Most of one thread.", DATA_SHEET)
    shared_bytes: int = quantity(228 << 10, "bytes", "Shared memory (LDS).", DATA_SHEET)
    block_shared_bytes: int = quantity(227 << 10, "bytes", "Most shared memory of one block.", DATA_SHEET)
    system_shared_bytes: int = quantity(1 << 10, "bytes", "Of each block that the system takes.", DATA_SHEET)
    shared_bytes_per_cycle: int = quantity(128, "bytes/cycle", "From shared memory.", DATA_SHEET)
    memory_bytes_per_second: float = quantity(3.35e12, "bytes/s", "From memory, to the whole device.", DATA_SHEET)
    line_bytes: int = quantity(128, "bytes", "Line of a cache.", DATA_SHEET)
    access_bytes: int = quantity(16, "bytes", "Widest memory access of one thread.", DATA_SHEET)
    vector_flops: int = quantity(256, "1/cycle", "Operations in f32 outside matrix units; an FMA is two.", DATA_SHEET)
    matrix_f64: int = quantity(256, "1/cycle", "Operations of matrix products in f64.", DATA_SHEET)
    matrix_f32: int = quantity(256, "1/cycle", "The same in f32, rounded as IEEE 754 has it.", DATA_SHEET)
    matrix_tf32: int = quantity(2048, "1/cycle", "The same in TF32, added in f32; 0: none.", DATA_SHEET, 0)
    matrix_f16: int = quantity(4096, "1/cycle", "The same in f16 or bf16, added in f32.", DATA_SHEET)
    matrix_f8: int = quantity(8192, "1/cycle", "The same of floats of 8 bits.", DATA_SHEET)
    matrix_i8: int = quantity(8192, "1/cycle", "The same in i8, added in i32.", DATA_SHEET)
    matrix_rows: int = quantity(64, "rows", "In a block from which matrix units reach their rate.", DATA_SHEET)
    matrix_warps: int = quantity(4, "warps", "That issue a matrix instruction together.", DATA_SHEET)
    few_rows_share: float = quantity(0.6, "share", "Of the matrix rate that blocks of fewer rows reach.", PUBLISHED)
    loads_matrices_from_shared: bool = quantity(True, "bool", "Matrix units read shared memory themselves.", DATA_SHEET)
    has_matrix_f32: bool = quantity(False, "bool", "Matrix units multiply f32 without rounding operands.", DATA_SHEET)
    limits_registers: bool = quantity(True, "bool", "The assembler takes a limit of a thread's registers.", DATA_SHEET)
    copies_boxes: bool = quantity(True, "bool", "Boxes of tensors are copied by a unit of their own (TMA).", DATA_SHEET)
    specialized_warps: int = quantity(0, "warps", "Beside those of a program with specialized warps; 0: none.", COUNTED)
    persistent_registers: int = quantity(16, "registers", "Of a thread that goes from one block to the next.", COUNTED)
    load_latency: int = quantity(800, "cycles", "Until data from memory can be used.", PUBLISHED)
    shared_latency: int = quantity(32, "cycles", "Until data from shared memory can be used.", TIMED)
    computed_cycles: float = quantity(
        0.25,
        "cycles",
        "Of an element of an operand that is computed: through registers and shared memory again.",
        TIMED,
    )
    step_cycles: int = quantity(60, "cycles", "Of barriers and addresses in a step of a contraction.", UNMEASURED)
    address_operations: int = quantity(
        30, "operations", "For the address of an element with divisions or a mask.", COUNTED
    )
    base_registers: int = quantity(36, "registers", "Of a thread besides accumulators and operands.", COUNTED)
    epilogue_registers: int = quantity(3, "registers", "For each operation on the results of a product.", COUNTED)
    branch_registers: int = quantity(10, "registers", "Of code on results that branches, beside their values.", COUNTED)
    fma_operand_registers: float = quantity(1.5, "1", "For each accumulator of a product without matrix unit.", COUNTED)
    thread_elements: int = quantity(16, "elements", "Of a block of values in one thread, at most.", UNMEASURED)
    max_warps: int = quantity(16, "warps", "Of a block.", UNMEASURED)
    window: int = quantity(8, "iterations", "Of a reduction over windows, which is unrolled, not tiled.", TIMED)
    operand_reuse: int = quantity(64, "products", "Of a block that share an operand.", COUNTED)
    softmax_untiled_length: int = quantity(128, "elements", "Longest row of a softmax in one block.", UNMEASURED)
    softmax_columns: int = quantity(64, "columns", "In a block of scores.", UNMEASURED)
    softmax_rows: int = quantity(64, "rows", "In a block of scores.", TIMED)
    softmax_causal_block: int = quantity(64, "rows and columns", "In a block of causal scores.", UNMEASURED)
    softmax_vector_share: float = quantity(0.5, "share", "Of these where no matrix unit multiplies scores.", COUNTED)
    launch_seconds: float = quantity(2e-6, "s", "Of a launch.", UNMEASURED)
    call_seconds: float = quantity(1e-5, "s", "Of a call into PyTorch.", UNMEASURED)
    branch_cycles: float = quantity(0.05, "cycles", "Of a comparison in PyTorch's sorting.", UNMEASURED)
    bucket_cycles: float = quantity(1e9, "cycles", "Never: data index no buffer of a block.", UNMEASURED)
    parallel_seconds: float = quantity(2e-9, "s", "Of any work: all multiprocessors share it.", UNMEASURED)
    masked_load_cost: int = quantity(1, "loads", "Masked load.", DATA_SHEET)
    max_local_elements: int = quantity(1 << 15, "elements", "Local buffers, which are registers.", DATA_SHEET)
    max_row_elements: int = quantity(0, "elements", "None lies in a result.", DATA_SHEET)

    @property
    def operations_per_cycle(self) -> float:
        """Operations of scalar loops that all multiprocessors do in a cycle."""
        return self.multiprocessors * self.vector_flops / 2

    def traffic_seconds(self, size: float) -> float:
        """Return the seconds in which memory moves `size` bytes."""
        return size / self.memory_bytes_per_second

    def round_trip_seconds(self, size: float) -> float:
        """Return the seconds in which kernels write `size` bytes and read them again, with a launch."""
        return self.launch_seconds + self.traffic_seconds(2 * size)

    def launching_seconds(self, loop_nests: int) -> float:
        """Return the seconds of launching a kernel of so many loop nests, each of which has a grid of its own."""
        return self.launch_seconds * loop_nests

    def idle_factor(self, iterations: int) -> float:
        """Return how many times longer work takes that leaves multiprocessors idle: one runs an iteration."""
        return max(1.0, self.multiprocessors / max(1, iterations))

    def bytes_per_cycle(self, size: float) -> float:
        """Return the bytes that the device reads in a cycle from the smallest cache that holds `size` bytes."""
        if size <= self.l2:
            return self.l2_bytes_per_cycle * self.multiprocessors
        return self.memory_bytes_per_second / self.frequency

    @property
    def concurrent_blocks(self) -> int:
        """Blocks of rows that run at once: one on each multiprocessor."""
        return self.multiprocessors

    def softmax_share(self, dtype: str) -> float:
        """Return 1 where matrix units multiply a dtype, else `softmax_vector_share`: threads hold operands in registers."""
        return 1 if self.matrix_flops(dtype) > self.vector_flops else self.softmax_vector_share

    def matrix_flops(self, dtype: str) -> int:
        """Return the operations in a cycle of products of a dtype, 0 if no matrix unit multiplies it."""
        rates = {"f64": self.matrix_f64, "f32": self.matrix_f32, "f16": self.matrix_f16, "bf16": self.matrix_f16}
        rates |= {"tf32": self.matrix_tf32, "f8e4m3fn": self.matrix_f8, "f8e5m2": self.matrix_f8, "i8": self.matrix_i8}
        return rates.get(dtype, 0)


FIELDS = {f.name: f for kind in (GPU, Machine) for f in fields(kind)}
"""Every field of a description by name; its metadata has `unit`, `meaning` and `origin`."""

MACHINE_FOLDER = Path(__file__).parent / "machines"
"""Descriptions that are shipped."""


@cache
def shipped_machine(name: str) -> Machine:
    """Return the description compiler/cost/machines/`name`.toml."""
    return read_machine(MACHINE_FOLDER / f"{name}.toml")


def shipped_names() -> list[str]:
    """Return the names of the descriptions that are shipped."""
    return sorted(p.stem for p in MACHINE_FOLDER.glob("*.toml"))


def read_machine(path: Path | str) -> Machine:
    """Return the description in a file; TargetError says what is wrong with it."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TargetError(f"cannot read a machine's description from {path}: {error}") from error
    default = GPU() if "gpu" in content else Machine()
    return machine_from_fields(content.get("machine", {}), str(content.get("base", "")), str(path), default)


def machine_from_fields(given: Mapping[str, object], base: str, where: str, default: Machine) -> Machine:
    """Return the shipped description `base` ("": `default`) with fields `given` in the file `where`."""
    if base and base not in (known := shipped_names()):
        raise TargetError(f"{where}: no description is called {base!r}; there are {', '.join(known)}")
    described = shipped_machine(base) if base else default
    known_fields = {f.name: f for f in fields(described)}
    for name, value in given.items():
        if name not in known_fields:
            near = difflib.get_close_matches(name, known_fields, 1)
            raise TargetError(
                f"{where}: a machine has no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        kind = type(known_fields[name].default)
        kinds = (int, float) if kind is float else (kind,)
        if type(value) not in kinds or (kinds != (bool,) and value < known_fields[name].metadata["least"]):
            raise TargetError(f"{where}: {name} takes a positive {kinds[-1].__name__}, not {value!r}")
    return replace(described, **given)  # type: ignore[arg-type]  # checked above


def write_machine(path: Path | str, base: str, values: Mapping[str, float], header: Mapping[str, str]) -> None:
    """Write a description: `base` with other `values`; `header` says when, where and how they were measured."""
    lines = [f'{key} = "{text}"' for key, text in {"base": base, **header}.items()]
    lines += ["", "[machine]"]
    for name, value in values.items():
        f = FIELDS[name].metadata
        lines.append(f"{name} = {str(value).lower()}  # {f['unit']}; {f['meaning']}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


AVX512, AVX2, SSE, NEON = map(shipped_machine, ("avx512", "avx2", "sse", "neon"))

MACHINES = {"avx512": AVX512, "avx2": AVX2, "sse": SSE, "neon": NEON}
"""One shipped description for each width and number of vector registers."""
