"""Inputs of sequences on disk: those of a training step's first request are all of its weights.

    RunModel, large, of a sequence -> written in a thread of its own -> InputsStored -> the machine    a gigabyte takes seconds

Laws: what is kept has the bytes that were given, whatever becomes of those; files have no name, so nothing is left of them when the
coordinator has ended, however it ends; nobody waits for the disk but the request whose inputs these are.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.protocol.client_messages import RunModel
from bbgrap.protocol.messages import BytesLike

LARGE_BYTES = 4 << 20
"""Requests with less stay in memory: a file takes a descriptor. Chosen: so there are never more than a thousand."""
MAX_WRITING_BYTES = 1 << 30
"""Of inputs that wait for the disk at once; beyond it, further requests are refused as busy. Chosen: as many as may wait for agents."""

_log = logging.getLogger("bbgrap.coordinator")


class InputFiles:
    """Copies the inputs of requests to where they can stay."""

    def __init__(self, directory: Path) -> None:
        """Use a folder on a disk with some room."""
        self._directory = directory

    def store(self, inputs: Sequence[BytesLike]) -> tuple[BytesLike, ...]:
        """Return a copy of a request's inputs, in one file; in memory if there is no room on disk."""
        ends = list(accumulate(map(len, inputs), initial=0))
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.writelines(inputs)
                file.flush()
                kept = memoryview(mmap.mmap(file.fileno(), ends[-1], access=mmap.ACCESS_READ))
        except OSError as error:
            _log.warning("inputs of a sequence stay in memory: '%s': %s; they need %d bytes", self._directory, error.strerror, ends[-1])
            return tuple(map(bytes, inputs))
        return tuple(kept[start:end] for start, end in pairwise(ends))


@dataclass(frozen=True, slots=True)
class InputsStored:
    """The inputs of a request have been written; with a `fault` they are nowhere."""

    identity: RoutingId
    message: RunModel
    fault: str = ""


class IncomingRequests:
    """Requests whose inputs are being written before anybody looks at them.

    Invariants: used by one thread; `_writing` holds the bytes of each by caller, those that were cancelled meanwhile among them.
    """

    def __init__(self, files: InputFiles, put: Callable[[InputsStored], None]) -> None:
        """Start without any; `put` is called from another thread."""
        self._files = files
        self._put = put
        self._pool = ThreadPoolExecutor(1, "inputs")
        self._writing: dict[tuple[RoutingId, int], int] = {}
        self._cancelled: set[tuple[RoutingId, int]] = set()

    @staticmethod
    def concerns(message: RunModel) -> bool:
        """Whether a request is one of a sequence, and has large inputs."""
        return message.sequence > 0 and sum(map(len, message.payload)) >= LARGE_BYTES

    def take(self, identity: RoutingId, message: RunModel) -> str:
        """Write the inputs of a request; return why not, if there are too many. One that comes twice is written once."""
        caller, size, taken = (identity, message.call), sum(map(len, message.payload)), sum(self._writing.values())
        if caller in self._writing:
            return ""
        if taken and taken + size > MAX_WRITING_BYTES:
            return f"the inputs of {len(self._writing)} requests, {taken:,} bytes, wait for the disk already"
        self._writing[caller] = size
        self._pool.submit(self._store, identity, message)
        return ""

    def _store(self, identity: RoutingId, message: RunModel) -> None:
        """Write inputs; whoever waits for them is told in any case."""
        try:
            stored = InputsStored(identity, replace(message, payload=self._files.store(message.payload)))
        except Exception as error:
            _log.exception("inputs of a sequence cannot be kept")
            stored = InputsStored(identity, message, f"its inputs cannot be kept: {str(error) or type(error).__name__}")
        self._put(stored)

    @property
    def writing(self) -> Set[tuple[RoutingId, int]]:
        """Who waits for the disk."""
        return self._writing.keys() - self._cancelled

    def cancel(self, identity: RoutingId, call: int) -> None:
        """Nobody waits for a request any more."""
        if (identity, call) in self._writing:
            self._cancelled.add((identity, call))

    def stored(self, event: InputsStored) -> RunModel | None:
        """Return a request whose inputs have been written, if anybody waits for it."""
        caller = event.identity, event.message.call
        del self._writing[caller]
        if caller in self._cancelled:
            self._cancelled.remove(caller)
            return None
        return event.message

    def close(self) -> None:
        """Write nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
