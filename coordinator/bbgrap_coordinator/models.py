"""Where the coordinator keeps the models that clients bring: files by digest, in the state directory.

Laws: a file appears under its digest only when it is complete and has that digest; whoever uses it gets content of that digest, or
`ModelGoneError`, also after a power cut; the names a client gives are used inside a fresh folder only; one client's pieces never become
part of another's file.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bbgrap.control.coordinator_events import ChunkWritten, RoutingId
from bbgrap.control.coordinator_instructions import WriteChunk
from bbgrap.errors import ModelError
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.limits import MAX_MODEL_BYTES, is_digest
from bbgrap_coordinator.artifacts import NO_ROOM, size_of, sync_folder

MAX_ARRIVING_BYTES = MAX_MODEL_BYTES
"""All files that are on their way, as far as they are here."""

MAX_ARRIVING = 64
"""Files on their way; one that got nothing for `IDLE_S` makes room for another."""

MAX_OF_CLIENT = 16
"""Of these, files of one client: others have places, too."""

IDLE_S = 30.0
"""A client sends its next piece when the last one is stored: nobody who is still there takes so long."""

FORGOTTEN_S = 300.0
"""A file that got nothing for so long goes when another begins; a client that comes back after all starts it again."""

MAX_STORED = 16_384
"""Complete files, however small they are: whenever one is complete, all are looked at. Chosen: more than one model may have."""

MIN_FREE_BYTES = 256 << 20
"""What is left of the disk: the coordinator's own state and log need room too."""

_log = logging.getLogger("bbgrap.coordinator")
_Seen = tuple[int, int, int]
"""What tells whether a file is still the one that was hashed: inode, time of modification in ns, and size."""


class ModelGoneError(ModelError):
    """Files of a model were stored, and are not any more; `gone` are their digests. They can be brought again."""

    def __init__(self, gone: tuple[str, ...]) -> None:
        files = ", ".join(digest[:12] for digest in gone)
        super().__init__(f"model: the coordinator's files {files} are gone or damaged; they are to be brought again")
        self.gone = gone


@dataclass(slots=True)
class _Arriving:
    """A file of which the first `received` of `size` bytes are in `part`; `heard` is when the last piece came, on the monotonic clock."""

    part: Path
    size: int
    heard: float
    received: int = 0
    hasher: hashlib._Hash = field(default_factory=hashlib.sha256)
    """Of what was received."""


