"""Call frame of a program: an array of 8-byte words, filled for each call, that its entry function and its kernels receive.

word 0   status: set by a kernel whose bounds check fails
word 1   number (from 1) of the first launch that set it
word 2   address of the workspace
word 3   number of threads that may share a kernel; kernels use no other word than this one and the status
word 4+  addresses of the buffers outside the workspace; with dynamic sizes, then the sizes, and the offsets of buffers
         in the workspace
"""

from __future__ import annotations

STATUS, FAILED_LAUNCH, WORKSPACE, THREADS, FIRST_SLOT = range(5)
"""Word numbers; buffers outside the workspace start at `FIRST_SLOT`."""
