"""What is shown of text that others wrote."""

from __future__ import annotations

from unicodedata import category


def printable(text: str, also: str = "") -> str:
    """Return text in which all that is not printable, but what `also` has, is replaced: it would be obeyed, and not shown."""
    return "".join(letter if letter.isprintable() or category(letter) == "Zs" or letter in also else "\ufffd" for letter in text)
