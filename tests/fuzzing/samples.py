"""A model with inputs for it, in memory and as the two files NAME.onnx and NAME.npz."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bbgrap.graph import Array


@dataclass(frozen=True, eq=False)
class Sample:
    """One model to judge: the bytes of its file and one array for every input, by name."""

    name: str
    model: bytes
    feeds: dict[str, Array]

    def write(self, folder: Path) -> Path:
        """Write both files and return the path of the model."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.onnx"
        path.write_bytes(self.model)
        np.savez(path.with_suffix(".npz"), **self.feeds)  # type: ignore[arg-type]
        return path


def read_sample(path: Path) -> Sample:
    """Read a model and the inputs beside it; strings are the only pickled arrays, and the files are the project's own."""
    with np.load(path.with_suffix(".npz"), allow_pickle=True) as arrays:
        return Sample(path.stem, path.read_bytes(), {name: arrays[name] for name in arrays})
