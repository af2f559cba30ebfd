"""Work that ends its process, for the test of the child processes; alone in a file, so that a child starts fast."""

from __future__ import annotations

import os
from collections.abc import Callable

FATAL = 1
"""The job that ends its process."""


def die(job: int, progress: Callable[[str], None]) -> int:
    """Return the job, or end the process as onnxruntime's own assertions do."""
    progress(f"number {job}")
    if job == FATAL:
        os.abort()
    return job
