"""Which models there are: those named at the start, and those of a folder, which is looked at again whenever somebody asks.

A folder has files `NAME.onnx`, or Triton's layout, `NAME/1/model.onnx`, of which the highest version is served. Law: a name from the
network is only ever compared with the names in the listing, never made into a path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbgrap.errors import AccessError, BbgrapError, ModelError
from bbgrap.serving.model import ServedModel
from bbgrap.serving.refusals import Refusal, RefusedError

MAX_REASONS = 1024
"""Models that are not loaded of which it is known why; the latest ones."""


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """A model that could be served."""

    name: str
    version: str
    path: Path


class Repository:
    """The models, and which of them are loaded; any thread may ask.

    Invariants: `models` and `_reasons` are replaced, never changed: who looks needs no lock. A name is in at most one of them.
    """

    def __init__(self, named: Mapping[str, Path], folder: Path | None, load: Callable[[RepositoryEntry], ServedModel]) -> None:
        """Take models by name, a folder of further ones, and what loads one."""
        self._named = named
        self._folder = folder
        self._load = load
        self.models: Mapping[str, ServedModel] = {}
        """Those that are loaded."""
        self._reasons: Mapping[str, str] = {}
        self._begins = True
        """Whether models of the start are still to be loaded."""
        self._loading = threading.Lock()

    def entries(self) -> dict[str, RepositoryEntry]:
        """Return what there is now, as `entries_of` does."""
        return entries_of(self._named, self._folder)

    def load_all(self) -> dict[str, str]:
        """Load every model; return why some of the folder could not be.

        Raises:
            ModelError: if one that was named cannot be loaded.
            AccessError: if that is because the coordinator does not let this client bring models.
        """
        for name in self.entries():
            try:
                self.load(name)
            except RefusedError as error:
                if name in self._named:
                    kind = AccessError if isinstance(error.__cause__, AccessError) else ModelError
                    raise kind(error.reason) from error
        self._begins = False
        return dict(self._reasons)

    def load(self, name: str) -> None:
        """Load a model, or load it again: requests that run end with the old one, which goes on serving if the new one cannot be loaded.

        Raises:
            RefusedError: if there is no such model, or it cannot be loaded.
        """
        entry = self._entry(name)
        with self._loading:
            try:
                model = self._load(entry)
            except (BbgrapError, OSError) as error:
                stays = name in self.models
                if not stays:
                    self._put(name, None, _text(str(error)))
                said = f"model '{name}': {_text(str(error))}{'; it is served as it was loaded before' if stays else ''}"
                raise RefusedError(Refusal.MALFORMED, said) from error
            self._put(name, model, "")

    def unload(self, name: str) -> None:
        """Serve a model no more; requests that run are answered.

        Raises:
            RefusedError: if there is no such model.
        """
        if name not in self.models:  # its file may be gone
            self._entry(name)
        with self._loading:
            self._put(name, None, "unloaded")

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """Return the listing; only what is loaded if so asked."""
        entries, models = self.entries(), self.models
        lines = [
            {
                "name": name,
                "version": models[name].version if name in models else entries[name].version,
                "state": "READY" if name in models else "UNAVAILABLE",
                "reason": "" if name in models else self._reasons.get(name, "not loaded"),
            }
            for name in sorted(entries.keys() | models.keys())
        ]
        return [line for line in lines if not ready or line["state"] == "READY"]

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is loaded.

        Raises:
            RefusedError: if there is none of this name and version, or it is being loaded.
        """
        model = self.models.get(name)
        if model is None:
            if self._is_coming(name):
                raise RefusedError(Refusal.UNAVAILABLE, f"model '{name}': it is being loaded; try again")
            why = f"it is not loaded: {self._reasons[name]}" if name in self._reasons else "there is no such model"
            raise RefusedError(Refusal.UNKNOWN, f"model '{name[:200]}': {why}; here are {', '.join(sorted(self.models)) or 'none'}")
        if version not in ("", model.version):
            raise RefusedError(Refusal.UNKNOWN, f"model '{name}': there is no version '{version[:40]}', only {model.version}")
        return model

    def _is_coming(self, name: str) -> bool:
        """Whether a model of the start is still to be loaded."""
        if not self._begins or name in self._reasons:
            return False
        with suppress(ModelError):  # the folder is gone for a while
            return name in self.entries()
        return False

    def _entry(self, name: str) -> RepositoryEntry:
        entries = self.entries()
        if name not in entries:
            known = ", ".join(sorted(entries)) or "none"
            raise RefusedError(Refusal.UNKNOWN, f"model '{name[:200]}': there is no such model; there are {known}")
        return entries[name]

    def _put(self, name: str, model: ServedModel | None, reason: str) -> None:
        models = {key: value for key, value in self.models.items() if key != name}
        reasons = {key: value for key, value in self._reasons.items() if key != name}
        self.models = models if model is None else {**models, name: model}
        self._reasons = reasons if model is not None else dict([*reasons.items(), (name, reason)][-MAX_REASONS:])


def entries_of(named: Mapping[str, Path], folder: Path | None) -> dict[str, RepositoryEntry]:
    """Return models that were named and those of a folder, by name.

    Raises:
        ModelError: if the folder cannot be read.
    """
    try:
        paths = [] if folder is None else sorted(folder.iterdir())
    except OSError as error:  # a volume that is gone for a while
        raise ModelError(f"the folder of models '{folder}' cannot be read: {error.strerror}") from None
    found = {entry.name: entry for path in paths for entry in _entries(path)}
    return found | {name: RepositoryEntry(name, "1", path) for name, path in named.items()}


def _entries(path: Path) -> list[RepositoryEntry]:
    try:
        if path.suffix == ".onnx" and path.is_file():
            return [RepositoryEntry(_text(path.stem), "1", path)]
        inside = path.iterdir() if path.is_dir() else ()
        numbers = [int(inner.name) for inner in inside if _is_version(inner.name) and (inner / "model.onnx").is_file()]
    except OSError as error:  # as of a volume's lost+found; opened as a model it says so, to who starts the server or asks for it
        return [RepositoryEntry(_text(path.name.removesuffix(".onnx")), "1", Path(error.filename))]
    latest = str(max(numbers, default=0))
    return [RepositoryEntry(_text(path.name), latest, path / latest / "model.onnx")] if numbers else []


def _text(text: str) -> str:
    """Return what is shown of a name that is no UTF-8: answers could not carry it, and with it none of the listing."""
    return text.encode("utf-8", "replace").decode()


def _is_version(name: str) -> bool:
    """Whether a folder is that of a version: a number as it is written, which neither `03` nor digits of other scripts are."""
    return name.isdecimal() and str(int(name)) == name
