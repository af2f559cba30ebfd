"""Finding the model that a command names, and concrete shapes for its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bbgrap import zoo
from bbgrap.cli.options import parse_shapes
from bbgrap.cli.output import step
from bbgrap.errors import InputError
from bbgrap.graph.onnx_io import ModelInput, read_model
from bbgrap.graph.types import DType

_ZOO = "zoo:"

Shape = tuple[int, ...]


def find_model(text: str) -> Path:
    """Return the file of a model; one of the zoo is built if it is not there yet.

    Raises:
        ModelError: if the zoo does not have it.
    """
    if not text.startswith(_ZOO):
        return Path(text)
    with step(f"building {text}"):
        return zoo.materialize(text.removeprefix(_ZOO))


def inputs_of(path: Path) -> tuple[ModelInput, ...]:
    """Return the inputs that a model file declares.

    Raises:
        ModelError: if it is no valid model.
    """
    with step(f"reading {path.name}"):
        return read_model(path).inputs


def concrete_shapes(inputs: Sequence[ModelInput], given: Sequence[str] | None, batch: int | None) -> dict[str, Shape]:
    """Return the shape of every input whose shape is known now; the file's word stands for the others.

    Args:
        inputs: As the file declares them.
        given: `NAME=SHAPE` each; a symbol that they settle is settled for the other inputs too.
        batch: The first dimension; None: what the file fixes, or 1 where it is free.

    Raises:
        UsageError: if a shape cannot be read.
        InputError: if it is for no input, or a free dimension that is not the first one is left.
    """
    shapes = parse_shapes(given, [item.name for item in inputs])
    by_name = {item.name: item for item in inputs}
    for name in shapes:
        if name not in by_name:
            raise InputError(f"input '{name}': the model has no such input, it has {', '.join(by_name)}")
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = by_name[name].shape or ()
        if len(declared) == len(shape):
            symbols |= {symbol: size for symbol, size in zip(declared, shape, strict=True) if isinstance(symbol, str)}
    return {item.name: shapes[item.name] if item.name in shapes else _settled(item, symbols, batch) for item in inputs}


def _settled(item: ModelInput, symbols: Mapping[str, int], batch: int | None) -> Shape:
    if item.dtype is DType.OTHER:
        return ()  # no tensor, so nobody asks for its shape
    if item.shape is None:
        raise InputError(f"input '{item.name}': the model does not say its rank; give --input {item.name}=SHAPE")
    sizes: list[int] = []
    for axis, size in enumerate(item.shape):
        if isinstance(size, str) and size in symbols:
            sizes.append(symbols[size])
        elif axis == 0 and (not isinstance(size, int) or (batch and len(item.shape) > 1)):
            sizes.append(batch or 1)
        elif isinstance(size, int):
            sizes.append(size)
        else:
            example = "x".join(str(s) if isinstance(s, int) else "1" if a == 0 else "?" for a, s in enumerate(item.shape))
            raise InputError(f"input '{item.name}': dimension {axis} ('{size}') is free; give --input {item.name}={example}")
    return tuple(sizes)
