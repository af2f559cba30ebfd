"""What a worker does just now, in memory that its nanny sees: which kernel since when, and which deployment it loads.

    count | epoch | request | since | busy | count   the kernel; the count grows at its begin and at its end
    epoch | since                                  the deployment that is loaded; zeros: none

Laws: writing takes less than a microsecond and waits for nobody; times are nanoseconds of the monotonic clock, which processes share.
What is read while it is written has two different counts, and is read again.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bbgrap.graph.types import Array
from bbgrap.runtime.execution import Kernel
from bbgrap.transport.shared_memory import make_memory

_KERNEL = struct.Struct("=QQQQQQ")
_LOAD = struct.Struct("=QQ")
_LOAD_PLACE = 64
_SIZE = _LOAD_PLACE + _LOAD.size
_TRIES = 8


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """What a worker does: zeros where it does nothing; `steps` are the kernels that have ended, `since_ns` times when something began.

    `busy_ns` is how long the kernels that have ended took in all.
    """

    epoch: int = 0
    request: int = 0
    since_ns: int = 0
    steps: int = 0
    loading: int = 0
    loading_since_ns: int = 0
    busy_ns: int = 0


class WorkerProgress:
    """The memory; the executor's and the loader's thread write, the nanny reads.

    Invariants: each of the two parts has one writer.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the memory behind a file descriptor, which stays open."""
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._count = 0
        self._began = 0
        self._busy = 0

    def begin(self, epoch: int, request: int) -> None:
        """A kernel begins."""
        self._count = count = self._count + 1
        self._began = time.monotonic_ns()
        _KERNEL.pack_into(self._memory, 0, count, epoch, request, self._began, self._busy, count)

    def end(self) -> None:
        """The kernel has ended."""
        self._count = count = self._count + 1
        self._busy = busy = self._busy + time.monotonic_ns() - self._began
        _KERNEL.pack_into(self._memory, 0, count, 0, 0, 0, busy, count)

    def shown(self, compute: Kernel, epoch: int, request: int) -> Kernel:
        """Return a function that computes segments for a request, and shows it."""

        def run(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
            self.begin(epoch, request)
            try:
                return compute(segment, inputs)
            finally:
                self.end()

        return run

    def begin_load(self, epoch: int) -> None:
        """The loading of a deployment begins."""
        _LOAD.pack_into(self._memory, _LOAD_PLACE, epoch, time.monotonic_ns())

    def end_load(self) -> None:
        """It has ended."""
        _LOAD.pack_into(self._memory, _LOAD_PLACE, 0, 0)

    def read(self) -> WorkerActivity:
        """Return what the worker does, or did when it died."""
        tries = 0
        while True:
            tries += 1
            count, epoch, request, since, busy, again = _KERNEL.unpack_from(self._memory, 0)
            if count == again or tries == _TRIES:  # a writer that died in the middle leaves two counts for ever
                loading, loading_since = _LOAD.unpack_from(self._memory, _LOAD_PLACE)
                return WorkerActivity(epoch, request, since, count // 2, loading, loading_since, busy)

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


def shared_memory() -> int:
    """Return a file descriptor of new memory for a `WorkerProgress`; no name leads to it."""
    descriptor = make_memory("bbgrap-progress")
    if descriptor is None:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor
