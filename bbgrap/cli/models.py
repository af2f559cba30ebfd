"""The model that a command names, and concrete shapes for its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bbgrap import zoo
from bbgrap.cli.input_options import FreeDimensionsError, InputShape
from bbgrap.cli.output import step
from bbgrap.errors import InputError, ModelError
from bbgrap.graph.onnx_io import ModelInput
from bbgrap.graph.state import counts_words
from bbgrap.graph.types import DType

_ZOO = "zoo:"

_PICTURE_RANK, _PIXELS, _SOME = 4, 224, 16
"""What is suggested for sizes that nobody knows: so many pixels where the rank is that of pictures, else so many of anything. Chosen."""
_NAMED = 4
"""Inputs that are alike and each named."""


def find_model(text: str) -> Path:
    """Return the file of a model; one of the zoo is built if it is not there yet.

    Raises:
        ModelError: if the zoo does not have it, or it is no file and the zoo does.
    """
    path = Path(text)
    if not text.startswith(_ZOO):
        if path.stem in zoo.names() and not path.exists():
            raise ModelError(f"model '{text}': there is no such file; is {_ZOO}{path.stem} meant, the network that is built here?")
        return path
    with step(f"building {text}"):
        return zoo.materialize(text.removeprefix(_ZOO))


def concrete_shapes(inputs: Sequence[ModelInput], given: Mapping[str, InputShape], batch: int | None) -> dict[str, InputShape]:
    """Return the shape of every input, () for what is no tensor; the file's word stands where nothing is given.

    Args:
        inputs: As the file declares them.
        given: Shapes of some; a symbol that they settle is settled for the other inputs too.
        batch: The first dimension where that is free, or of all inputs if every one of them is hard-coded; None: as the file says, or 1.

    Raises:
        InputError: if the batch contradicts the shapes, or no input has one.
        FreeDimensionsError: if sizes are left that nobody knows; it tells all of them.
    """
    leading = _batched(inputs)
    symbols = _symbols(inputs, given)
    if batch is not None:
        if not leading:
            raise InputError(f"--batch {batch}: no input of the model has a batch dimension")
        for item in leading:
            shape = given.get(item.name)
            size = shape[0] if shape else symbols.get(_first(item), batch)
            if size != batch:
                said = f"got {shape_text(shape)}" if shape else f"but '{_first(item)}' is {size} for another input"
                raise InputError(f"input '{item.name}': expected a batch of {batch} (--batch), {said}; give as many items, or no --batch")
    symbols = {_first(item): batch or 1 for item in leading if _first(item)} | symbols
    names = {item.name for item in leading}
    sizes = {item.name: _sizes(item, symbols, batch if item.name in names else None) for item in inputs if item.name not in given}
    if any(shape is None or None in shape for shape in sizes.values()):
        raise _free(inputs, sizes)
    known = {name: tuple(size for size in shape or () if size is not None) for name, shape in sizes.items()}
    return {item.name: given[item.name] if item.name in given else known[item.name] for item in inputs}


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """Return a shape as people read it."""
    return "of any rank" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _first(item: ModelInput) -> str:
    """Return the symbol of the first dimension; empty if it has none."""
    return item.shape[0] if item.shape and isinstance(item.shape[0], str) else ""


def _batched(inputs: Sequence[ModelInput]) -> list[ModelInput]:
    """Return the inputs whose first dimension is the batch: those where it is free, or all with two or more if it is free nowhere.

    The only dimension of an input is none if another input has the same symbol further back: then it is a length.
    """
    lengths = {size for item in inputs for size in (item.shape or ())[1:]}
    tensors = [item for item in inputs if item.dtype is not DType.OTHER and item.shape != ()]
    free = [
        item
        for item in tensors
        if item.shape is None or not (isinstance(item.shape[0], int) or (len(item.shape) == 1 and _first(item) in lengths))
    ]
    return free or [item for item in tensors if item.shape and len(item.shape) > 1]


def _symbols(inputs: Sequence[ModelInput], given: Mapping[str, InputShape]) -> dict[str, int]:
    pairs = [
        pair
        for item in inputs
        if item.name in given and len(item.shape or ()) == len(given[item.name])
        for pair in zip(item.shape or (), given[item.name], strict=True)
    ]
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}


def _sizes(item: ModelInput, symbols: Mapping[str, int], batch: int | None) -> tuple[int | None, ...] | None:
    """Return the sizes of an input, None where nobody knows; None of unknown rank."""
    if item.dtype is DType.OTHER:
        return ()  # no tensor, so nobody asks for its shape
    if item.shape is None:
        return None
    sizes = [symbols.get(size) if isinstance(size, str) else size for size in item.shape]
    if sizes and (batch or sizes[0] is None):
        sizes[0] = batch or 1
    return tuple(sizes)


def _free(inputs: Sequence[ModelInput], sizes: Mapping[str, tuple[int | None, ...] | None]) -> FreeDimensionsError:
    """Return the error that names all free dimensions, with sizes that could be: those of pictures, or small ones."""
    said: dict[str, list[str]] = {}
    options: list[str] = []
    examples: dict[str, int] = {}
    for item in inputs:
        shape, declared = sizes.get(item.name, ()), item.shape or ()
        free = [axis for axis, size in enumerate(shape or ()) if size is None]
        symbols = [declared[axis] for axis in free]
        if shape is None:
            said.setdefault(shape_text(None), []).append(item.name)
            options += ["--input", f"{item.name}=SHAPE"]
        elif free:
            what = f"{shape_text(declared)}: dimension{'s' * (len(free) > 1)} {' and '.join(map(str, free))}"
            said.setdefault(what, []).append(item.name)
            if not all(symbol in examples for symbol in symbols):
                likely = dict(enumerate(shape)) | {axis: _words(declared[axis]) or _likely(shape, axis) for axis in free}
                likely |= {
                    axis: examples.setdefault(symbol, likely[axis] or 1) for axis in free if isinstance(symbol := declared[axis], str)
                }
                options += ["--input", f"{item.name}={'x'.join(map(str, likely.values()))}"]
    told = "; ".join(text for what, names in said.items() for text in _each_or_count(what, names))
    return FreeDimensionsError(f"sizes are free: {told}; give --input NAME=SHAPE", options)


def _each_or_count(what: str, names: Sequence[str]) -> list[str]:
    """Return what is free of inputs that are alike: of each, or of dozens as a decoder has them once, with how many they are."""
    if len(names) > _NAMED:
        return [f"input '{names[0]}' and {len(names) - 1} like it {what}"]
    return [f"input '{name}' {what}" for name in names]


def _words(symbol: int | str | None) -> int:
    """Return how many words to suggest for a dimension of a decoder: those so far are those past and those that come; 0 for others."""
    if counts_words(symbol):
        return 2 * _SOME
    terms = [term.strip() for term in symbol.split("+")] if isinstance(symbol, str) and "past" in symbol else []
    return sum(int(term) if term.isdecimal() else _SOME for term in terms)


def _likely(shape: Sequence[int | None], axis: int) -> int:
    """Return a size to suggest for a free dimension."""
    if len(shape) != _PICTURE_RANK:
        return _SOME
    return 3 if axis == 1 and shape[3] not in (1, 3) and shape[1] is None else _PIXELS
