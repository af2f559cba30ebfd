"""Cutting an axis by shares (BBGraP equation 1, extended to unequal shares and to units that should not be cut)."""

from __future__ import annotations

from collections.abc import Sequence

from bbgrap.shapemap import Interval
from bbgrap.tdl import Description, granularity


def split_by_shares(extent: int, shares: Sequence[float], unit: int = 1) -> tuple[Interval, ...]:
    """Cut `[0, extent)` into one interval per share, in whole units; intervals may be empty.

    Everyone gets the whole units of its share; the remaining units go to the largest fractions, the first of equals first. Equal
    shares give the paper's floor plus round-robin remainder: 8 over three is 3, 3, 2.
    """
    units = -(-extent // unit)
    total = sum(shares)
    exact = [units * share / total for share in shares]
    counts = [int(e + 1e-9) for e in exact]
    order = sorted(range(len(shares)), key=lambda i: (-round(exact[i] - counts[i], 9), i))
    for i in order[: units - sum(counts)]:
        counts[i] += 1
    stops = [min(extent, unit * sum(counts[: i + 1])) for i in range(len(counts))]
    return tuple(Interval(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True))


def split_axis(description: Description, axis: int, shares: Sequence[float], of: Interval | None = None) -> list[Interval]:
    """Cut an axis of a node's output, or a range `of` it, by shares; between units of the input, if it begins with one and has two."""
    whole, unit = of or Interval(0, description.shape[axis]), granularity(description, axis)
    usable = unit if 2 * unit <= len(whole) and whole.start % unit == 0 else 1
    return [piece.shift(whole.start) for piece in split_by_shares(len(whole), shares, usable)]


def strongest(shares: Sequence[float]) -> int:
    """Return who does what cannot be divided: the one with the largest share, the first of equals."""
    return shares.index(max(shares))


def grid_of(count: int) -> tuple[int, int]:
    """Return rows x columns as square as `count` allows, rows at least columns: 6 is 3 x 2, 5 is 5 x 1."""
    columns = max(c for c in range(1, int(count**0.5) + 1) if count % c == 0)
    return count // columns, columns
