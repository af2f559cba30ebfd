"""Pictures as tensors: read, resized, normalised, one after the other into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bbgrap.cli.input_options import Layout, Normalize, PictureOptions
from bbgrap.cli.models import shape_text
from bbgrap.cli.output import say
from bbgrap.errors import InputError
from bbgrap.graph import Array, DType
from bbgrap.graph.onnx_io import ModelInput

_MODES = {1: "L", 3: "RGB"}
"""What Pillow calls grey and coloured pictures, by how many colours they have."""

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's pictures, per colour; what networks trained on it expect (torchvision's documentation has them)."""

_NO_PICTURE = (ValueError, SyntaxError, EOFError)
"""What Pillow raises over broken files besides errors of the system."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """How an input holds pictures; a size is None where it is free."""

    layout: Layout
    colours: int
    height: int | None
    width: int | None


def read_pictures(item: ModelInput, paths: Sequence[Path], options: PictureOptions) -> Array:
    """Read pictures as one tensor, and say on stderr what was done to them.

    Args:
        item: [N, 1 or 3, H, W] or [N, H, W, 1 or 3], of floats or of integers that hold 0 to 255.
        paths: One picture each.
        options: What was asked; the default size is the model's, else the picture's own.

    Raises:
        InputError: if a file is no picture, the input takes none, or the options do not fit the input.
    """
    frame = _frame_of(item, options)
    batch = item.shape[0] if item.shape else None
    if isinstance(batch, int) and batch != len(paths):
        raise InputError(f"input '{item.name}': the model's batch is {batch}, got {len(paths)} picture{'s' * (len(paths) != 1)}")
    pixels = [_pixels(item, path, frame) for path in paths]
    sizes = {array.shape[:2] for array in pixels}
    if len(sizes) > 1:
        listed = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
        raise InputError(f"input '{item.name}': its pictures have several sizes ({listed}); give --size WxH")
    values, done = _normalised(item, np.stack(pixels), options)
    height, width = pixels[0].shape[:2]
    colours = "RGB" if frame.colours == 3 else "grey"
    say(f"{', '.join(path.name for path in paths)}: {width} x {height} pixels, {colours}, {done}, {frame.layout.upper()}")
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if frame.layout == "nchw" else values)


def _frame_of(item: ModelInput, options: PictureOptions) -> _Frame:
    shape = item.shape if item.shape is not None else (None,) * 4
    who = f"input '{item.name}'"
    kind = np.dtype(bool) if item.dtype in (DType.OTHER, DType.BFLOAT16) else item.dtype.numpy
    is_number = kind.kind == "f" or kind.kind == "u" or (kind.kind == "i" and kind.itemsize > 1)
    if not is_number or len(shape) != 4:
        got = f"{item.dtype.name.lower()} {shape_text(item.shape)}"
        raise InputError(f"{who}: pictures fit floats or bytes [N, colours, H, W] or [N, H, W, colours], this is {got}; give a .npy file")
    axes: dict[Layout, int] = {"nchw": 1, "nhwc": 3}
    fitting: list[Layout] = [layout for layout, axis in axes.items() if shape[axis] in _MODES]
    possible: list[Layout] = fitting or [layout for layout, axis in axes.items() if not isinstance(shape[axis], int)]
    if options.layout is not None:
        possible = [options.layout] if options.layout in possible else []
    if not possible:
        asked = f"--layout {options.layout}" if options.layout else "pictures of 1 or 3 colours"
        raise InputError(f"{who}: {shape_text(item.shape)} does not fit {asked}")
    if len(possible) > 1:
        raise InputError(f"{who}: {shape_text(item.shape)} does not say where colours are; give --layout nchw or --layout nhwc")
    layout = possible[0]
    colours = shape[axes[layout]]
    rows, columns = shape[2:] if layout == "nchw" else shape[1:3]
    height, width = (size if isinstance(size, int) else None for size in (rows, columns))
    if options.size is not None:
        fixed = [own for own, asked in zip((width, height), options.size, strict=True) if own not in (None, asked)]
        if fixed:
            wanted = "x".join("?" if size is None else str(size) for size in (width, height))
            raise InputError(f"{who}: the model takes pictures of {wanted} (width x height), not --size {'x'.join(map(str, options.size))}")
        width, height = options.size
    return _Frame(layout, colours if isinstance(colours, int) else 3, height, width)


def _pixels(item: ModelInput, path: Path, frame: _Frame) -> Array:
    """Return a picture as bytes [H, W, colours]."""
    who = f"input '{item.name}': picture '{path}'"
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"{who}: reading pictures needs Pillow: pip install 'bbgrap[images]'") from None
    try:
        with Image.open(path) as picture:
            if picture.mode.partition(";")[0] in ("I", "F"):  # Pillow would make white of all above 255
                raise InputError(f"{who}: it has more than 8 bits a colour; give it as bytes, or as a .npy file")
            coloured = picture.convert(_MODES[frame.colours])
            size = (frame.width or coloured.width, frame.height or coloured.height)
            resized = coloured if size == coloured.size else coloured.resize(size, Image.Resampling.BILINEAR)
            return np.asarray(resized, np.uint8).reshape(size[1], size[0], frame.colours)
    except (*_NO_PICTURE, UnidentifiedImageError, Image.DecompressionBombError):
        raise InputError(f"{who}: it is no picture that Pillow can read") from None
    except OSError as error:
        raise InputError(f"{who}: cannot be read: {error.strerror or error}") from None


def _normalised(item: ModelInput, pixels: Array, options: PictureOptions) -> tuple[Array, str]:
    """Return the values for bytes [N, H, W, colours], and what was done in words."""
    dtype: np.dtype[Any] = item.dtype.numpy
    colours = pixels.shape[-1]
    if dtype.kind != "f":
        if options.mean or options.std or options.normalize not in (None, "0..255"):
            raise InputError(
                f"input '{item.name}': it takes {dtype.name}, so pixels stay 0 to 255; leave out --normalize, --mean and --std"
            )
        return pixels.astype(dtype, copy=False), "values 0 to 255"
    default: Normalize = "imagenet" if colours == 3 and not (options.mean or options.std) else "0..1"
    normalize = options.normalize or default
    mean, std = _IMAGENET if normalize == "imagenet" else (options.mean, options.std)
    for option, numbers in (
        ("--normalize imagenet", mean if normalize == "imagenet" else ()),
        ("--mean", options.mean),
        ("--std", options.std),
    ):
        if len(numbers) not in (0, 1, colours):
            raise InputError(f"input '{item.name}': {option} has {len(numbers)} numbers, the input {colours} colour{'s' * (colours != 1)}")
    values = pixels / np.float32(1 if normalize == "0..255" else 255)
    values = (values - np.array(mean or 0, np.float32)) / np.array(std or 1, np.float32)
    steps = ["values 0 to 255" if normalize == "0..255" else "values 0 to 1"]
    steps += [f"{word} {','.join(map(str, numbers))}" for word, numbers in (("less", mean), ("over", std)) if numbers]
    chosen = "" if options.normalize else f" (default: --normalize {normalize})"
    return values.astype(dtype, copy=False), ", ".join(steps) + chosen
