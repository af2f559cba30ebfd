"""Where the coordinator keeps the models that clients bring: files by digest, in the state directory.

Laws: a file appears under its digest only when it is complete and has that digest; the names a client gives are used inside a fresh
folder only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bbgrap.control.coordinator_events import ChunkWritten, WriteChunk
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.limits import is_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MODEL_BYTES = 64 << 30
"""One file. Chosen: above any model that fits the machines this is for."""

MAX_KEPT_BYTES = 32 << 30
"""All files that are kept from one run of the coordinator to the next."""


class ModelStore:
    """The files of models.

    Invariants: `directory` holds complete files named by their digest, and `*.part` for those on their way.
    """

    def __init__(self, directory: Path) -> None:
        """Use a folder, which is made if it is not there; what was on its way is forgotten."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for part in directory.glob("*.part"):
            part.unlink()
        for left in directory.glob("model-*"):
            shutil.rmtree(left, ignore_errors=True)
        self._forget_oldest()
        self._received: dict[str, int] = {}

    def stored(self) -> dict[str, int]:
        """Return the digests and sizes of complete files."""
        return {path.name: path.stat().st_size for path in self.directory.iterdir() if is_digest(path.name)}

    def _forget_oldest(self) -> None:
        """Keep the newest files up to `MAX_KEPT_BYTES`. Only at the start: later every file may be in use."""
        kept = 0
        for path in sorted(self.directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True):
            kept += path.stat().st_size
            if kept > MAX_KEPT_BYTES and is_digest(path.name):
                path.unlink()

    def write(self, instruction: WriteChunk) -> ChunkWritten:
        """Append a piece if it follows the last one; complete the file if it was the last."""
        chunk, identity = instruction.chunk, instruction.identity
        received = self._received.get(chunk.digest, 0)
        try:
            if chunk.offset == received:
                received += self._append(chunk.digest, chunk.offset, chunk.payload[0], instruction.size)
                self._received[chunk.digest] = received
            complete = received == instruction.size
            fault = self._complete(chunk.digest) if complete else ""
        except OSError as error:
            self._received.pop(chunk.digest, None)
            complete, fault = False, f"model: the coordinator cannot store it in '{self.directory}': {error.strerror}"
        return ChunkWritten(identity, chunk.call, chunk.digest, received, complete and not fault, fault)

    def _part(self, digest: str) -> Path:
        return self.directory / f"{digest}.part"

    def _append(self, digest: str, offset: int, content: bytes | memoryview, size: int) -> int:
        if offset + len(content) > size or size > MAX_MODEL_BYTES:
            raise OSError(0, f"a piece lies beyond the file's {size} bytes or the limit of {MAX_MODEL_BYTES}")
        with self._part(digest).open("wb" if offset == 0 else "ab") as stream:
            stream.write(content)
        return len(content)

    def _complete(self, digest: str) -> str:
        self._received.pop(digest, None)
        part = self._part(digest)
        with part.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != digest:
            part.unlink()
            return f"model: expected a file with digest {digest[:12]}, got {found[:12]}; did it change while it was sent?"
        part.replace(self.directory / digest)
        return ""

    @contextmanager
    def folder(self, files: Sequence[ModelFile]) -> Iterator[Path]:
        """Lay out the files of a model under their names for as long as the context lasts; yields the path of the first."""
        with TemporaryDirectory(dir=self.directory, prefix="model-") as home:
            for number, file in enumerate(files):
                # onnx refuses external data with a second name (CVE-2026-34446), so only the model itself may be a link
                (shutil.copyfile if number else place)(self.directory / file.digest, Path(home) / file.name)
            yield Path(home) / files[0].name


def place(source: Path, target: Path) -> None:
    """Make a file appear under a second name, without copying it where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
