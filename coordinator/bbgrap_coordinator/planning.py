"""Planning in a process of its own: requests are answered meanwhile, and a model that ends whoever reads it ends no coordinator.

    coordinator ── job ───────────────────────────►  planner (`bbgrap_coordinator.planner`)
                ◄── plans; or the error, to be raised ──
                ◄── weights: one file that the planner writes and the coordinator maps ──

Both are this program, on one machine, so what passes between them is pickled; nothing in it comes from the network unread. Laws: what
`prepare` returns or raises is what it would here; a planner that died is started anew for the next job; it ends with its coordinator,
however that ends.
"""

from __future__ import annotations

import mmap
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import IO, Self

from bbgrap.cluster.types import Cluster
from bbgrap.control.planned import PlannedVariant
from bbgrap.errors import PlanError
from bbgrap.planners.options import PlanOptions

ALIGNMENT = 64
"""Where arrays begin in the file of weights, in bytes: no less than any of their elements needs."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of `bbgrap.engine.prepare.prepare`, and the empty file for weights."""

    model: Path
    shapes: Mapping[str, tuple[int, ...]]
    cluster: Cluster
    options: PlanOptions
    weights: Path


@dataclass(frozen=True, slots=True)
class Packed:
    """Variants without the content of their arrays, pickled, and where each lies in the file of weights: begin and end, bytes."""

    content: bytes
    places: tuple[tuple[int, int], ...]


def pack(variants: tuple[PlannedVariant, ...], weights: IO[bytes]) -> Packed:
    """Write what was found; arrays that cannot be mapped (of strings, of types that numpy does not know by itself) are pickled."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(variants, protocol=5, buffer_callback=buffers.append)
    places = []
    for buffer in buffers:
        weights.write(bytes(-weights.tell() % ALIGNMENT))
        begin = weights.tell()
        weights.write(buffer.raw())
        places.append((begin, weights.tell()))
    weights.flush()
    return Packed(content, tuple(places))


def unpack(packed: Packed, weights: IO[bytes]) -> tuple[PlannedVariant, ...]:
    """Return what was found; arrays in the file are read-only views of it, and it may be removed."""
    mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ) if any(end for _, end in packed.places) else b""
    whole = memoryview(mapped)
    arrays = [whole[begin:end] for begin, end in packed.places]
    found: tuple[PlannedVariant, ...] = pickle.loads(packed.content, buffers=arrays)  # noqa: S301 - from a child of this program
    return found


class PlannerProcess:
    """Plans in a child process. Used by one thread, except for `close`."""

    def __init__(self) -> None:
        """Start it; its imports go on while others do what they have to."""
        self._process, self._channel = _start()

    def prepare(
        self, model: Path, shapes: Mapping[str, tuple[int, ...]], cluster: Cluster, options: PlanOptions
    ) -> tuple[PlannedVariant, ...]:
        """Do what `bbgrap.engine.prepare.prepare` does; the folder of the model must have room for its weights.

        Raises:
            PlanError: besides what that raises: the planner died of it.
        """
        if self._process.poll() is not None:
            self._end()
            self._process, self._channel = _start()
        with NamedTemporaryFile(dir=model.parent, prefix="weights-") as weights:
            job = Job(model, shapes, cluster, options, Path(weights.name))
            try:
                self._channel.send(job)
                answer: Packed | Exception = self._channel.recv()
            except (EOFError, OSError):
                raise PlanError(f"planner: its process ended while it planned '{model.name}': {self._why()}") from None
            match answer:
                case Packed():
                    return unpack(answer, weights.file)
                case _:
                    raise answer

    def _why(self) -> str:
        status = self._process.wait()
        if status >= 0:
            return f"status {status}; the coordinator's log may say more"
        name = signal.Signals(-status).name
        return f"{name}, as when memory runs out" if name == "SIGKILL" else f"{name}; a library crashed on this model"

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        assert self._process.stdin is not None, "a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, its = Pipe()
    with its:
        command = (sys.executable, "-m", "bbgrap_coordinator.planner", str(its.fileno()))
        # a session of its own: what a terminal says to interrupt the coordinator is not for it
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(its.fileno(),), start_new_session=True), ours
