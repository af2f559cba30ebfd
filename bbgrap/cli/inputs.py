"""Tensors for a model's inputs: from .npy files, from pictures, or drawn at random from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bbgrap.cli.options import assignments
from bbgrap.cli.output import say
from bbgrap.errors import InputError
from bbgrap.graph import Array, DType
from bbgrap.graph.onnx_io import ModelInput

_PICTURES = (".png", ".jpg", ".jpeg")

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Of ImageNet's pictures, per colour; what networks trained on it expect (torchvision's documentation has these numbers)."""


def read_inputs(inputs: Sequence[ModelInput], given: Sequence[str]) -> dict[str, Array]:
    """Read a file for every input of a model, in the model's order.

    Args:
        inputs: As the model declares them.
        given: `NAME=FILE` each; the name may be left out if there is one input.

    Raises:
        UsageError: if a text is no such thing.
        InputError: if an input is unknown or missing, a file cannot be read, or its element type or shape does not fit.
    """
    files = assignments(given, [item.name for item in inputs])
    names = [item.name for item in inputs]
    for name in files:
        if name not in names:
            raise InputError(f"input '{name}': the model has no such input, it has {', '.join(names)}")
    for name in names:
        if name not in files:
            raise InputError(f"input '{name}': it is missing; add --input {name}=FILE.npy")
    return {item.name: read_tensor(item, Path(files[item.name])) for item in inputs}


def read_tensor(item: ModelInput, path: Path) -> Array:
    """Read the tensor for one input.

    Raises:
        InputError: if the file cannot be read, or does not fit.
    """
    if path.suffix.lower() in _PICTURES:
        return _read_picture(item, path)
    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"input '{item.name}': '{path}' cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise InputError(f"input '{item.name}': '{path}' is not a .npy file of numbers, and no .png or .jpg picture") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"input '{item.name}': '{path}' is an .npz archive; expected a .npy file")
    check_tensor(item, array)
    return array


def check_tensor(item: ModelInput, array: Array) -> None:
    """Check that a tensor fits an input.

    Raises:
        InputError: if its element type, rank or a fixed dimension differs.
    """
    if item.dtype is DType.OTHER:
        raise InputError(f"input '{item.name}': only tensors of the common element types can be given")
    got = DType.of(array.dtype)
    if got is not item.dtype:
        wanted = "str" if item.dtype is DType.STRING else item.dtype.numpy.name
        raise InputError(f"input '{item.name}': expected {wanted}, got {array.dtype.name}; convert it with .astype('{wanted}')")
    if item.shape is None:
        return
    pairs = zip(item.shape, array.shape, strict=False)
    if len(item.shape) != array.ndim or any(isinstance(size, int) and size != have for size, have in pairs):
        raise InputError(f"input '{item.name}': expected shape {_shape_text(item.shape)}, got {_shape_text(array.shape)}")


def random_inputs(
    inputs: Sequence[ModelInput], shapes: Mapping[str, tuple[int, ...]], seed: int = 0, *, pictures: bool = False
) -> dict[str, Array]:
    """Draw a tensor for every input: normal floats, integers 0 or 1 (safe as indices and flags), bytes 0..255.

    With `pictures` floats are bytes divided by 255, as of pictures of 8 bits a colour.

    Raises:
        InputError: for element types that cannot be drawn.
    """
    generator = np.random.default_rng(seed)
    return {item.name: _drawn(item, shapes[item.name], generator, pictures=pictures) for item in inputs}


def _drawn(item: ModelInput, shape: tuple[int, ...], generator: np.random.Generator, *, pictures: bool) -> Array:
    if item.dtype in (DType.STRING, DType.OTHER, DType.BFLOAT16):
        raise InputError(
            f"input '{item.name}': tensors of {item.dtype.name.lower()} cannot be drawn at random; give --input {item.name}=FILE"
        )
    dtype = item.dtype.numpy
    match dtype.kind:
        case "f" if pictures:
            return np.asarray(generator.integers(0, 256, shape) / np.float32(255), dtype)
        case "f" | "c":
            return np.asarray(generator.standard_normal(shape), dtype)
        case "u" if dtype.itemsize == 1:
            return generator.integers(0, 256, shape, dtype)
        case _:
            return np.asarray(generator.integers(0, 2, shape), dtype)


def _read_picture(item: ModelInput, path: Path) -> Array:
    who = f"input '{item.name}': picture '{path}'"
    shape = item.shape or ()
    if item.dtype is not DType.FLOAT or len(shape) != 4 or shape[1] not in (1, 3):
        expected = f"{item.dtype.name.lower()} {_shape_text(item.shape)}"
        raise InputError(f"{who}: pictures fit inputs float [N, 3 or 1, H, W] only, this one is {expected}; give a .npy file")
    if isinstance(shape[0], int) and shape[0] != 1:
        raise InputError(f"{who}: it is one picture, but the model's batch is {shape[0]}; give a .npy file")
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"{who}: reading pictures needs Pillow: pip install 'bbgrap[images]'") from None
    colours = 3 if shape[1] == 3 else 1
    try:
        with Image.open(path) as picture:
            coloured = picture.convert("RGB" if colours == 3 else "L")
            height, width = (size if isinstance(size, int) else own for size, own in zip(shape[2:], coloured.size[::-1], strict=True))
            resized = coloured.resize((width, height), Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise InputError(f"{who}: it is no picture that Pillow can read") from None
    except OSError as error:
        raise InputError(f"{who}: cannot be read: {error.strerror or error}") from None
    values = np.asarray(resized, np.float32).reshape(height, width, colours) / np.float32(255)
    if colours == 3:
        values = (values - _MEAN) / _DEVIATION
    done = "ImageNet's mean and deviation" if colours == 3 else "values 0 to 1"
    say(f"{path.name}: resized to {height} x {width}, {'RGB' if colours == 3 else 'grey'}, {done}")
    return np.ascontiguousarray(values.transpose(2, 0, 1)[np.newaxis])


def _shape_text(shape: Sequence[int | str | None] | None) -> str:
    return "of any rank" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
