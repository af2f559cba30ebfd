"""Words that are tilings, and what the papers say of one cut (see `benchmarks.papers.tilings`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from benchmarks.papers.tilings import COLUMNS, COPY, ROWS

RED = "red"
"""Partial sums on all devices: no tiling of a tensor, only what a product leaves behind."""

CONVERSION = {
    **{(a, b): 0.0 if a == b else 0.5 for a in (ROWS, COLUMNS) for b in (ROWS, COLUMNS)},
    **{(a, COPY): 1.0 for a in (ROWS, COLUMNS)},
    **{(COPY, b): 0.0 for b in (ROWS, COLUMNS, COPY)},
    **{(RED, b): 1.0 for b in (ROWS, COLUMNS)},
    (RED, COPY): 2.0,
}
"""Conversions between two groups, in areas of the tensor, the sum of both: ghost area less the area already there (figure 7)."""


def words(letters: str, length: int) -> tuple[str, ...]:
    """Return all words over an alphabet, in order: the k-cut tilings of definition 1."""
    return tuple("".join(word) for word in product(letters, repeat=length))


def flattened(letters: str, length: int) -> tuple[str, ...]:
    """Return the words that differ after sorting (theorem 2): 3, 6, 10, 15 for R, C, r."""
    return tuple(dict.fromkeys("".join(sorted(word)) for word in words(letters, length)))


def share_held(word: str, ways: Sequence[int]) -> float:
    """Return the part of a tensor that each device holds: 1 / devices without copies, more with them."""
    return prod(1 / way for letter, way in zip(word, ways, strict=True) if letter != COPY)
