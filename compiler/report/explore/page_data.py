"""Data of the page: what Python computes when it is saved, as plain values that become JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.report.explore.layering import Box
from compiler.report.explore.line_delta import Hunk


@dataclass(frozen=True)
class SourceFile:
    """Lines of a file of the user's program; the first one has the number `first`."""

    name: str
    first: int
    lines: list[str]


@dataclass(frozen=True)
class Origin:
    """Computed node of the imported graph: the number of its source file (-1: none), its line there and its module."""

    name: str
    op: str
    type: str
    file: int
    line: int
    module: str


@dataclass(frozen=True)
class Rewrite:
    """One rewrite inside a pass, or several: the number of the last one, what they say, are about, and change in the text.

    They are counted over all passes, as `rewrite_limit` does; 0 stands for what a pass does in any case.
    """

    number: int
    message: str
    about: str
    origins: list[int]
    delta: list[Hunk]


@dataclass(frozen=True)
class PageStep:
    """A pass with its options: how it changes the text before it, and the drawing of the graph after it (-1: unchanged).

    `effect` is the first sentence of its description.  `omitted` says what the list of rewrites leaves out, and why.
    """

    name: str
    text: str
    effect: str
    seconds: float
    delta: list[Hunk]
    rewrites: list[Rewrite] = field(default_factory=list)
    omitted: str = ""
    drawing: int = -1
    failed: bool = False


@dataclass(frozen=True)
class Steps:
    """A text, and the passes that change it one after the other."""

    text: list[str]
    steps: list[PageStep]


@dataclass(frozen=True)
class DrawnNode:
    """A node of a drawing: `inputs` are ids of nodes, `constants` the names and types of constant operands."""

    id: str
    op: str
    type: str
    origins: list[int]
    inputs: list[str]
    constants: list[str]
    kernel: str = ""


@dataclass(frozen=True)
class Drawing:
    """A graph in boxes: numbers of `PageWay.nodes`, and the root of the boxes, whose nodes count from 0 in this list."""

    nodes: list[int]
    root: Box


@dataclass(frozen=True)
class PageRemark:
    """Remark of a pass, `times` over; `lost` in seconds."""

    pass_name: str
    kind: str
    message: str
    subject: str
    where: str
    times: int
    lost: float
    origins: list[int]


@dataclass(frozen=True)
class PageAlternative:
    """A decision that might have gone another way, with the predicted seconds of a launch (None: not known)."""

    change: str
    predicted: float | None


@dataclass(frozen=True)
class Statements:
    """Statements of the Tile IR that becomes code: for each line the first one of its statement, and origins by that line."""

    first_lines: list[int]
    origins: Mapping[int, list[int]]


@dataclass(frozen=True)
class PageCode:
    """Code of a kernel, and the line of its Tile IR that each of its lines comes from, as in a `Listing`."""

    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class PageKernel:
    """A kernel, or a call into PyTorch: work and seconds of one call of the program (None: not known), and how it was made.

    `code` is the text of each stage of code generation, `resources` what a GPU's kernel takes of a multiprocessor, by name.
    """

    name: str
    ops: str = ""
    where: str = ""
    dtypes: str = ""
    launches: int = 0
    flops: int = 0
    bytes: int = 0
    predicted: float | None = None
    roofline: float | None = None
    seconds: float | None = None
    origins: list[int] = field(default_factory=list)
    remarks: list[PageRemark] = field(default_factory=list)
    alternatives: list[PageAlternative] = field(default_factory=list)
    tile: Steps = Steps([], [])
    statements: Statements = Statements([], {})
    code: Mapping[str, PageCode] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryBlock:
    """A buffer of the workspace: offset and size in bytes, alive from step `first` to step `last`."""

    name: str
    type: str
    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryMap:
    """The workspace of one call in bytes, and the steps of the program as text."""

    size: int
    size_without_reuse: int
    steps: list[str]
    blocks: list[MemoryBlock]


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a machine: operations in a second by dtype, bytes in a second by memory; and where the numbers come from."""

    origin: str
    flops: Mapping[str, float]
    bytes: Mapping[str, float]


@dataclass(frozen=True)
class PageWay:
    """One way to compile the model: passes over graphs, passes over programs, kernels; `error` says why it stopped."""

    name: str
    target: str
    graph: Steps
    program: Steps = Steps([], [])
    nodes: list[DrawnNode] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    kernels: list[PageKernel] = field(default_factory=list)
    remarks: list[PageRemark] = field(default_factory=list)
    memory: MemoryMap | None = None
    trace: Sequence[Mapping[str, Any]] = ()
    ceilings: Ceilings | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    predicted: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Page:
    """The page: the user's program, and each way to compile it."""

    title: str
    version: str
    sources: list[SourceFile]
    origins: list[Origin]
    ways: list[PageWay]
