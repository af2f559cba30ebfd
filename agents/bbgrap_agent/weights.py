"""The weights an agent has: by content, in memory and on disk, so that neither a new plan nor a restart needs them sent again.

What is large is mapped from disk, not read: kernels pack what they use, and the pages of the file are the system's to take back.

Laws: what is handed out has the digest it is asked by, checked when it arrives and when it is read from disk; memory and disk stay under
their limits, the least recently used weight goes first, except for what a deployment that is being loaded needs: that stays, on disk where
it can be written, else in memory; an error says where there is none. Weights that sessions hold stay alive with the sessions.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bbgrap.doctor.cgroups import free_memory_bytes
from bbgrap.errors import ExecutionError, RemoteProtocolError
from bbgrap.file_locks import lock, lock_at
from bbgrap.graph.mapped_files import FilePart, map_array
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.messages import WeightChunk
from bbgrap.protocol.tensors import decode_array
from bbgrap_agent.weight_files import check_limits, fault_of, part_of, weight_file
from bbgrap_agent.worker_settings import DEFAULT_CACHE_BYTES

MAX_WEIGHT_BYTES = 16 << 30
"""One weight slice; anything above is a broken message."""

NEEDED_S = 300.0
"""A weight that nobody asked for or sent for so long is not needed for a deployment any more: the coordinator has given that up."""
SMALL_BYTES = 64 << 10
"""Files up to this size are read, not mapped. Chosen: a mapping takes whole pages, and most weights are a few numbers for each channel."""
MAX_IN_MEMORY = 65_536
"""Weights that are held in memory however small they are: each costs some 400 bytes besides. Chosen: those of some hundred models."""
MAX_FILES = 65_536
"""Weights that are on disk however small they are: each counts as such a part of the limit at least. It takes an inode and a block,
and has to be looked at. Chosen: as in memory."""
LOOKS = 64
"""The folder is looked at when a 64th of what it may hold was written, and what is removed then leaves room for as much again. Chosen: to
look at ten thousand files takes as long as to write 20 MB, and a model has hundreds of weights."""
OLD_S = 3600.0
"""An unfinished file that is older belongs to nobody, where files cannot be locked."""

_log = logging.getLogger("bbgrap.agent")


@dataclass(slots=True)
class _Arriving:
    """A weight of which the first `received` bytes are here; the last of them came at `heard`, on the monotonic clock."""

    type: TensorType
    content: bytearray
    heard: float
    received: int = 0


class WeightStore:
    """Weights by digest. Used by one thread.

    Invariants: but for what `_needed` names, `_memory` holds at most `memory_bytes` in `MAX_IN_MEMORY` weights, least recently used first,
    and the folder at most `disk_bytes` in `MAX_FILES` files, unfinished ones included, and a 64th of that for each other agent that shares
    it; `_room` are the bytes that may be written until the folder is looked at again; `_unsaved` are the weights in memory that are not on
    disk, `_damaged` those whose files were removed and which have not come again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_bytes: int = 1 << 30,
        disk_bytes: int = DEFAULT_CACHE_BYTES,
        free: Callable[[], int] = free_memory_bytes,
    ) -> None:
        """Keep weights in a folder; what writers that are gone left unfinished in it is removed.

        `free` returns the bytes of memory that can still be taken.
        """
        self.directory = directory
        self._memory: OrderedDict[str, Array] = OrderedDict()
        self._held = 0
        """The bytes of what is in memory."""
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._least = disk_bytes // MAX_FILES
        """What a file counts at least, in bytes."""
        self._free = free
        self._arriving: dict[str, _Arriving] = {}
        self._needed: dict[str, float] = {}
        self._unsaved: set[str] = set()
        self._damaged: set[str] = set()
        self._room = 0
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)

    def missing(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Return those that are neither in memory nor, intact, on disk; all are needed from now on, until they are `loaded`.

        Raises:
            ExecutionError: if this process can open no file.
        """
        asked = tuple(digests)
        self._needed.update(dict.fromkeys(asked, time.monotonic()))
        return tuple(digest for digest in asked if self.get(digest) is None)

    def damaged(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Return those that are missing because their files were damaged; then all are needed, until they are `loaded`."""
        asked = tuple(digests)
        found = tuple(digest for digest in asked if self.get(digest) is None and digest in self._damaged)
        if found:
            self._needed.update(dict.fromkeys(asked, time.monotonic()))
        return found

    def loaded(self, digests: Iterable[str]) -> None:
        """Note that a deployment does not need these any more: its sessions hold them, or it is given up."""
        for digest in digests:
            self._needed.pop(digest, None)
        self._shrink()

    def get(self, digest: str) -> Array | None:
        """Return a weight, read-only; None if it is not here."""
        if digest in self._memory and self._is_cut(digest):
            self._drop(digest)
        array = self._memory.get(digest)
        if array is not None:
            self._memory.move_to_end(digest)
            return array
        array = self._read(digest)
        if array is not None:
            self._keep(digest, array)
        return array

    def parts(self, digests: Mapping[str, str]) -> dict[str, FilePart]:
        """Return, by the same names, in which files of the `directory` weights are; those that are in memory only are left out."""
        stored = {name: digest for name, digest in digests.items() if digest not in self._unsaved}
        found = {name: part_of(weight_file(self.directory, digest)) for name, digest in stored.items()}
        return {name: part for name, part in found.items() if part is not None}

    def add(self, chunk: WeightChunk) -> tuple[int, bool]:
        """Take a piece; return how many bytes are here now, and whether that is all.

        A piece that does not follow the last one is ignored: the sender learns from the count where to go on, also after a broken
        connection, when it starts from the beginning.

        Raises:
            RemoteProtocolError: if sizes contradict each other or the content does not have its digest.
            ExecutionError: if there is no memory for it.
        """
        content = chunk.payload[0] if chunk.payload else b""
        if chunk.size > MAX_WEIGHT_BYTES or (chunk.type.dtype is not DType.STRING and chunk.size != chunk.type.nbytes):
            raise RemoteProtocolError(f"weight {chunk.digest[:12]}: {chunk.size} bytes do not fit its type {chunk.type}")
        if chunk.digest in self._memory:
            return chunk.size, True
        entry = self._arriving.get(chunk.digest)
        if entry is None or entry.type != chunk.type or len(entry.content) != chunk.size:
            entry = self._begin(chunk)
        if chunk.digest in self._needed:
            self._needed[chunk.digest] = time.monotonic()
        if chunk.offset + len(content) > len(entry.content):
            raise RemoteProtocolError(f"weight {chunk.digest[:12]}: a piece lies beyond its {chunk.size} bytes")
        if chunk.offset == entry.received:
            entry.content[chunk.offset : chunk.offset + len(content)] = content
            entry.received += len(content)
            entry.heard = time.monotonic()
        if entry.received < len(entry.content):
            return entry.received, False
        self._finish(chunk.digest, self._arriving.pop(chunk.digest))
        return chunk.size, True

    def _begin(self, chunk: WeightChunk) -> _Arriving:
        self._arriving.pop(chunk.digest, None)
        # What is on its way is not in memory yet as far as the system knows: zeros take none until they are written to.
        taken = sum(len(entry.content) - entry.received for entry in self._arriving.values())
        free = self._free() - taken
        if chunk.size > free:
            self._arriving.clear()
            kept = sum(array.nbytes for digest, array in self._memory.items() if digest in self._unsaved)
            beside = f"; {kept} bytes are kept there because the disk does not take them" if kept else ""
            raise ExecutionError(f"weight {chunk.digest[:12]}: it has {chunk.size} bytes, of memory there are {max(0, free)} left{beside}")
        entry = self._arriving[chunk.digest] = _Arriving(chunk.type, bytearray(chunk.size), time.monotonic())
        return entry

    def _finish(self, digest: str, entry: _Arriving) -> None:
        if entry.type.shape is None:
            raise RemoteProtocolError(f"weight {digest[:12]}: it has no shape")
        array = decode_array(entry.type.dtype, entry.type.shape, memoryview(entry.content))
        array.flags.writeable = False
        if digest_of(array) != digest:
            raise RemoteProtocolError(f"weight {digest[:12]}: its content has another digest; it was damaged on the way")
        self._damaged.discard(digest)
        kept = self._stored(digest) if self._write(digest, array) else None
        if kept is None:
            self._unsaved.add(digest)
        self._keep(digest, array if kept is None else kept)

    def _keep(self, digest: str, array: Array) -> None:
        self._memory[digest] = array
        self._held += array.nbytes
        self._shrink()

    def _drop(self, digest: str) -> None:
        self._held -= self._memory.pop(digest).nbytes

    def _shrink(self) -> None:
        """Forget what was used least recently, beyond the limit, and is not the latest nor needed and nowhere else.

        So is what was begun, and did not go on: with its coordinator, or the plan that needs it, it may be gone.
        """
        for digest in [digest for digest, entry in self._arriving.items() if time.monotonic() - entry.heard > NEEDED_S]:
            del self._arriving[digest]
        for digest in tuple(self._memory)[:-1] if self._holds_too_much() else ():
            if not self._holds_too_much():
                return
            if digest not in self._unsaved or not self._is_needed(digest):
                self._drop(digest)
                self._unsaved.discard(digest)

    def _holds_too_much(self) -> bool:
        return self._held > self._memory_bytes or len(self._memory) > MAX_IN_MEMORY

    def _is_needed(self, digest: str) -> bool:
        since = self._needed.get(digest)
        if since is not None and time.monotonic() - since > NEEDED_S:
            del self._needed[digest]
            return False
        return since is not None

    def _read(self, digest: str) -> Array | None:
        path = weight_file(self.directory, digest)
        if not path.exists():
            return None
        array = None if (fault := fault_of(path)) else self._stored(digest)
        with suppress(OSError):  # a folder that cannot be written to is still read from
            if array is None:
                self._damaged.add(digest)
                _log.warning("weight %s on disk is damaged, and will be sent again: %s", digest[:12], fault or "it cannot be mapped")
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        return array

    def _is_cut(self, digest: str) -> bool:
        """Whether the file of a weight that is mapped was cut short meanwhile: reading it would end this process."""
        path = weight_file(self.directory, digest)
        if digest in self._unsaved or not path.exists():  # removed is not damaged: what is mapped lives on
            return False
        return bool(fault_of(path, content=False))

    def _stored(self, digest: str) -> Array | None:
        """Return what a file holds; None if it is no array. What is large is pages that the system may take back and read again."""
        try:
            with weight_file(self.directory, digest).open("rb") as stream:
                is_large = os.fstat(stream.fileno()).st_size > SMALL_BYTES
                array: Array = map_array(stream) if is_large else np.load(stream, allow_pickle=False)
        except OSError as error:
            check_limits(error)
            return None
        except (ValueError, EOFError):
            return None
        array.flags.writeable = False
        return array

    def _write(self, digest: str, array: Array) -> bool:
        """Write a weight to disk; return whether it is there."""
        if array.dtype == object:
            return False
        draft: Path | None = None
        try:
            descriptor, name = tempfile.mkstemp(".part", f"{digest}.", self.directory)
            draft = Path(name)
            with os.fdopen(descriptor, "wb") as stream:
                lock(descriptor)  # as long as it is written: another agent may take it for left
                np.save(stream, array, allow_pickle=False)
                size = stream.tell()
                draft.replace(weight_file(self.directory, digest))
            self._room -= max(size, self._least)
            if self._room <= 0:
                self._make_room()
        except OSError as error:
            # A full disk costs memory, and a later transfer, not this deployment.
            _log.warning("weight %s is not kept on disk: %s", digest[:12], error.strerror or f"{error}: is the disk full?")
            if draft is not None:
                draft.unlink(missing_ok=True)
            return False
        return True

    def _make_room(self) -> None:
        files = []
        for path in (*self.directory.glob("*.npy"), *self.directory.glob("*.part")):
            try:
                files.append((path.stat().st_mtime, max(path.stat().st_size, self._least), path))
            except FileNotFoundError:
                continue  # Another agent that shares the folder removed it.
        total = sum(size for _, size, _ in files)
        step = self._disk_bytes // LOOKS
        enough = self._disk_bytes if total <= self._disk_bytes else self._disk_bytes - step
        for _, size, path in sorted(files):
            if total <= enough:
                break
            if path.suffix == ".npy" and not self._is_needed(path.stem):
                path.unlink(missing_ok=True)
                total -= size
        self._room = min(self._disk_bytes - total, step)


def _remove_leftovers(directory: Path) -> None:
    """Remove unfinished files that nobody has locked: their writers are gone."""
    for path in directory.glob("*.part"):
        descriptor = lock_at(path)
        try:
            if descriptor is not None or time.time() - path.stat().st_mtime > OLD_S:
                path.unlink()
                _log.info("removed '%s', which was never finished", path.name)
        except FileNotFoundError:
            continue  # Another agent that shares the folder removed it, or finished it.
        finally:
            if descriptor is not None:
                os.close(descriptor)
