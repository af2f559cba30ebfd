"""A model's inputs, as a command line gives them: shapes, arrays and pictures from files, and what is drawn at random from a seed."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

import numpy as np

from bbgrap.cli.input_options import ArrayFile, GivenInputs, InputShape, Picture, values_by_name
from bbgrap.cli.models import concrete_shapes, shape_text
from bbgrap.cli.output import say, step
from bbgrap.cli.pictures import read_pictures
from bbgrap.errors import InputError, UsageError
from bbgrap.graph import Array, DType
from bbgrap.graph.onnx_indices import index_limits
from bbgrap.graph.onnx_io import ModelInput, read_model
from bbgrap.graph.onnx_types import text_of
from bbgrap.session.signature import how_to_fit

_NO_ARRAY = (ValueError, EOFError, SyntaxError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What numpy raises over broken files besides errors of the system."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """A model's inputs: a shape for each, and the tensors of those that files were given for."""

    declared: tuple[ModelInput, ...]
    shapes: Mapping[str, InputShape]
    tensors: Mapping[str, Array]
    index_limits: Mapping[str, int] = field(default_factory=dict)
    """Below what drawn indices must stay, by name."""

    def feeds(self, seed: int, *, pictures: bool = False) -> dict[str, Array]:
        """Return a tensor for every input, in the model's order; those without a file are drawn, which is said on stderr.

        Drawn are normal floats, integers of 8 and 16 bits, and longer ones of 0 and 1, safe as indices and flags. Indices are 0 or more,
        and below their limit. With `pictures` floats are bytes divided by 255, as of pictures of 8 bits a colour.

        Raises:
            InputError: for element types that cannot be drawn, and for shapes that the model does not run with or no memory holds.
        """
        generator = np.random.default_rng(seed)
        feeds = dict(self.tensors)
        drawn = [item for item in self.declared if item.name not in self.tensors]
        for item in drawn:
            shape = self.shapes[item.name]
            try:
                feeds[item.name] = _drawn(item, shape, generator, self.index_limits.get(item.name), pictures=pictures)
            except (MemoryError, ValueError) as error:
                raise InputError(f"input '{item.name}': a tensor of shape {shape_text(shape)} cannot be made: {error}") from None
            check_tensor(item, feeds[item.name])
        if drawn:
            which = f" {', '.join(item.name for item in drawn)}" if self.tensors else ""
            say(f"inputs{which}: random, seed {seed}")
        return {item.name: feeds[item.name] for item in self.declared}


def read_inputs(path: Path, given: GivenInputs) -> ModelInputs:
    """Return the inputs of a model file as they are given.

    Raises:
        BbgrapError: as `inputs_from`, or if it is no valid model.
    """
    with step(f"reading {path.name}"):
        model = read_model(path)
    return replace(inputs_from(model.inputs, given), index_limits=index_limits(model))


def inputs_from(declared: Sequence[ModelInput], given: GivenInputs) -> ModelInputs:
    """Return inputs as they are given.

    Raises:
        UsageError: if the options say nothing or contradict each other.
        InputError: if an input is unknown, a size is free, a file cannot be read, or its type or shape does not fit.
    """
    items = {item.name: item for item in declared}
    named = values_by_name(given.texts, list(items))
    if given.pictures.given and not any(isinstance(value, Picture) for values in named.values() for value in values):
        raise UsageError(f"{', '.join(given.pictures.given)}: for pictures only, and none is given; add --input PICTURE")
    shapes: dict[str, InputShape] = {}
    tensors: dict[str, Array] = {}
    for name, values in named.items():
        match values[0]:
            case Picture():
                paths = [value.path for value in values if isinstance(value, Picture)]
                tensors[name] = read_pictures(items[name], paths, given.pictures)
            case ArrayFile() as stored:
                tensors[name] = read_tensor(items[name], stored)
            case tuple() as shape:
                shapes[name] = shape
            case unknown:
                assert_never(unknown)
    shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    return ModelInputs(tuple(declared), concrete_shapes(declared, shapes, given.batch), tensors)


def read_tensor(item: ModelInput, stored: ArrayFile) -> Array:
    """Read the array for one input.

    Raises:
        InputError: if the file cannot be read, or does not fit.
    """
    who = f"input '{item.name}': '{stored.path}'"
    try:
        with stored.path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            array: Array = loaded if isinstance(loaded, np.ndarray) else loaded[_key_of(item, stored, loaded.files)]
    except OSError as error:
        raise InputError(f"{who} cannot be read: {error.strerror or error}") from None
    except _NO_ARRAY:
        if item.dtype is DType.STRING:
            raise InputError(f"{who} is not a .npy or .npz file of text; write it with numpy.save(FILE, array.astype(str))") from None
        raise InputError(f"{who} is not a .npy or .npz file of numbers, and its name is no picture's (.png, .jpg, ...)") from None
    check_tensor(item, array)
    return array


def _key_of(item: ModelInput, stored: ArrayFile, keys: Sequence[str]) -> str:
    key = stored.key or (keys[0] if len(keys) == 1 else item.name)
    if key not in keys:
        raise InputError(
            f"input '{item.name}': '{stored.path}' holds {', '.join(keys) or 'nothing'}; give --input {item.name}=FILE.npz:KEY"
        )
    return key


def check_tensor(item: ModelInput, array: Array) -> None:
    """Check that a tensor fits an input.

    Raises:
        InputError: if its element type, rank or a fixed dimension differs.
    """
    _check_is_array(item)
    got = DType.of(array.dtype)
    if got is not item.dtype:
        wanted = "str" if item.dtype is DType.STRING else item.dtype.numpy.name
        raise InputError(f"input '{item.name}': expected {wanted}, got {array.dtype.name}; convert it with .astype('{wanted}')")
    if item.shape is None:
        return
    pairs = zip(item.shape, array.shape, strict=False)
    if len(item.shape) != array.ndim or any(isinstance(size, int) and size != have for size, have in pairs):
        how = how_to_fit(item.shape, array.shape)
        raise InputError(f"input '{item.name}': expected shape {shape_text(item.shape)}, got {shape_text(array.shape)}", *how)


def _check_is_array(item: ModelInput) -> None:
    """Raise for what neither a file nor a seed gives: a sequence, an optional, a map, and element types that numpy lacks."""
    if item.dtype is DType.OTHER:
        raise InputError(f"input '{item.name}': no command can give a {text_of(item.onnx)}; run the model from Python")


def _drawn(item: ModelInput, shape: tuple[int, ...], generator: np.random.Generator, limit: int | None, *, pictures: bool) -> Array:
    _check_is_array(item)
    if item.dtype in (DType.STRING, DType.BFLOAT16):
        raise InputError(
            f"input '{item.name}': tensors of {item.dtype.name.lower()} cannot be drawn at random; give --input {item.name}=FILE"
        )
    dtype = item.dtype.numpy
    match dtype.kind:
        case _ if limit is not None:
            return np.asarray(generator.integers(0, limit, shape), dtype)
        case "f" if pictures:
            return np.asarray(generator.integers(0, 256, shape) / np.float32(255), dtype)
        case "f" | "c":
            return np.asarray(generator.standard_normal(shape), dtype)
        case "i" | "u" if dtype.itemsize <= 2:
            return generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        case _:
            return np.asarray(generator.integers(0, 2, shape), dtype)
