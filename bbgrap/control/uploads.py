"""Clients bring models.

Laws: a file is stored under its digest and used only when it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from bbgrap.control.coordinator_events import ChunkWritten, Identity, Instruction, ToClient, WriteChunk
from bbgrap.protocol.client_messages import (
    Failed,
    Fault,
    ModelChunk,
    ModelFile,
    ModelMissing,
    ModelStored,
    OfferModel,
)

MAX_OFFERS = 256
"""Models whose lists of files are remembered; the least recently offered one makes room, and is simply offered again."""


def offer_digest(files: Iterable[ModelFile]) -> str:
    """Return the name of a model: the digest of the names, digests and sizes of its files."""
    return hashlib.sha256("\n".join(f"{file.name}\t{file.digest}\t{file.size}" for file in files).encode()).hexdigest()


class Uploads:
    """What models are here.

    Invariants: `stored` are the digests and sizes of complete files.
    """

    def __init__(self, stored: dict[str, int], models: Mapping[str, tuple[ModelFile, ...]]) -> None:
        """Start with the files and models kept from earlier."""
        self.stored = stored
        self._offers = dict(models)
        self._sizes: dict[str, int] = {}

    def offer(self, identity: Identity, message: OfferModel) -> list[Instruction]:
        """Answer which files are missing."""
        names = [file.name for file in message.files]
        if offer_digest(message.files) != message.model or not names or len(set(names)) < len(names):
            reason = "model: its digest is not that of its files, or a file name is used twice"
            return [ToClient(identity, Failed(message.call, Fault.PROTOCOL, reason))]
        self._offers.pop(message.model, None)
        self._offers[message.model] = message.files
        while len(self._offers) > MAX_OFFERS:
            del self._offers[next(iter(self._offers))]
        missing = tuple(dict.fromkeys(file.digest for file in message.files if file.digest not in self.stored))
        self._sizes.update({file.digest: file.size for file in message.files if file.digest in missing})
        return [ToClient(identity, ModelMissing(message.call, missing))]

    def chunk(self, identity: Identity, message: ModelChunk) -> list[Instruction]:
        """Store a piece of an offered file."""
        if message.digest in self.stored:
            return [ToClient(identity, ModelStored(message.call, self.stored[message.digest], complete=True))]
        size = self._sizes.get(message.digest)
        if size is None or not message.payload:
            return [ToClient(identity, Failed(message.call, Fault.UNKNOWN_MODEL, "model: the file was not offered"))]
        return [WriteChunk(identity, message, size)]

    def written(self, event: ChunkWritten) -> list[Instruction]:
        """Acknowledge a piece."""
        if event.fault:
            return [ToClient(event.identity, Failed(event.call, Fault.MODEL, event.fault))]
        if event.complete:
            self.stored[event.digest] = event.received
            self._sizes.pop(event.digest, None)
        return [ToClient(event.identity, ModelStored(event.call, event.received, event.complete))]

    def files_of(self, model: str) -> tuple[ModelFile, ...] | None:
        """Return the files of a model that is here completely."""
        files = self._offers.get(model)
        return files if files is not None and all(file.digest in self.stored for file in files) else None
