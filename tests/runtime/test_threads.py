"""The thread team: every iteration runs once, on as many threads as were asked for, in every process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import compiler
from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.targets import host_target
from compiler.runtime import threads
from compiler.runtime.loader import Library, link_objects
from tests.python_server import PythonServer
from tests.runtime.recorded_chunks import RECORD_CHUNKS

CHUNKS = 64

Record = Callable[[int], list[int]]


def recorder(most: int = 1024) -> Record:
    """Return a function that runs a region of at most `most` chunks with a delay in each, and returns what it counted."""
    code = emit_object(RECORD_CHUNKS.replace("MOST", str(most)), host_target())
    library: Library = link_objects([code], ["record"], threads.kernel_functions())
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library["record"])

    def record(delay: int = 1) -> list[int]:
        data = (ctypes.c_int64 * 1101)()
        data[1100] = delay
        function(ctypes.addressof(data))
        keep = library  # unloaded when the last function is gone
        assert keep
        return list(data)

    return record


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """Let the team have any number of threads, whatever this machine has, and sharing never rest."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    threads.prepare_call()


def resize(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_cpus", lambda: 64)
    threads.team().resize(count)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_each_chunk_runs_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resize(count, monkeypatch)
    record = recorder()
    for _ in range(200):
        joined, chunks, *runs = record(1)
        assert runs[:chunks] == [1] * chunks
        assert not any(runs[chunks:1098])
        assert 1 <= joined <= count


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_there_are_no_more_chunks_than_iterations(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resize(4, monkeypatch)
    _, chunks, *runs = recorder(most)(1)
    assert 1 <= chunks <= most
    assert runs[:chunks] == [1] * chunks


def test_workers_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    resize(2, monkeypatch)
    record = recorder()
    assert any(record(100_000)[0] == 2 for _ in range(200))


def test_set_num_threads_counts() -> None:
    torch.set_num_threads(1)
    threads.prepare_call()
    assert threads.team().threads == 1
    assert recorder()(1)[:2] == [1, 1]


def test_python_threads_share_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    resize(4, monkeypatch)
    record, wrong = recorder(), list[list[int]]()

    def work() -> None:
        for _ in range(300):
            _, chunks, *runs = record(10)
            if runs[:chunks] != [1] * chunks:
                wrong.append(runs)

    callers = [threading.Thread(target=work) for _ in range(8)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong


MODEL = """
import multiprocessing, os, signal, sys, threading, time
import torch
from compiler.runtime import threads
threads.available_cpus = lambda: 2
torch.set_num_threads(2)
net = torch.nn.Sequential(*[m for _ in range(3) for m in (torch.nn.Linear(256, 256), torch.nn.ReLU())]).eval()
x = torch.randn(64, 256)
run = torch.compile(net, backend="tilewright")
torch.set_grad_enabled(False)
want = net(x)
def check(_=None):
    for _ in range(50):
        assert torch.allclose(run(x), want, atol=1e-5)
    return True
"""
SCENARIOS = {
    "fork after calls": """
check()
for _ in range(3):
    child = os.fork()
    if not child:
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
check()
""",
    "fork before the first call": """
run(x)
if not (child := os.fork()):
    check()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    # torch.compile checks its guards under a lock, which a fork may copy while it is held
    "fork while another thread calls": """
import compiler
run = compiler.compile(net, (x,))
check()
stop = threading.Event()
def call():
    while not stop.is_set():
        run(x)
caller = threading.Thread(target=call)
caller.start()
for _ in range(10):
    if not (child := os.fork()):
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
caller.join()
""",
    "a server that forks its workers after loading": """
check()
children = []
for _ in range(3):
    if not (child := os.fork()):
        callers = [threading.Thread(target=check) for _ in range(2)]
        for t in callers: t.start()
        for t in callers: t.join()
        os._exit(0)
    children.append(child)
assert all(os.waitpid(c, 0)[1] == 0 for c in children)
""",
    "a pool of forked processes": """
check()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert all(pool.map(check, range(4)))
""",
    "workers of a data loader": """
check()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, k): return run(x)[k]
rows = torch.cat(list(torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)))
assert torch.allclose(rows, want[:8], atol=1e-5)
""",
    "eight threads": """
run(x)
callers = [threading.Thread(target=check) for _ in range(8)]
for t in callers: t.start()
for t in callers: t.join()
""",
    "two modules at once": """
other = torch.compile(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).eval(), backend="tilewright")
expected = other(x)
run(x)
same = []
def call(): same.extend(torch.equal(other(x), expected) for _ in range(50))
t = threading.Thread(target=call)
t.start(); check(); t.join()
assert all(same) and len(same) == 50
""",
    "a thread that ends": """
run(x)
for _ in range(20):
    t = threading.Thread(target=check)
    t.start(); t.join()
check()
""",
    "the interpreter ends while workers sleep": """
check()
time.sleep(0.2)
""",
    "the main thread ends before another that calls": """
run(x)
threading.Thread(target=check).start()
""",
    "signals": """
check()
caught = []
signal.signal(signal.SIGALRM, lambda number, frame: caught.append(threading.current_thread() is threading.main_thread()))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(20): check()
signal.setitimer(signal.ITIMER_REAL, 0)
assert caught and all(caught)
""",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_a_process_of_its_own(scenario: str, python: PythonServer) -> None:
    python.run("-c", MODEL + SCENARIOS[scenario]).check_returncode()


SPAWN = """
def child(queue):
    check()
    queue.put(True)
if __name__ == "__main__":
    check()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
"""


def test_spawned_processes(tmp_path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(MODEL + SPAWN)
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)


class Mixed(torch.nn.Module):
    """Kernels of each kind that threads share: contractions, rows, reductions to one row, elementwise, and a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(192, 320), torch.nn.Conv2d(3, 16, 3)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.linear(x)
        return torch.softmax(y, -1) @ y.T, y.sum(0), torch.exp(y) / 3, y.cumsum(0), self.conv(image).relu()


def test_results_are_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_cpus", lambda: 64)
    torch.manual_seed(0)
    args = torch.randn(333, 192), torch.randn(2, 3, 40, 40)
    run = compiler.compile(Mixed().eval(), args)
    results = list[list[torch.Tensor]]()
    for count in (1, 2, 2, 3, 8):
        torch.set_num_threads(count)
        results += [list(run(*args)) for _ in range(20)]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
