"""The files of a model, and bringing them to a coordinator: in chunks, and only what it lacks."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path

from bbgrap.control.send_window import PIECES, SendWindow
from bbgrap.control.uploads import offer_digest
from bbgrap.errors import ModelChangedError, ModelError
from bbgrap.protocol.client_messages import BRINGING, ModelChunk, ModelFile, ModelMissing, ModelStored, OfferModel, Progress
from bbgrap.protocol.limits import MAX_CHUNK_BYTES, MAX_FILE_NAME_BYTES, MAX_FOLDERS, MOST_FAR_S, ROUND_TRIPS, is_inner_name
from bbgrap.session.calls import OnProgress
from bbgrap.session.connection import Connection

MOST_AHEAD = PIECES * MAX_CHUNK_BYTES
"""Of a file that are on their way at once. Chosen."""


class ModelFiles:
    """A model's own file and those of its weights, which lie beside it or in folders there.

    Invariants: `_described` is empty until the model is brought for the first time, then it describes all files; what is brought is what
    was there at first, as `_seen` tells.
    """

    def __init__(self, path: Path, weight_files: Sequence[str], name: str = "") -> None:
        """Take the model's file, and the names of the others; by `name` the cluster knows the first, else by its own.

        Raises:
            ModelError: if a weight file has a name that no cluster takes.
        """
        for weights in weight_files:
            if not is_inner_name(weights):
                raise ModelError(
                    f"model: its weights are in {weights[:200]!r}; a cluster takes names of up to {MAX_FILE_NAME_BYTES} bytes in up to "
                    f"{MAX_FOLDERS} folders, without '\\' and control characters; rename the file, or write the model anew"
                )
        self._path = path.absolute()
        self._names = (name or path.name, *weight_files)
        # Not the digests: large files are read once only, when they are brought.
        self._seen = {each: _version(self._path_of(each).stat()) for each in self._names}
        self._described: tuple[ModelFile, ...] = ()

    def bring(self, connection: Connection, left_s: Callable[[], float], on_progress: OnProgress | None = None) -> str:
        """Bring the model to the coordinator, unless it is there; return its digest. `left_s` tells how many seconds are left for it.

        `on_progress` hears of the bytes that are there, of those that were missing.

        Raises:
            ModelChangedError: if a file has gone or changed since the beginning.
            CallFailedError: if the coordinator does not take it.
            TimeoutError: if it takes longer than there is time.
        """
        self._described = self._described or tuple(self._describe(name) for name in self._names)
        digest = offer_digest(self._described)
        offer, began = OfferModel(connection.number(), digest, self._described), time.monotonic()
        missing = connection.try_call(offer, ModelMissing, timeout_s=left_s()).digests
        files = {file.digest: file for file in self._described if file.digest in missing}
        done, total = 0, sum(file.size for file in files.values())
        round_trip_s, window = min(time.monotonic() - began, MOST_FAR_S / ROUND_TRIPS), SendWindow(most=MOST_AHEAD)
        window.begin(time.monotonic())

        def tell(received: int, arrived: int) -> None:
            window.arrived(arrived, time.monotonic(), round_trip_s)
            if on_progress is not None:
                on_progress(Progress(offer.call, BRINGING, done + received, total))

        for file in files.values():
            self._send(connection, file, left_s, window, tell)
            done += file.size
        return digest

    def _send(
        self, connection: Connection, file: ModelFile, left_s: Callable[[], float], window: SendWindow, tell: Callable[[int, int], None]
    ) -> None:
        """Send a file: while the coordinator stores a piece, the next ones are on their way, no more than `window` allows."""
        flying: deque[tuple[ModelChunk, int]] = deque()
        offset, there, complete = 0, 0, False
        try:
            with self._open(file.name) as stream:
                while not complete:
                    while not flying or (offset < file.size and offset - there <= window.bytes - window.bytes // PIECES):
                        chunk = self._chunk(connection.number(), file, stream, offset, window.bytes // PIECES)
                        connection.begin(chunk, timeout_s=left_s())
                        offset += len(chunk.payload[0])
                        flying.append((chunk, offset))
                    chunk, end = flying.popleft()
                    answer = connection.answer_to(chunk, ModelStored, timeout_s=left_s())
                    complete = answer.complete
                    tell(answer.received, max(0, answer.received - there))
                    there = answer.received
                    if answer.received != end:  # something was lost, or stored by another: those that follow lie elsewhere
                        _forget(connection, flying)
                        offset = answer.received
        finally:
            _forget(connection, flying)

    def _chunk(self, number: int, file: ModelFile, stream: BufferedReader, offset: int, size: int) -> ModelChunk:
        stream.seek(offset)
        content = stream.read(min(size, MAX_CHUNK_BYTES, file.size - offset))
        if not content and file.size:
            raise ModelChangedError(
                f"model: '{self._path_of(file.name)}' had {file.size} bytes, now {offset}; it changed while it was sent"
            )
        return ModelChunk(number, file.digest, offset, (content,))

    def _describe(self, name: str) -> ModelFile:
        with self._open(name) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return ModelFile(name, digest, stream.tell())

    def _open(self, name: str) -> BufferedReader:
        path = self._path_of(name)
        try:
            stream = path.open("rb")
        except OSError as error:
            raise ModelChangedError(
                f"model: '{path}' cannot be read any more: {error.strerror}; it is read when a coordinator lacks it"
            ) from error
        version = _version(os.fstat(stream.fileno()))
        if version != self._seen[name] and not self._is_known(name, stream):
            stream.close()
            raise ModelChangedError(f"model: '{path}' has changed since this session was made of it; make another one")
        self._seen[name] = version
        return stream

    def _is_known(self, name: str, stream: BufferedReader) -> bool:
        """Whether a file has the content that was brought before: it may have been touched, or put back."""
        known = {file.name: file.digest for file in self._described}
        if name not in known:
            return False
        is_same = hashlib.file_digest(stream, "sha256").hexdigest() == known[name]
        stream.seek(0)
        return is_same

    def _path_of(self, name: str) -> Path:
        return self._path if name == self._names[0] else self._path.parent / name


def _version(status: os.stat_result) -> tuple[int, int, int]:
    """Return what is another after a file was written or replaced."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _forget(connection: Connection, flying: deque[tuple[ModelChunk, int]]) -> None:
    while flying:
        connection.forget(flying.pop()[0])
