"""The weights an agent has: by content, in memory and on disk, so that neither a new plan nor a restart needs them sent again.

Laws: what is handed out has the digest it is asked by, checked when it arrives and when it is read from disk; memory and disk stay under
their limits, the least recently used weight goes first. Weights that sessions hold stay alive with the sessions.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.limits import is_digest
from bbgrap.protocol.messages import WeightChunk
from bbgrap.protocol.tensors import decode_array

DEFAULT_DISK_BYTES = 8 << 30
"""Chosen: a dozen large convolutional networks."""
MAX_WEIGHT_BYTES = 16 << 30
"""One weight slice; anything above is a broken message."""

_log = logging.getLogger("bbgrap.agent")


@dataclass(slots=True)
class _Arriving:
    """A weight of which the first `received` bytes are here."""

    type: TensorType
    content: bytearray
    received: int = 0


class WeightStore:
    """Weights by digest.

    Invariants: `_memory` holds at most `memory_bytes`, least recently used first; the folder holds at most `disk_bytes` of `DIGEST.npy`.
    """

    def __init__(self, directory: Path | None, *, memory_bytes: int = 1 << 30, disk_bytes: int = DEFAULT_DISK_BYTES) -> None:
        """Keep weights in a folder (None: in memory only)."""
        self._directory = directory
        self._memory: OrderedDict[str, Array] = OrderedDict()
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._arriving: dict[str, _Arriving] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def missing(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Return those that are neither in memory nor, intact, on disk."""
        return tuple(digest for digest in digests if self.get(digest) is None)

    def get(self, digest: str) -> Array | None:
        """Return a weight, read-only; None if it is not here."""
        array = self._memory.get(digest)
        if array is not None:
            self._memory.move_to_end(digest)
            return array
        array = self._read(digest)
        if array is not None:
            self._keep(digest, array)
        return array

    def add(self, chunk: WeightChunk) -> tuple[int, bool]:
        """Take a piece; return how many bytes are here now, and whether that is all.

        A piece that does not follow the last one is ignored: the sender learns from the count where to go on, also after a broken
        connection, when it starts from the beginning.

        Raises:
            RemoteProtocolError: if sizes contradict each other or the content does not have its digest.
        """
        content = chunk.payload[0] if chunk.payload else b""
        if chunk.size > MAX_WEIGHT_BYTES or (chunk.type.dtype is not DType.STRING and chunk.size != chunk.type.nbytes):
            raise RemoteProtocolError(f"weight {chunk.digest[:12]}: {chunk.size} bytes do not fit its type {chunk.type}")
        if chunk.digest in self._memory:
            return chunk.size, True
        entry = self._arriving.get(chunk.digest)
        if entry is None or entry.type != chunk.type or len(entry.content) != chunk.size:
            entry = self._arriving[chunk.digest] = _Arriving(chunk.type, bytearray(chunk.size))
        if chunk.offset + len(content) > len(entry.content):
            raise RemoteProtocolError(f"weight {chunk.digest[:12]}: a piece lies beyond its {chunk.size} bytes")
        if chunk.offset == entry.received:
            entry.content[chunk.offset : chunk.offset + len(content)] = content
            entry.received += len(content)
        if entry.received < len(entry.content):
            return entry.received, False
        self._finish(chunk.digest, self._arriving.pop(chunk.digest))
        return chunk.size, True

    def _finish(self, digest: str, entry: _Arriving) -> None:
        if entry.type.shape is None:
            raise RemoteProtocolError(f"weight {digest[:12]}: it has no shape")
        array = decode_array(entry.type.dtype, entry.type.shape, memoryview(entry.content))
        array.flags.writeable = False
        if digest_of(array) != digest:
            raise RemoteProtocolError(f"weight {digest[:12]}: its content has another digest; it was damaged on the way")
        self._keep(digest, array)
        self._write(digest, array)

    def _keep(self, digest: str, array: Array) -> None:
        self._memory[digest] = array
        total = sum(entry.nbytes for entry in self._memory.values())
        while total > self._memory_bytes and len(self._memory) > 1:
            total -= self._memory.popitem(last=False)[1].nbytes

    def _path(self, digest: str) -> Path | None:
        return self._directory / f"{digest}.npy" if self._directory is not None and is_digest(digest) else None

    def _read(self, digest: str) -> Array | None:
        path = self._path(digest)
        if path is None or not path.exists():
            return None
        array: Array | None
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            array = None
        if array is None or digest_of(array) != digest:
            _log.warning("weight %s on disk is damaged; it will be sent again", digest[:12])
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        array.flags.writeable = False
        return array

    def _write(self, digest: str, array: Array) -> None:
        path = self._path(digest)
        if path is None or array.dtype == object:
            return
        draft = path.with_suffix(f".{os.getpid()}.part")
        try:
            with draft.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
            draft.replace(path)
            self._make_room(path.parent)
        except OSError as error:
            # A full disk costs a later transfer, not this deployment.
            _log.warning("weight %s is not kept on disk: %s", digest[:12], error.strerror)
            draft.unlink(missing_ok=True)

    def _make_room(self, directory: Path) -> None:
        files = []
        for path in directory.glob("*.npy"):
            try:
                files.append((path.stat().st_mtime, path.stat().st_size, path))
            except FileNotFoundError:
                continue  # Another agent that shares the folder removed it.
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._disk_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
