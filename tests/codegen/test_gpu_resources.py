"""Resources of GPU kernels, read from what the vendors' tools print."""

from __future__ import annotations

import pytest

from compiler.codegen.triton.resources import amd_resources

AMD = """
	v_writelane_b32 v255, s33, 0
	v_accvgpr_write_b32 a0, v1
	global_load_dwordx4 v[0:3], v0, s[0:1]
	.amdhsa_private_segment_fixed_size {private}
    .private_segment_fixed_size: {private}
    .sgpr_count:     106
    .sgpr_spill_count: 19
    .vgpr_count:     256
    .vgpr_spill_count: 8
"""


@pytest.mark.parametrize("private", [0, 76])
def test_spills_of_amd_are_what_goes_to_memory(private: int) -> None:
    """Registers that wait in other registers are not spilled."""
    resources = amd_resources(AMD.format(private=private), shared_bytes=1024, warps=4)
    assert resources.spilled_bytes == private
    assert (resources.registers, resources.shared_bytes, resources.warps) == (256, 1024, 4)
    assert (resources.global_accesses, resources.wide_accesses) == (1, 1)
