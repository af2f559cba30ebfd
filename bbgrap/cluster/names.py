"""In which order names of nodes stand wherever several of them do."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def name_order(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """Return what to sort a name by, so that `agent2` stands before `agent10`.

    Laws: the order is total, and that of the names themselves where no digits differ in number; different names have different keys.
    """
    # Texts and numbers take turns, so only like is compared with like; without leading zeros the longer number is the larger one.
    parts = [part.lstrip("0") if at % 2 else part for at, part in enumerate(_DIGITS.split(name))]
    return tuple((len(part), part) if at % 2 else part for at, part in enumerate(parts)), name
