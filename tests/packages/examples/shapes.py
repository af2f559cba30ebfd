"""Pictures of coloured shapes on noise, and where the shapes are."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("disc", "square", "triangle")


def scene(dice: np.random.Generator, height: int, width: int, count: int) -> tuple[np.ndarray, list[tuple[int, tuple[int, int, int, int]]]]:
    """Return a picture (1 x 3 x height x width, 0..1) and the kind and box (y1, x1, y2, x2) of each of at most `count` shapes in it."""
    page = Image.fromarray(dice.integers(90, 130, (height, width, 3), np.uint8))
    pen = ImageDraw.Draw(page)
    found: list[tuple[int, tuple[int, int, int, int]]] = []
    for _ in range(count):
        size = int(dice.integers(24, 52))
        y, x = int(dice.integers(0, height - size)), int(dice.integers(0, width - size))
        if any(abs(y - b[0]) < 56 and abs(x - b[1]) < 56 for _, b in found):
            continue
        kind = int(dice.integers(len(KINDS)))
        colour = tuple(int(c) for c in np.where(dice.random(3) < 0.5, dice.integers(0, 50, 3), dice.integers(190, 256, 3)))
        match kind:
            case 0:
                pen.ellipse((x, y, x + size, y + size), fill=colour)
            case 1:
                pen.rectangle((x, y, x + size, y + size), fill=colour)
            case _:
                pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=colour)
        found.append((kind, (y, x, y + size, x + size)))
    return np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 255, found