class ModelStore:
    """The files of models. `write` is called by one thread, `folder` by any.

    Invariants: `directory` holds complete files named by their digest, and `*.part` for those on their way. The complete ones have at most
    `max_bytes` in `MAX_STORED` files: those that were used least recently make room for the latest one, but not those of its model, which
    may have more.
    """

    def __init__(self, directory: Path, *, max_bytes: int = sys.maxsize) -> None:
        """Use a folder, which is made if it is not there; what was on its way is forgotten.

        Content is not hashed here, which would take a minute for what may be kept, but when it is first used.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        directory.mkdir(parents=True, exist_ok=True)
        for part in directory.glob("*.part"):
            part.unlink()
        for left in directory.glob("model-*"):
            shutil.rmtree(left, ignore_errors=True)
        for path in directory.iterdir():
            if is_digest(path.name) and size_of(path) == 0:
                path.unlink()  # what a file system may leave of a file after a power cut
        self._arriving: dict[tuple[RoutingId, str], _Arriving] = {}
        self._hashed: dict[str, _Seen] = {}
        self._parts = 0
        self._is_refusing = False
        """Whether the latest piece could not be stored."""

    def stored(self) -> dict[str, int]:
        """Return the digests and sizes in bytes of complete files."""
        sizes = {path.name: size_of(path) for path in self.directory.iterdir() if is_digest(path.name)}
        return {digest: size for digest, size in sizes.items() if size is not None}

    def write(self, instruction: WriteChunk) -> ChunkWritten:
        """Append a piece if it follows the last one; complete the file if it was the last."""
        chunk, key = instruction.chunk, (instruction.identity, instruction.chunk.digest)
        gone: tuple[str, ...] = ()
        received, complete, fault, is_busy = 0, False, "", False
        try:
            entry = self._entry(key, instruction.size)
            if chunk.offset == entry.received:
                self._append(entry, chunk.payload[0])
            received = entry.received
            if received == entry.size:
                del self._arriving[key]
                fault = self._complete(chunk.digest, entry)
                complete = not fault
                gone = self._make_room({chunk.digest, *(file.digest for file in instruction.model)}) if complete else ()
        except OSError as error:
            self._drop(key)
            fault, is_busy = f"model: the coordinator cannot store it in '{self.directory}': {error.strerror}", error.errno in NO_ROOM
            if not self._is_refusing:  # of what is busy clients hear at their deadlines only, and ask every second until then
                _log.warning("%s", fault)
            self._is_refusing = True
        else:
            self._is_refusing = False
        return ChunkWritten(instruction.identity, chunk.call, chunk.digest, received, complete, fault, gone, is_busy)

    def _entry(self, key: tuple[RoutingId, str], size: int) -> _Arriving:
        """Return the file that a client brings, a new one if there is none of this size."""
        now = time.monotonic()
        entry = self._arriving.get(key)
        if entry is not None and entry.size == size:
            entry.heard = now
            return entry
        self._drop(key)
        for other, idle in [(other, now - entry.heard) for other, entry in self._arriving.items()]:
            if idle > FORGOTTEN_S:
                self._drop(other)
        if not self.directory.is_dir():
            _log.warning(
                "'%s' was removed and is made anew; what else was kept there, a restart will lack: plans, tokens, keys", self.directory
            )
            self.directory.mkdir(parents=True)
        free = shutil.disk_usage(self.directory).free - MIN_FREE_BYTES
        if size > free:
            kept = f"beside {MIN_FREE_BYTES >> 20} MiB that stay free"
            raise OSError(errno.ENOSPC, f"a file of {size} bytes; there is room for {max(0, free)} {kept}; make some there")
        self._find_place([other for other in self._arriving if other[0] == key[0]], MAX_OF_CLIENT, "of this client ", now)
        self._find_place(list(self._arriving), MAX_ARRIVING, "", now)
        self._parts += 1
        entry = self._arriving[key] = _Arriving(self.directory / f"{key[1]}.{self._parts}.part", size, now)
        return entry

    def _find_place(self, taken: list[tuple[RoutingId, str]], most: int, whose: str, now: float) -> None:
        """Let another file be on its way beside those that are: the one silent for longest makes room."""
        if len(taken) >= most:
            oldest = min(taken, key=lambda other: self._arriving[other].heard)
            if now - self._arriving[oldest].heard < IDLE_S:
                raise OSError(errno.ENOSPC, f"{most} files {whose}are on their way already; try again later")
            self._drop(oldest)

    def _append(self, entry: _Arriving, content: bytes | memoryview) -> None:
        if entry.received + len(content) > entry.size:
            raise OSError(0, f"a piece lies beyond the file's {entry.size} bytes")
        if sum(other.received for other in self._arriving.values()) + len(content) > MAX_ARRIVING_BYTES:
            raise OSError(errno.ENOSPC, f"more than {MAX_ARRIVING_BYTES} bytes are on their way; try again later")
        if shutil.disk_usage(self.directory).free - len(content) < MIN_FREE_BYTES:  # others write, too, since it began
            raise OSError(errno.ENOSPC, f"{MIN_FREE_BYTES >> 20} MiB of the disk stay free")
        with entry.part.open("ab") as stream:
            stream.write(content)
        entry.hasher.update(content)
        entry.received += len(content)

    def _drop(self, key: tuple[RoutingId, str]) -> None:
        entry = self._arriving.pop(key, None)
        if entry is not None:
            with suppress(OSError):
                entry.part.unlink(missing_ok=True)

    def _complete(self, digest: str, entry: _Arriving) -> str:
        """Give a file its name; return what is wrong with it."""
        entry.part.touch()
        found = entry.hasher.hexdigest()
        if found != digest:
            entry.part.unlink()
            return f"model: expected a file with digest {digest[:12]}, got {found[:12]}; did it change while it was sent?"
        target = self.directory / digest
        entry.part.replace(target)
        self._hashed[digest] = _seen(target.lstat())
        return ""

    def sync(self, digest: str) -> None:
        """Bring a complete file to the disk. Before that a power cut may damage it, which is found out by its digest when it is used."""
        try:
            with (self.directory / digest).open("rb") as stream:
                os.fsync(stream.fileno())
            sync_folder(self.directory)
        except OSError as error:
            _log.warning("model file %s may not outlast a power cut: %s", digest[:12], error.strerror)

    def _make_room(self, needed: Collection[str]) -> tuple[str, ...]:
        """Remove the files that were used least recently, beyond what is kept and except those needed; return their digests."""
        kept, gone = 0, []
        found = [(path.name, path.stat()) for path in self.directory.iterdir() if is_digest(path.name)]
        latest_first = sorted(found, key=lambda item: (item[0] in needed, item[1].st_atime), reverse=True)
        for number, (digest, facts) in enumerate(latest_first, 1):
            kept += facts.st_size
            if (kept > self._max_bytes or number > MAX_STORED) and digest not in needed:
                self._remove(digest)
                gone.append(digest)
        return tuple(gone)

    def _remove(self, digest: str) -> None:
        self._hashed.pop(digest, None)
        (self.directory / digest).unlink(missing_ok=True)

    @contextmanager
    def folder(self, files: Sequence[ModelFile]) -> Iterator[Path]:
        """Lay out the files of a model under their names for as long as the context lasts; yields the path of the first.

        Raises:
            ModelGoneError: if a file is missing, or has not the content of its digest any more; it is removed.
            ModelError: if a file is not as large as the model says.
        """
        gone = tuple(file.digest for file in files if not self._is_intact(file.digest))
        if gone:
            raise ModelGoneError(gone)
        wrong = [file for file in files if size_of(self.directory / file.digest) != file.size]
        if wrong:
            raise ModelError(f"model: its file '{wrong[0].name}' does not have {wrong[0].size} bytes; offer it again")
        with TemporaryDirectory(dir=self.directory, prefix="model-") as home:
            for file in files:
                path = Path(home) / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    place(self.directory / file.digest, path)
                except FileNotFoundError:
                    raise ModelGoneError((file.digest,)) from None  # it has just made room for another
            yield Path(home) / files[0].name

    def _is_intact(self, digest: str) -> bool:
        """Whether a file has the content of its digest, and note that it is used; one that has not is removed.

        It is hashed once, and again when it is another file, or was written to.
        """
        path = self.directory / digest
        try:
            facts = path.lstat()
            if self._hashed.get(digest) != _seen(facts):
                with path.open("rb") as stream:
                    good = stat.S_ISREG(facts.st_mode) and hashlib.file_digest(stream, "sha256").hexdigest() == digest
                if not good:
                    self._remove(digest)
                    return False
                self._hashed[digest] = _seen(facts)
            os.utime(path, ns=(time.time_ns(), facts.st_mtime_ns))
        except OSError:
            # It stays: there may only be too many open files. One that is brought again takes its name.
            self._hashed.pop(digest, None)
            return False
        return True


def place(source: Path, target: Path) -> None:
    """Make a file appear under a second name, without copying it where the file system can."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _seen(facts: os.stat_result) -> _Seen:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
