"""Where models come from: the project's own generator, other people's generators and converters where they are installed, folders."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing.samples import Sample, read_sample


class NotMadeError(Exception):
    """A source has no model for this seed: its own tool failed, or there is nothing to convert."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of models: `module` (beside this one) has `sample(seed)`, and needs the `packages`."""

    name: str
    module: str
    packages: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed."""
        return tuple(name for name in self.packages if importlib.util.find_spec(name) is None)

    def sample(self, seed: int) -> Sample:
        """Return the model of a seed.

        Raises:
            NotMadeError: if there is none.
        """
        make: Callable[[int], Sample] = importlib.import_module(f"tests.fuzzing.{self.module}").sample
        return make(seed)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("own", "own"),
        Source("nnsmith", "from_nnsmith", ("nnsmith",)),
        Source("quantizers", "from_quantizers", ("sympy",)),
        Source("float16", "from_float16", ("onnxconverter_common",)),
        Source("skl2onnx", "from_skl2onnx", ("skl2onnx", "sklearn")),
        Source("torch", "from_torch", ("torch", "onnxscript")),
    )
}


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of files NAME.onnx with inputs beside them in NAME.npz; the seed of a model is its place in the order of names."""

    path: Path

    @property
    def name(self) -> str:
        """What it is called by."""
        return str(self.path)

    @property
    def missing(self) -> tuple[str, ...]:
        """A folder needs no packages."""
        return ()

    @property
    def files(self) -> list[Path]:
        """The models that have inputs."""
        return sorted(file for file in self.path.glob("*.onnx") if file.with_suffix(".npz").exists())

    def sample(self, seed: int) -> Sample:
        """Return the model at a place."""
        return read_sample(self.files[seed])


def source_of(name: str) -> Source | Folder:
    """Return the source of a name, or that of a folder.

    Raises:
        ValueError: if there is neither.
    """
    if name in SOURCES:
        return SOURCES[name]
    if Path(name).is_dir():
        return Folder(Path(name))
    raise ValueError(f"source {name!r}: expected a folder or one of {', '.join(SOURCES)}")
