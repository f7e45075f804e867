"""Resources of compiled GPU kernels: registers, spills and memory instructions, read from assembly with the vendors' tools."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler.codegen.triton.targets import GPUTarget


@dataclass(frozen=True)
class KernelResources:
    """Resources of a multiprocessor that a compiled kernel takes, and the number of each instruction in its code.

    `registers` are those of a thread; `spilled_bytes` go to memory because they do not fit; `shared_bytes` belong to a block.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    warps: int
    instructions: Mapping[str, int] = field(default_factory=dict)

    def count(self, pattern: str) -> int:
        """Return how many instructions have a name that matches a regular expression from its start."""
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))

    @property
    def global_accesses(self) -> int:
        """Instructions that access memory outside a multiprocessor, those that copy to shared memory included."""
        return self.count(r"LDG|STG|LDGSTS|UTMA|(global|buffer)_(load|store)")

    @property
    def wide_accesses(self) -> int:
        """Instructions of `global_accesses` that move 16 bytes in each thread, or a whole box of elements."""
        return self.count(r"(LDG|STG|LDGSTS)\S*\.(128|BYPASS)|UTMA|(global|buffer)_(load|store)_(lds_)?(dwordx4|b128)")

    @property
    def matrix_instructions(self) -> int:
        """Instructions of matrix units: wgmma, tcgen05 and mma of NVIDIA, MFMA of AMD."""
        return self.count(r"[A-Z]*GMMA|UTC\w*MMA|[A-Z]*MMA|v_s?mfmac?")

    @property
    def warp_group_instructions(self) -> int:
        """Instructions of `matrix_instructions` that read their operands from shared memory: wgmma and tcgen05."""
        return self.count(r"[A-Z]*GMMA|UTC\w*MMA")


def kernel_resources(
    artefacts: Mapping[str, bytes], target: GPUTarget, shared_bytes: int, warps: int
) -> KernelResources:
    """Read the resources of a kernel from its assembly and binary."""
    if target.platform == "hip":
        return amd_resources(artefacts["amdgcn"].decode(), shared_bytes, warps)
    return nvidia_resources(artefacts["ptx"], artefacts["cubin"], target, shared_bytes, warps)


def amd_resources(assembly: str, shared_bytes: int, warps: int) -> KernelResources:
    """Read the metadata and instructions of AMD's assembly.

    Private memory is what goes to memory: most of the registers that `sgpr_spill_count` and `vgpr_spill_count` count wait in
    lanes of vector registers and in accumulation registers.
    """
    numbers = {name: int(n) for name, n in re.findall(r"\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    spilled = numbers.get("private_segment_fixed_size", 0)
    code = Counter(re.findall(r"^\s+([vs]_\w+|(?:global|buffer|ds|scratch)_\w+)", assembly, re.MULTILINE))
    return KernelResources(numbers.get("vgpr_count", 0), spilled, shared_bytes, warps, code)


def nvidia_resources(ptx: bytes, cubin: bytes, target: GPUTarget, shared_bytes: int, warps: int) -> KernelResources:
    """Read what `ptxas -v` says, and the instructions that `nvdisasm` shows."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
    from triton.knobs import nvidia

    architecture = int(target.architecture)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_bytes(ptx)
        binary.write_bytes(cubin)
        flags = ["-v", "--regAllocOptLevel=2", f"--gpu-name={sm_arch_from_capability(architecture)}"]  # as Triton
        said = run_tool([get_ptxas(architecture).path, *flags, "-o", f"{folder}/other.cubin", str(source)])
        listing = run_tool([nvidia.nvdisasm.path, "-c", "--no-dataflow", str(binary)])
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    code = Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", listing, re.MULTILINE))
    return KernelResources(
        int(registers[1]) if registers else 0, max(map(int, spills), default=0), shared_bytes, warps, code
    )


def run_tool(command: Sequence[str]) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
