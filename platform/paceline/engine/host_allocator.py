"""glibc's allocator, which serves the tensors of a training on CPU (mallopt(3), malloc_trim(3)).

By default it returns large blocks to the system when they are freed, depending on what lies beside them. The next step
gets them again as pages that the kernel first fills with zeros: 4,000 page faults in a step of a CNN at batch 512,
two fifths of the step's time.
"""

import ctypes
from typing import Any

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MOST_BYTES = 2**31 - 1
"""The largest value that the C function takes."""
_MOST_BYTES_BEFORE_2_35 = 32 << 20
"""The largest threshold of older versions."""


def keep_freed_memory() -> None:
    """Make this process keep memory that it frees, until `return_freed_memory`. No effect without glibc."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return
    # the trim threshold only after the other: either one ends its adaptation, which would leave it at 128 KiB
    if mallopt(_M_MMAP_THRESHOLD, _MOST_BYTES) or mallopt(_M_MMAP_THRESHOLD, _MOST_BYTES_BEFORE_2_35):
        mallopt(_M_TRIM_THRESHOLD, _MOST_BYTES)


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system. No effect without glibc."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
