"""Clients bring models.

Laws: a file is stored under its digest and used only when it is complete; what one client says of a file changes nothing for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

from bbgrap.control.audit import peer_of
from bbgrap.control.coordinator_events import ChunkWritten, RoutingId
from bbgrap.control.coordinator_instructions import Audit, CoordinatorInstruction, ToClient, WriteChunk
from bbgrap.protocol.client_messages import Failed, ModelChunk, ModelFile, ModelMissing, ModelStored, OfferModel
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import MAX_MODEL_BYTES

_K = TypeVar("_K")
_V = TypeVar("_V")

MAX_OFFERS = 256
"""Models whose lists of files are remembered; the least recently offered one makes room, and is simply offered again."""

MAX_CLIENTS = 1024
"""Clients whose offered files are remembered; the least recently heard one makes room, and simply offers again."""

MAX_FILES = 10_000
"""Files of a model: exporters that write one per weight make some thousand."""


def offer_digest(files: Iterable[ModelFile]) -> str:
    """Return the name of a model: the digest of the names, digests and sizes of its files."""
    return hashlib.sha256("\n".join(f"{file.name}\t{file.digest}\t{file.size}" for file in files).encode()).hexdigest()


class Uploads:
    """What models are here.

    Invariants: `stored` are the digests and sizes of complete files; `_missing` are those that clients may bring, with the model that each
    was offered for last, of up to `MAX_CLIENTS` clients with `MAX_FILES` files each.
    """

    def __init__(self, stored: dict[str, int], models: Mapping[str, tuple[ModelFile, ...]] | None = None) -> None:
        """Start with the files and models kept from earlier."""
        self.stored = stored
        self._unread = set(stored)  # since the start: a power cut may have cut them short
        self._offers = dict(models or {})
        self._missing: dict[RoutingId, dict[str, tuple[int, str]]] = {}

    def offer(self, identity: RoutingId, message: OfferModel) -> list[CoordinatorInstruction]:
        """Answer which files are missing."""
        refused = self._fault_of(message)
        if refused is not None:
            fault, reason = refused
            return [ToClient(identity, Failed(message.call, fault, f"model: {reason}"))]
        told = [] if message.model in self._offers else [Audit("brought", peer_of(identity), _about(message))]
        _put_last(self._offers, message.model, message.files, MAX_OFFERS)
        missing = tuple(dict.fromkeys(file.digest for file in message.files if self.stored.get(file.digest) != file.size))
        if missing:
            mine = self._missing.get(identity, {})
            for file in message.files:
                if file.digest in missing:
                    _put_last(mine, file.digest, (file.size, message.model), MAX_FILES)
            _put_last(self._missing, identity, mine, MAX_CLIENTS)
        return [ToClient(identity, ModelMissing(message.call, missing)), *told]

    def _fault_of(self, message: OfferModel) -> tuple[Fault, str] | None:
        """Return what is wrong with an offer; None if nothing is."""
        names = [file.name for file in message.files]
        if offer_digest(message.files) != message.model or not names or len(set(names)) < len(names):
            return Fault.PROTOCOL, "its digest is not that of its files, or a file name is used twice"
        if "/" in names[0] or not _folders_of(names).isdisjoint(names):
            return Fault.PROTOCOL, "its own file lies in a folder, or a folder has the name of a file"
        sizes: dict[str, int] = {}
        for file in message.files:
            said = sizes.setdefault(file.digest, file.size)
            known = said if file.digest in self._unread else self.stored.get(file.digest, said)
            if known != file.size:
                return Fault.PROTOCOL, f"file '{file.name}' has {known} bytes by its digest, not {file.size}"
        total = sum(file.size for file in message.files)
        if total > MAX_MODEL_BYTES or len(names) > MAX_FILES:
            return Fault.MODEL, f"it has {total} bytes in {len(names)} files; a cluster takes {MAX_MODEL_BYTES} in {MAX_FILES}"
        return None

    def chunk(self, identity: RoutingId, message: ModelChunk) -> list[CoordinatorInstruction]:
        """Store a piece of an offered file."""
        known = self.stored.get(message.digest)
        size, model = self._missing.get(identity, {}).get(message.digest, (known or 0, ""))
        if known is not None and (known == size or message.digest not in self._unread):
            return [ToClient(identity, ModelStored(message.call, known, complete=True))]
        if not model or not message.payload:
            return [ToClient(identity, Failed(message.call, Fault.UNKNOWN_MODEL, "model: the file was not offered"))]
        return [WriteChunk(identity, message, size, self._offers.get(model, ()))]

    def written(self, event: ChunkWritten) -> list[CoordinatorInstruction]:
        """Acknowledge a piece."""
        self.forget(event.gone)
        if event.fault:
            return [ToClient(event.identity, Failed(event.call, Fault.BUSY if event.is_busy else Fault.MODEL, event.fault))]
        if event.complete:
            self.stored[event.digest] = event.received
            self._unread.discard(event.digest)
            mine = self._missing.get(event.identity, {})
            mine.pop(event.digest, None)
            if not mine:
                self._missing.pop(event.identity, None)
        return [ToClient(event.identity, ModelStored(event.call, event.received, event.complete))]

    def forget(self, digests: Iterable[str]) -> None:
        """Note that files are not stored any more: whoever needs them brings them again."""
        for digest in digests:
            self.stored.pop(digest, None)

    def files_of(self, model: str) -> tuple[ModelFile, ...] | None:
        """Return the files of a model that is here completely."""
        files = self._offers.get(model)
        return files if files is not None and all(self.stored.get(file.digest) == file.size for file in files) else None


def _folders_of(names: Iterable[str]) -> set[str]:
    """Return the folders in which files of these names lie."""
    return {str(folder) for name in names for folder in PurePosixPath(name).parents}


def _about(message: OfferModel) -> dict[str, Any]:
    return {"model": message.model, "names": [file.name for file in message.files], "bytes": sum(file.size for file in message.files)}


def _put_last(entries: dict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Make an entry the latest one, and drop the oldest beyond the limit."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > most:
        del entries[next(iter(entries))]
