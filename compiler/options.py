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
    return "bf16" if torch is not None and torch.get_float32_matmul_precision() == "medium" else "f32"


MATMUL_PRECISIONS = ("f32", "bf16")
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

    `target` names the machine that code is made for: "host" or one of compiler.codegen.backend.targets().  `machine` is a file that
    describes it to the cost model (`tilewright calibrate` writes one), "" takes the description that comes with it.  `fuse=False` makes one
    kernel per op.  `winograd=False` disables the pass of that name, which rounds more.  `matmul_precision="bf16"` rounds f32 operands
    of matrix products and convolutions to bf16 where the target multiplies that; it is the default after
    `torch.set_float32_matmul_precision("medium")`.  `graph_passes` and `tile_passes` replace the
    default pipelines of the target, or edit them: "default,+form-silu@before:fuse,-winograd" (see compiler.passes.pipeline_text).  `fallback` says what becomes of operators without a conversion: "error"
    refuses them, "eager" runs them in PyTorch, and "strict" refuses those too that always run there, such as sorting.  `freezing` makes weights constants under
    `torch.compile` too, where no gradient is asked for.  `verify` checks the IR after every pass; `check` runs it before and
    after every pass and compares the results, as far as that is possible; "strict" makes it an error where it is not.  `print_before` and `print_after` name a pass (or "all") whose IR is printed.  `cache` is the directory of
    compiled objects ("" for none).  `effort` weighs the time to compile against that of a call: "fast" takes the shorter
    pipelines of the target and LLVM's level 1, "tune" measures the alternatives that passes propose for the most expensive kernels, and caches
    the fastest.  `schedules` maps names of kernels to what takes the place of the passes over them: a file with schedules or with a
    scheduled kernel of Tile IR, or such text of several lines.  One that computes something else is refused.  `rewrite_limit` is the
    number of rewrites after which passes make no more, to find the one that breaks a program.
    `cuda_graphs` records the launches of a program for a GPU in its second call with the same
    sizes, and replays them from then on; programs with calls into PyTorch are launched as usual, which a remark says.
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
