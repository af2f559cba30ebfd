"""Every form in which a command takes inputs, for a model with one input x [N, 3, 8, 10] of floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

FORMS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "shape": (("--input", "x=2x3x8x10"), (2, 3, 8, 10)),
    "shape, no name": (("--input", "2x3x8x10"), (2, 3, 8, 10)),
    "batch": (("--batch", "2"), (2, 3, 8, 10)),
    "array": (("--input", "x=x.npy", "--batch", "2"), (2, 3, 8, 10)),
    "archive": (("--input", "all.npz:x"), (2, 3, 8, 10)),
    "picture": (("--input", "x=red.png", "--normalize", "0..1"), (1, 3, 8, 10)),
    "pictures": (("--input", "red.png", "--input", "blue.png", "--mean", "0.5", "--std", "0.5,0.5,0.25"), (2, 3, 8, 10)),
}
"""Options, and the shape that they mean; the files are those of `write_files`."""

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "batch of an array": (("--input", "x.npy", "--batch", "3"), "expected a batch of 3 (--batch), got [2, 3, 8, 10]"),
    "batch of a shape": (("--input", "1x3x8x10", "--batch", "3"), "expected a batch of 3 (--batch), got [1, 3, 8, 10]"),
    "batch of pictures": (("--input", "red.png", "--batch", "3"), "expected a batch of 3 (--batch), got [1, 3, 8, 10]"),
    "size": (("--input", "red.png", "--size", "8x8"), "the model takes pictures of 10x8 (width x height), not --size 8x8"),
    "no picture": (("--input", "x.npy", "--size", "8x8"), "--size: for pictures only, and none is given"),
    "no file": (("--input", "y.npy"), "'y.npy' cannot be read: No such file"),
}
"""Options, and what is said against them."""


def write_files(folder: Path) -> dict[str, np.ndarray]:
    """Write the files of `FORMS`; return what those with values mean."""
    x = np.random.default_rng(3).standard_normal((2, 3, 8, 10)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "all.npz", x=x, y=x + 1)
    pixels = np.zeros((2, 3, 8, 10), np.float32)
    for number, name, colour in ((0, "red", (255, 0, 51)), (1, "blue", (0, 0, 255))):
        Image.new("RGB", (20, 16), colour).save(folder / f"{name}.png")
        pixels[number] = np.array(colour, np.float32).reshape(3, 1, 1) / np.float32(255)
    spread = np.array([0.5, 0.5, 0.25], np.float32).reshape(1, 3, 1, 1)
    return {"array": x, "archive": x, "picture": pixels[:1], "pictures": (pixels - np.float32(0.5)) / spread}
