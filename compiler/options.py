"""Everything a user can choose, and the only place that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


def _default_cache() -> str:
    return os.environ.get("TILEWRIGHT_CACHE", str(Path.home() / ".cache" / "tilewright"))


@dataclass(frozen=True)
class Options:
    """Options of one compilation.

    `target` names the machine ("host", "x86-64-v4", "x86-64-v3", "x86-64").  `fuse=False` makes one kernel per op.
    `winograd=False` adds up every product of a convolution, which rounds less (see compiler.passes.graph.winograd).  `graph_passes`
    and `tile_passes` replace the default pipelines (see compiler.pipeline).  `fallback="eager"` runs unsupported ops in PyTorch.
    `freezing` makes weights constants under `torch.compile` too, where no gradient is asked for (see compiler.backend).
    `verify` checks the IR after every pass; `check` interprets it before and after every pass.  `print_before`,
    `print_after` name a pass (or "all") whose IR is printed.  `cache` is the directory of compiled objects ("" for none).
    `tune` measures the alternatives that passes offer for the dearest kernels, and remembers the fastest in `cache`.
    """

    target: str = "host"
    fuse: bool = True
    winograd: bool = True
    graph_passes: str = ""
    tile_passes: str = ""
    fallback: str = "error"
    freezing: bool = False
    verify: bool = False
    check: bool = False
    print_before: str = ""
    print_after: str = ""
    print_after_change: bool = False
    tune: bool = False
    cache: str = field(default_factory=_default_cache)

    def with_(self, **changes: Any) -> Options:
        """A copy with some fields changed; TypeError names an unknown one."""
        return replace(self, **changes)


def as_options(options: Options | dict[str, Any] | None) -> Options:
    """Options from what the user passed."""
    return options if isinstance(options, Options) else Options(**(options or {}))
