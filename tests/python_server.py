"""Python processes that begin with PyTorch and the compiler imported, forked from a server: importing takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SERVER = """
import json, os, runpy, signal, sys
import torch, torch._dynamo, torch.export
import compiler.tools.cli, compiler.torch_backend, compiler.passes


def prepare(out, err, folder, variables, command):
    for number, name in enumerate((os.devnull, out, err)):
        os.dup2(os.open(name, os.O_RDWR), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    if variables.get("PYTHONWARNINGS") == "ignore":
        __import__("warnings").simplefilter("ignore")
    kind, *words = command
    first = {"-m": folder, "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
    sys.path[:1] = [first, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = words if kind == "-m" else [kind, *words[kind == "-c":]]
    return kind, words


def program():
    for line in sys.stdin:
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            return prepare(**json.loads(line))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(300)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(0)
        print(code, flush=True)
    sys.exit()


def main():
    kind, words = program()
    if kind == "-m":
        return runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    text = words[0] if kind == "-c" else open(kind, encoding="utf-8").read()
    space = sys.modules["__main__"].__dict__
    for name in [n for n in space if not n.startswith("__")]:
        del space[name]
    if kind != "-c":
        space["__file__"] = kind
    exec(compile(text, "<string>" if kind == "-c" else kind, "exec"), space)


main()
"""
"""Reads requests as lines, forks, and prints exit codes.  A child runs what it is asked and ends as every interpreter does."""


class PythonServer:
    """`server.run("-c", "print(1)")` does what `subprocess.run` does with `sys.executable`; five minutes at most."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: folder / name for name in ("out", "err")}
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *command: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the arguments `command` in `folder`, with `variables` in its environment."""
        for file in self._files.values():
            file.write_text("")
        request = {
            "command": command,
            "folder": str(folder or Path.cwd()),
            "variables": {**os.environ, **variables},
            **{name: str(file) for name, file in self._files.items()},
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        printed = [file.read_text(encoding="utf-8") for file in self._files.values()]
        return subprocess.CompletedProcess(command, code, *printed)

    def __enter__(self) -> PythonServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()
