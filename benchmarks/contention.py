"""Calls beside other load: `python -m benchmarks contention ResNet --peers OpenVINO --threads 2`.

Ours and each peer run in processes of their own, which wait while another has its turn.  In each turn, processes that compute
all the time, a second process with the same model, or a CPU quota take CPUs away, or operators of PyTorch run between calls.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import nn

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.networks import NETWORKS, Network, network
from benchmarks.peers import prepare_peers
from compiler.report.render import table

OURS = "ours"

ROUNDS, TURN_SECONDS, WARM_UP_SECONDS = 4, 0.6, 0.1
"""Each competitor has at least this many turns in each condition, of so many seconds; calls in the first of them do not count."""

CALLS, MOST_ROUNDS = 200, 12
"""Turns go on until each competitor has made this many calls, so that a 99th percentile is not the slowest call alone, or has had so many turns."""

BURST_SECONDS = 0.05
"""Length of the bursts, and of the pauses between them, of a process that computes for half of the time."""

OPERATOR_ELEMENTS = 1 << 18
"""Size of the tensor of the operators between calls: enough for PyTorch to use all its threads."""

CGROUP = Path("/sys/fs/cgroup/cpu") if Path("/sys/fs/cgroup/cpu").exists() else Path("/sys/fs/cgroup")
"""Control group under which groups with a quota are made."""

QUOTA_PERIOD = 100_000
"""Microseconds of a period of a CPU quota, Linux's default."""


class LSTM(nn.Module):
    """Sequences [n, t, 128] -> hidden states [n, t, 128]."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(128, 128, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.cell(x)
        return states


class ElementwiseChain(nn.Module):
    """Eight operations on each element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x * 1.5 + 0.25)
        return (y - x).abs() * 0.5 + torch.clamp(x, -1, 1)


def small_layers() -> nn.Module:
    """Return 12 linear layers of width 256, each followed by a ReLU."""
    return nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(256, 256), nn.ReLU())))


MODELS: Mapping[str, Network] = {
    "12 small layers": network(small_layers, (64, 256)),
    **{name: NETWORKS[name] for name in ("MiniLM", "ResNet-18", "MobileNetV2")},
    **{f"GPT-2, {n} token(s)": NETWORKS[f"GPT-2 {kind}"] for n, kind in ((1, "decode"), (512, "prefill"))},
    "LSTM": network(LSTM, (1, 64, 128)),
    "64 MiB elementwise": network(ElementwiseChain, (4096, 4096)),
}


def spin() -> None:
    """Keep one CPU busy."""
    while True:
        pass


def spin_half() -> None:
    """Keep one CPU busy for half of the time."""
    while True:
        end = time.perf_counter() + BURST_SECONDS
        while time.perf_counter() < end:
            pass
        time.sleep(BURST_SECONDS)


def start_processes() -> None:
    """Start one short process after another, as a build does."""
    while True:
        subprocess.run([sys.executable, "-c", "pass"], check=True)


class Competitor:
    """A process that has compiled a model, and makes calls for some seconds when asked to."""

    def __init__(self, model: str, peer: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.peer = peer
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=compete, args=(child, model, peer, threads), daemon=True)
        self.process.start()

    def begin(self, seconds: float, operator: bool = False) -> None:
        """Start to call for `seconds` seconds; run an operator of PyTorch before each call, which is not measured, if `operator`."""
        self.pipe.send((seconds, operator))

    def finish(self) -> list[float]:
        """Wait, and return the seconds of each call."""
        times: list[float] = self.pipe.recv()
        return times

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()


def compete(pipe: Connection, model: str, peer: str, threads: int) -> None:
    """Compile, send True if that worked, and then answer requests until the process is terminated."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module, args = MODELS[model]()
    if peer == OURS:
        call: Callable[[], object] = partial(compiler.compile(module, tuple(args)), *args)
    else:
        ready = prepare_peers(module, args, [peer])
        if not ready:
            pipe.send(False)
            return
        call = ready[0].call
    pipe.send(True)
    x = torch.randn(OPERATOR_ELEMENTS)
    with torch.no_grad():
        while True:
            seconds, operator = pipe.recv()
            end, times = time.perf_counter() + seconds, list[float]()
            counted_from = end - seconds + min(WARM_UP_SECONDS, seconds / 4)
            while time.perf_counter() < end or not times:
                if operator:
                    torch.relu(x)
                start = time.perf_counter()
                call()
                if start >= counted_from or time.perf_counter() >= end:
                    times.append(time.perf_counter() - start)
            pipe.send(times)


@contextlib.contextmanager
def busy_processes(count: int, _: Competitor, work: Callable[[], None] = spin) -> Iterator[None]:
    """Run `count` processes, each of which calls `work`."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, daemon=True) for _ in range(count)]
    for p in processes:
        p.start()
    try:
        yield
    finally:
        for p in processes:
            p.kill()
            p.join()


