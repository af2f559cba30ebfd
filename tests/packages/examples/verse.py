"""What the language model learns by heart: the beginning of Edward Lear's "The Owl and the Pussy-cat" (1871)."""

from __future__ import annotations

import numpy as np

VERSE = """The Owl and the Pussy-cat went to sea
In a beautiful pea-green boat,
They took some honey, and plenty of money,
Wrapped up in a five-pound note.
The Owl looked up to the stars above,
And sang to a small guitar,
"""
LETTERS = "".join(sorted(set(VERSE)))


def numbers_of(text: str) -> np.ndarray:
    """Return the letters' numbers, int64."""
    return np.array([LETTERS.index(letter) for letter in text], np.int64)


def text_of(numbers: list[int]) -> str:
    """Return the letters of these numbers."""
    return "".join(LETTERS[number] for number in numbers)
