"""What a command line says of a model's inputs, before the model is looked at.

--input x=1x3x224x224     a shape                    (1, 3, 224, 224)
--input x=x.npy           an array                   ArrayFile(x.npy)
--input x=all.npz:KEY     one of several arrays      ArrayFile(all.npz, KEY)
--input x=cat.jpg         a picture                  Picture(cat.jpg); several are a batch
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bbgrap.errors import InputError, UsageError

InputShape = tuple[int, ...]
Normalize = Literal["imagenet", "0..1", "0..255"]
Layout = Literal["nchw", "nhwc"]

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""How names of pictures end; Pillow reads more, but some of these may be missing in it."""

_SHAPE = re.compile(r"\s*[0-9]{1,18}\s*([x,]\s*[0-9]{1,18}\s*)*", re.IGNORECASE)
_ARCHIVE = re.compile(r"(?P<path>.+?\.npz)(:(?P<key>.+))?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a .npy file, or in an .npz archive; an empty key is the only array, or the one that is called like the input."""

    path: Path
    key: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A file that Pillow reads."""

    path: Path


GivenValue = InputShape | ArrayFile | Picture


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """What becomes of pictures; empty: what the model's input asks for.

    Invariants: the size is width and height in pixels, above 0; `imagenet` has a mean and a deviation of its own.

    Raises:
        UsageError: if they contradict each other.
    """

    size: tuple[int, int] | None = None
    normalize: Normalize | None = None
    mean: tuple[float, ...] = ()
    """Of the values that `normalize` makes, a number per colour or one for all; without `normalize` of values 0 to 1."""
    std: tuple[float, ...] = ()
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.normalize == "imagenet" and (self.mean or self.std):
            raise UsageError("--normalize imagenet: it has its own mean and deviation; give --mean and --std with 0..1 or 0..255")

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{name}" for name in self.__slots__ if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """The options of a command that say what its inputs are."""

    texts: tuple[str, ...] = ()
    """`NAME=VALUE`, or `VALUE` for the only input."""
    batch: int | None = None
    pictures: PictureOptions = field(default_factory=PictureOptions)


class FreeDimensionsError(InputError):
    """Sizes that neither the model nor the command line knows; `options` are some with which the command would go on."""

    def __init__(self, text: str, options: Sequence[str]) -> None:
        super().__init__(text)
        self.options = tuple(options)


def values_by_name(texts: Sequence[str], names: Sequence[str]) -> dict[str, list[GivenValue]]:
    """Return what `NAME=VALUE` says by name; the name may be left out if there is only one. Several values are pictures.

    Raises:
        UsageError: if a name is missing, a value is no such thing, or an input has several that are no pictures.
        InputError: if the model has no input of that name.
    """
    found: dict[str, list[GivenValue]] = {}
    for text in texts:
        name = next((name for name in names if text.startswith(f"{name}=")), None)
        if name is None and "=" in text:
            given = text.partition("=")[0]
            near = "".join(f"; did you mean '{each}'?" for each in difflib.get_close_matches(given, names, 1))
            raise InputError(f"input '{given}': the model has no such input, it has {', '.join(names)}{near}")
        if name is None and len(names) != 1:
            raise UsageError(f"input '{text}': expected NAME=..., the inputs are {', '.join(names)}")
        value = text if name is None else text.removeprefix(f"{name}=")
        key = names[0] if name is None else name
        found.setdefault(key, []).append(parse_value(key, value))
    for name, values in found.items():
        if len(values) > 1 and not all(isinstance(value, Picture) for value in values):
            raise UsageError(f"input '{name}': it is given twice; only pictures make a batch together")
    return found


def parse_value(name: str, text: str) -> GivenValue:
    """Return what a text gives as an input.

    Raises:
        UsageError: if it is no shape and cannot be a file.
    """
    if _SHAPE.fullmatch(text):
        return tuple(int(size) for size in re.split("[x,]", text.lower()))
    if text == "scalar":
        return ()
    if archive := _ARCHIVE.fullmatch(text):
        return ArrayFile(Path(archive["path"]), archive["key"] or "")
    if text.lower().endswith(PICTURES):
        return Picture(Path(text))
    if "." in text or "/" in text:
        return ArrayFile(Path(text))
    raise UsageError(
        f"input '{name}': expected a shape like 1x3x224x224, a .npy or .npz file, or a picture (.png, .jpg, ...), got '{text}'"
    )


def parse_size(text: str) -> tuple[int, int] | None:
    """Return width and height of `WxH`; None of an empty text.

    Raises:
        UsageError: if it is no such thing.
    """
    if not text:
        return None
    sizes = [int(size) for size in re.split("[x,]", text.lower())] if _SHAPE.fullmatch(text) else []
    if len(sizes) != 2 or not all(0 < size < 1 << 16 for size in sizes):
        raise UsageError(f"--size: expected width and height in pixels, like 640x480, got '{text}'")
    return sizes[0], sizes[1]


def parse_numbers(option: str, text: str, *, above_0: bool) -> tuple[float, ...]:
    """Return the numbers of `2,1,1`; none of an empty text.

    Raises:
        UsageError: if one of them is no number, or out of bounds.
    """
    from bbgrap.cluster.units import LARGEST, LEAST  # with numpy, which `--help` can do without

    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (math.nan,)
    if not all(abs(number) <= LARGEST and (number >= LEAST or not above_0) for number in numbers):
        raise UsageError(f"{option}: expected numbers {f'from {LEAST:g}' if above_0 else 'up'} to {LARGEST:g}, like 2,1,1, got '{text}'")
    return numbers
