"""Inputs of sequences on disk: those of a training step's first request are all of its weights.

Laws: what is kept has the bytes that were given, whatever becomes of those; files have no name, so nothing is left of them when the
coordinator has ended, however it ends.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from bbgrap.protocol.messages import BytesLike

LARGE_BYTES = 4 << 20
"""Requests with less stay in memory: a file takes a descriptor. Chosen: so there are never more than a thousand."""

_log = logging.getLogger("bbgrap.coordinator")


class InputFiles:
    """Copies the inputs of requests to where they can stay."""

    def __init__(self, directory: Path) -> None:
        """Use a folder on a disk with some room."""
        self._directory = directory

    def keep(self, inputs: Sequence[BytesLike]) -> tuple[BytesLike, ...]:
        """Return a copy of a request's inputs: in memory if they are small or there is no room on disk, else in one file."""
        ends = list(accumulate(map(len, inputs), initial=0))
        if ends[-1] < LARGE_BYTES:
            return tuple(map(bytes, inputs))
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.writelines(inputs)
                file.flush()
                kept = memoryview(mmap.mmap(file.fileno(), ends[-1], access=mmap.ACCESS_READ))
        except OSError as error:
            _log.warning("inputs of a sequence stay in memory: '%s': %s; they need %d bytes", self._directory, error.strerror, ends[-1])
            return tuple(map(bytes, inputs))
        return tuple(kept[start:end] for start, end in pairwise(ends))
