"""Pass manager: pipelines run pass by pass, under the observation of instruments."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from compiler.errors import DynamicShapeError, PartialTileError, PassError, TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.kernel import Kernel, stmt_ranges, walk
from compiler.ir.tile.program import Program, map_kernels
from compiler.passes.base import IR, Context, Pass
from compiler.passes.pipeline_text import Pipeline, parse_pipeline, print_pipeline
from compiler.passes.remark import Remarks
from compiler.passes.reproducer import write_reproducer

KernelSink: TypeAlias = Callable[[Kernel, Program], None]
"""Receiver of each kernel after its last pass, so that its code is generated while passes run on the next kernel."""


class PassInstrument:
    """An observer of passes; does nothing itself.  It never changes what is compiled."""

    def before_pass(self, pass_: Pass[Any], ir: Any, context: Context) -> None:
        """Observe the input of a pass."""

    def after_pass(self, pass_: Pass[Any], old: Any, new: Any, seconds: float, context: Context) -> None:
        """Observe the input and the output of a pass, and the CPU time that this thread spent in it."""


def run_pipeline(
    ir: IR,
    passes: str | Iterable[Pass[Any]],
    context: Context | None = None,
    instruments: Sequence[PassInstrument] = (),
    finished: KernelSink | None = None,
) -> IR:
    """Run every pass in order; passes over kernels run on each kernel of a program.

    `finished` receives each kernel after its last pass.  PassError if a pass fails, or takes another kind of IR.
    """
    context = context or Context()
    passes = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    if isinstance(ir, Program):
        return run_program_pipeline(ir, passes, context, instruments, finished)  # type: ignore[return-value]  # IR is Program
    return run_passes(ir, passes, context, instruments)


def run_program_pipeline(
    ir: Program,
    passes: Pipeline,
    context: Context,
    instruments: Sequence[PassInstrument],
    finished: KernelSink | None = None,
) -> Program:
    """Run passes over programs and passes over kernels, in order.

    `finished` gets each kernel after its last pass, if the pipeline ends with passes over kernels.
    """
    groups = [(ir_type, tuple(group)) for ir_type, group in itertools.groupby(passes, key=lambda p: p.ir_type)]
    for position, (ir_type, group) in enumerate(groups, 1):
        if ir_type is not Kernel:
            ir = run_passes(ir, group, context, instruments)
            continue
        context.program = ir
        sink = finished if position == len(groups) else None
        ir = map_kernels(ir, partial(schedule_kernel, ir, group, context, instruments, sink))
    return ir


def schedule_kernel(
    program: Program,
    passes: Pipeline,
    context: Context,
    instruments: Sequence[PassInstrument],
    finished: KernelSink | None,
    kernel: Kernel,
) -> Kernel:
    """Run passes over one kernel of `program`, and give the result to `finished`; PassError if that refuses it."""
    scheduled = run_passes(kernel, passes, context, instruments)
    if finished:
        try:
            finished(scheduled, program)
        except DynamicShapeError:
            raise
        except Exception as error:
            text, why = print_pipeline(passes), describe_error(error)
            if isinstance(error, PartialTileError) and (name := last_pass_to_make(error.loop, kernel, passes, context)):
                why += f", here {name}"
            message = f"no code can be generated for @{kernel.name} after the passes {text}: {why}"
            raise with_reproducer(PassError(message), kernel, passes, context, emit=True) from error
    return scheduled


def last_pass_to_make(loop: object, kernel: Kernel, passes: Pipeline, context: Context) -> str:
    """Return the last pass that gives `kernel` a loop with the range `loop`, "" if none does."""
    found, again = "", replace(context, remarks=Remarks(), rewrites=[], alternatives=[])
    for pass_ in passes:
        new = run_on_nested_graphs(pass_, kernel, again)
        before, after = ([r for s in walk(k.body) for r in stmt_ranges(s)] for k in (kernel, new))
        found = str(pass_) if loop in after and loop not in before else found
        kernel = new
    return found


def run_passes(ir: IR, passes: Pipeline, context: Context, instruments: Sequence[PassInstrument] = ()) -> IR:
    """Run passes that take the kind of `ir`, in order; a PassError names a file with the IR before the pass."""
    for position, pass_ in enumerate(passes):
        where = f"pass {pass_} (number {position + 1} of {len(passes)}) on @{ir.name}"
        if not isinstance(ir, pass_.ir_type):
            raise PassError(f"{where}: takes a {pass_.ir_type.__name__}, not a {type(ir).__name__}")
        for instrument in instruments:
            instrument.before_pass(pass_, ir, context)
        try:
            ir = run_pass(pass_, ir, context, instruments, where)
        except PassError as error:
            raise with_reproducer(error, ir, (pass_,), context) from error.__cause__
    return ir


def run_pass(pass_: Pass[Any], ir: IR, context: Context, instruments: Sequence[PassInstrument], where: str) -> IR:
    """Run one pass under observation; PassError says `where` it failed."""
    start, context.kernel = time.thread_time(), ir.name if isinstance(ir, Kernel) else ""
    try:
        new = run_on_nested_graphs(pass_, ir, context)
    except DynamicShapeError:
        raise  # the driver continues with static sizes
    except TilewrightError as error:
        raise with_reproducer_of(error, PassError(f"{where}: {error}")) from error
    except Exception as error:
        raise PassError(f"{where} failed: {describe_error(error)}") from error
    seconds = time.thread_time() - start
    for instrument in instruments:
        instrument.after_pass(pass_, ir, new, seconds, context)
    return new


def describe_error(error: Exception) -> str:
    """Return the message of an error, with its type unless it is the compiler's own."""
    return str(error) if isinstance(error, TilewrightError) else f"{type(error).__name__}: {error}"


def with_reproducer(error: PassError, ir: IR, passes: Pipeline, context: Context, emit: bool = False) -> PassError:
    """Return `error` with the file of the IR before `passes`, unless a pass inside has named one; `emit` if it comes after them."""
    if error.reproducer:
        return error
    file, command = write_reproducer(ir, passes, context.target_name, emit)
    new = PassError(f"{error}\nthe IR before it is in {file}; to repeat: {command}")
    new.reproducer = file
    return new


def with_reproducer_of(inner: Exception, error: PassError) -> PassError:
    """Return `error` with the path of the reproducer that `inner`, the cause of `error`, has; "" if it has none."""
    error.reproducer = inner.reproducer if isinstance(inner, PassError) else ""
    return error


def run_on_nested_graphs(pass_: Pass[Any], ir: IR, context: Context) -> IR:
    """Run `pass_` on `ir`; on a graph, run it on loop bodies first, innermost first."""
    current = ir.map_bodies(lambda body: run_on_nested_graphs(pass_, body, context)) if isinstance(ir, Graph) else ir
    context.running, made = pass_, len(context.rewrites)
    new = pass_.for_machine(context.machine).run(current, context)
    asked = len(context.rewrites) > made or new is current or new == current
    return new if asked or context.may_apply(pass_, "the whole pass", remark=False) else current  # type: ignore[return-value]
