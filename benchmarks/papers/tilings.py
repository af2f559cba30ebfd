"""Tilings of a matrix over many devices, and what it costs to compute a product from one tiling into another (SoyBean, section 4).

A tiling is a word of k letters, one per cut: R (rows divided), C (columns divided), r (copied). A cut has a number of ways, 2 in SoyBean,
any in Tofu; a device is a number of k digits, and takes at cut i the part, or copy, that its digit i says. So every device holds a box:

    RC:  00 01        devices 00 and 01 share the upper half, the second cut gives 00 its left part
         10 11

A product runs along one of its three loops per cut: over its batch b, its inner i or its outer o index, which is figure 6:

    form   x[b, i]   w[i, o]   y[b, o]                what SoyBean calls it
    b      R         r         R                      R x r = R
    o      r         C         C                      r x C = C
    i      C         R         red (partial sums)     C x R = red

Both tables hold fractions of a tensor's area, summed over all devices (exact: boxes are intersected, nothing is counted by tiles):

    fetch[tiling, needed]   what the devices' needed boxes hold beyond the boxes that they have
    store[made, tiling]     bringing results to where they are stored; per element chunks - 1 additions, one copy to every device that
                            stores it, less one if a device that stores it also made it

For one cut they are the paper's conversion table (eq. 2). Its caveat for more: RC and CR are the same grid, but not the same owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS, COPY = "R", "C", "r"
FORMS = "bio"
"""The loops along which a product can be cut."""

Floats = NDArray[np.float64]

_OF_X = {"b": ROWS, "i": COLUMNS, "o": COPY}
_OF_W = {"b": COPY, "i": ROWS, "o": COLUMNS}
_OF_Y = {"b": ROWS, "i": COPY, "o": COLUMNS}
AXES_OF = {"x": _OF_X, "w": _OF_W, "y": _OF_Y}
"""How a cut along a loop cuts each tensor of a product; the tensor that the loop does not reach is copied, or `red` if it is made."""


def _held(word: str, ways: tuple[int, ...]) -> Floats:
    """Return which cells of a square of side `prod(ways)` each device has under a tiling, as 0 and 1: [device, cell]."""
    edge = prod(ways)
    masks = np.zeros((edge, edge, edge))
    for device, digits in enumerate(product(*map(range, ways))):
        bounds = {ROWS: (0, edge), COLUMNS: (0, edge)}
        for letter, digit, way in zip(word, digits, ways, strict=True):
            if letter != COPY:
                low, high = bounds[letter]
                step = (high - low) // way
                bounds[letter] = (low + digit * step, low + (digit + 1) * step)
        (top, bottom), (left, right) = bounds[ROWS], bounds[COLUMNS]
        masks[device, top:bottom, left:right] = 1
    return masks.reshape(edge, edge * edge)


@dataclass(frozen=True)
class Tables:
    """Costs between some tilings and some forms (loops along which products are cut), both words of one length."""

    tilings: tuple[str, ...]
    forms: tuple[str, ...]
    fetch: dict[str, Floats]
    """Per tensor of a product (x, w, y): [tiling, form]."""
    store: dict[str, Floats]
    """Per tensor of a product: [form, tiling]."""


def tables_of(tilings: Sequence[str], forms: Sequence[str], ways: Sequence[int]) -> Tables:
    """Return the tables for given tilings and forms; `ways` has the number of parts of every cut."""
    return _tables_of(tuple(tilings), tuple(forms), tuple(ways))


@cache
def _tables_of(tilings: tuple[str, ...], forms: tuple[str, ...], ways: tuple[int, ...]) -> Tables:
    held = np.array([_held(word, ways) for word in tilings])
    fetch, store = {}, {}
    for tensor, of in AXES_OF.items():
        boxes = np.array([_held("".join(of[loop] for loop in form), ways) for form in forms])
        cells = boxes.shape[2]
        common = held.reshape(len(held), -1) @ boxes.reshape(len(boxes), -1).T
        fetch[tensor] = (boxes.sum((1, 2)) - common) / cells
        both = np.einsum("fdc,tdc->ftc", boxes, held) > 0
        per_cell = (boxes.sum(1) - 1)[:, None, :] + held.sum(1)[None, :, :] - both
        store[tensor] = per_cell.sum(2) / cells
    return Tables(tilings, forms, fetch, store)
