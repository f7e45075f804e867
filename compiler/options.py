"""Options of a compilation; the only module that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from compiler.errors import OptionError, did_you_mean


def _default_cache() -> str:
    return os.environ.get("TILEWRIGHT_CACHE", str(Path.home() / ".cache" / "tilewright"))


def _default_precision() -> str:
    torch = sys.modules.get("torch")
    return TORCH_PRECISIONS[torch.get_float32_matmul_precision()] if torch is not None else "f32"


TORCH_PRECISIONS = {"highest": "f32", "high": "tf32", "medium": "bf16"}
"""Values of `Options.matmul_precision` by those of `torch.set_float32_matmul_precision`."""

MATMUL_PRECISIONS = ("f32", "tf32", "bf16")
"""Values of `Options.matmul_precision`."""

CHECKS = (False, True, "strict")
"""Values of `Options.check`."""

FALLBACKS = ("error", "eager", "strict")
"""Values of `Options.fallback`."""

EFFORTS = ("fast", "default", "tune")
"""Values of `Options.effort`, from least to most."""


@dataclass(frozen=True)
class Options:
    """Options of one compilation.

    target: name of the machine that code is made for; `compiler.codegen.backend.targets` lists them, "host" is this one.
    machine: its description for the cost model: a file that `tilewright calibrate` wrote, or the name of a shipped one such
        as "h200"; "" takes the target's own.
    fuse: compute several ops in one kernel; False makes one kernel per op.
    winograd: allow the pass of that name, which rounds more than direct convolution.
    matmul_precision: "bf16" rounds f32 operands of matrix products and convolutions to bf16, and "tf32" to TF32 (10 bits of the
        mantissa), where the target multiplies that; elsewhere, as TF32 on CPUs, products are f32's.  They are the defaults after
        `torch.set_float32_matmul_precision("medium")` and `("high")`.
    graph_passes, tile_passes: pipelines in place of the target's default ones, or edits of these, as in
        "default,+form-silu@before:fuse,-winograd" (see compiler.passes.pipeline_text).
    fallback: treatment of operators without a conversion: "error" refuses them, "eager" runs them in PyTorch, "strict" also
        refuses those that always run in PyTorch, such as random numbers.
    freezing: make weights constants under `torch.compile` too, where no gradient is asked for.
    verify: verify the IR after every pass.
    check: interpret the IR before and after every pass and compare the results; "strict" makes it an error where that is
        not possible.
    print_before, print_after: passes whose IR is printed to stderr: names with commas between them, or "all".
    print_after_change: print the IR after each pass that changed it.
    effort: time to spend on compiling: "fast" takes shorter pipelines and LLVM's level 1, "tune" measures the alternatives
        that passes propose for the most expensive kernels and caches the fastest.
    rewrite_limit: number of rewrites after which passes make no more, to find the one that breaks a program.
    schedules: schedules or kernels of Tile IR, by names of kernels, in place of the passes over these: a file, or a text of
        several lines.  One that computes something else is refused.
    cuda_graphs: record the launches of a program for a GPU in its second call with the same sizes, and replay them from then
        on.  Programs with calls into PyTorch are launched as usual, which a remark says.
    cache: directory of compiled programs and objects; "" for none.
    """

    target: str = "host"
    machine: str = ""
    fuse: bool = True
    winograd: bool = True
    matmul_precision: str = field(default_factory=_default_precision)
    graph_passes: str = ""
    tile_passes: str = ""
    fallback: str = "error"
    freezing: bool = False
    verify: bool = False
    check: bool | str = False
    print_before: str = ""
    print_after: str = ""
    print_after_change: bool = False
    effort: str = "default"
    rewrite_limit: int | None = None
    schedules: Mapping[str, str] = field(default_factory=dict)
    cuda_graphs: bool = False
    cache: str = field(default_factory=_default_cache)

    def __post_init__(self) -> None:
        choices = {"matmul_precision": MATMUL_PRECISIONS, "fallback": FALLBACKS, "check": CHECKS, "effort": EFFORTS}
        for name, values in choices.items():
            if (given := getattr(self, name)) not in values:
                raise OptionError(f"option {name} must be one of {', '.join(map(repr, values))}, but is {given!r}")

    def with_(self, **changes: Any) -> Options:
        """Return a copy with some fields changed; TypeError names an unknown one."""
        return replace(self, **changes)


def as_options(options: Options | dict[str, Any] | None) -> Options:
    """Return the options that a user passed as an object, a dictionary or not at all; OptionError for an unknown one."""
    if isinstance(options, Options):
        return options
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options must be compiler.Options or a dict, not a {type(options).__name__}")
    known = {f.name for f in fields(Options)}
    for name in options or {}:
        if name not in known:
            raise OptionError(f"there is no option {name!r}{did_you_mean(name, known) or '; see compiler.Options'}")
    return Options(**(options or {}))