@contextlib.contextmanager
def quota(cpus: float, competitor: Competitor) -> Iterator[None]:
    """Put the competitor's process under a CPU quota; OSError if no control group can be made."""
    group = Path(tempfile.mkdtemp(prefix="quota", dir=CGROUP))
    pid = competitor.process.pid
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{int(cpus * QUOTA_PERIOD)} {QUOTA_PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(cpus * QUOTA_PERIOD)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (CGROUP / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@dataclass(frozen=True)
class Condition:
    """What runs beside a competitor; `copies` of it run at the same time.  An `operator` of PyTorch runs before each call."""

    name: str
    load: Callable[[Competitor], AbstractContextManager[None]]
    copies: int = 1
    operator: bool = False


CONDITIONS = (
    Condition("quiet", partial(busy_processes, 0)),
    *(Condition(f"{n} busy", partial(busy_processes, n)) for n in (1, 2, 4)),
    Condition("half busy", partial(busy_processes, 1, work=spin_half)),
    Condition("a build", partial(busy_processes, 1, work=start_processes)),
    Condition("a copy", partial(busy_processes, 0), copies=2),
    Condition("quota of 1 CPU", partial(quota, 1)),
    Condition("operators", partial(busy_processes, 0), operator=True),
)


def main(arguments: BenchmarkArguments) -> None:
    """Print mean, median and 99th percentile in milliseconds of each competitor, one table for each model."""
    threads = arguments.threads[0]
    for model in arguments.select_rows(MODELS):
        with ExitStack() as stack:
            competitors = list(start_competitors(stack, model, arguments.peers, threads))
            results = {c.name: measure(c, competitors) for c in CONDITIONS}
        peers = [first.peer for first, _ in competitors]
        made = table(
            f"{model}, {threads} thread(s): mean / median / p99 in ms", ["beside"], [*peers, "mean, best peer / ours"]
        )
        for name, times in results.items():
            means = {p: np.mean(t) for p, t in times.items()}
            best = min((float(m) for p, m in means.items() if p != OURS), default=float("nan"))
            ratio = f"{best / float(means[OURS]):.2f}" if OURS in means else "-"
            made.add_row(name, *(summarize(times[p]) if p in times else "-" for p in peers), ratio)
        print_table(made)


def start_competitors(
    stack: ExitStack, model: str, peers: tuple[str, ...], threads: int
) -> Iterator[tuple[Competitor, Competitor]]:
    """Start two processes for ours and for each peer, one after another, to be stopped at the end of `stack`."""
    for peer in (OURS, *peers):
        pair = Competitor(model, peer, threads), Competitor(model, peer, threads)
        for c in pair:
            stack.callback(c.stop)
        ready = [c.finish() for c in pair]
        if all(ready):
            yield pair
        else:
            print(f"{model}: {peer} is skipped", file=sys.stderr)


def measure(
    condition: Condition,
    competitors: list[tuple[Competitor, Competitor]],
    rounds: int = ROUNDS,
    calls: int = CALLS,
    seconds: float = TURN_SECONDS,
) -> dict[str, list[float]]:
    """Return the seconds of all calls of each competitor: at least `calls`, in at least `rounds` turns of `seconds` seconds."""
    times: dict[str, list[float]] = {}
    for turn in itertools.count():
        if turn >= rounds and (turn >= MOST_ROUNDS or all(len(t) >= calls for t in times.values())):
            break
        for pair in competitors:
            running = pair[: condition.copies]
            try:
                with condition.load(pair[0]):
                    for c in running:
                        c.begin(seconds, condition.operator)
                    for c in running:
                        times.setdefault(c.peer, []).extend(c.finish())
            except OSError as failure:
                print(f"{condition.name} is skipped: {failure}", file=sys.stderr)
                return times
    return times


def summarize(times: list[float]) -> str:
    """Format mean, median and 99th percentile in milliseconds."""
    values = 1e3 * np.array(times)
    return " / ".join(f"{v:.3g}" for v in (values.mean(), np.median(values), np.quantile(values, 0.99)))
