"""The files of a model, and bringing them to a coordinator: in chunks, and only what it lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from bbgrap.control.uploads import offer_digest
from bbgrap.errors import ModelError
from bbgrap.protocol.client_messages import BRINGING, ModelChunk, ModelFile, ModelMissing, ModelStored, OfferModel, Progress
from bbgrap.protocol.limits import MAX_CHUNK_BYTES
from bbgrap.session.calls import OnProgress
from bbgrap.session.connection import Connection


class ModelFiles:
    """A model's own file and those of its weights, beside each other.

    Invariants: `_described` is empty until the model is brought for the first time, then it describes all files.
    """

    def __init__(self, path: Path, weight_files: Sequence[str]) -> None:
        """Take the model's file, and the names of the others."""
        self._folder = path.parent
        self._names = (path.name, *weight_files)
        self._described: tuple[ModelFile, ...] = ()

    def bring(self, connection: Connection, left_s: Callable[[], float], on_progress: OnProgress | None = None) -> str:
        """Bring the model to the coordinator, unless it is there; return its digest. `left_s` tells how many seconds are left for it.

        `on_progress` hears of the bytes that are there, of those that were missing.

        Raises:
            ModelError: if a weight file is not beside the model.
            CallFailedError: if the coordinator does not take it.
            TimeoutError: if it takes longer than there is time.
        """
        self._described = self._described or tuple(self._describe(name) for name in self._names)
        digest = offer_digest(self._described)
        offer = OfferModel(connection.number(), digest, self._described)
        missing = connection.try_call(offer, ModelMissing, timeout_s=left_s()).digests
        files = {file.digest: file for file in self._described if file.digest in missing}
        done, total = 0, sum(file.size for file in files.values())

        def tell(received: int) -> None:
            if on_progress is not None:
                on_progress(Progress(offer.call, BRINGING, done + received, total))

        for file in files.values():
            self._send(connection, file, left_s, tell)
            done += file.size
        return digest

    def _send(self, connection: Connection, file: ModelFile, left_s: Callable[[], float], tell: Callable[[int], None]) -> None:
        offset, complete = 0, False
        with (self._folder / file.name).open("rb") as stream:
            while not complete:
                stream.seek(offset)
                chunk = ModelChunk(connection.number(), file.digest, offset, (stream.read(MAX_CHUNK_BYTES),))
                answer = connection.try_call(chunk, ModelStored, timeout_s=left_s())
                offset, complete = answer.received, answer.complete
                tell(offset)

    def _describe(self, name: str) -> ModelFile:
        if Path(name).name != name:
            raise ModelError(f"model: its weights are in '{name}'; a cluster takes weight files that lie beside the model, not in folders")
        path = self._folder / name
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return ModelFile(name, digest, path.stat().st_size)
