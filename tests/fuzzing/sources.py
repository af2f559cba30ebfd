"""Where models come from: the project's own generator, and other people's generators and converters where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzzing.samples import Sample


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
