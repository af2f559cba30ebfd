"""From measured times of single pieces of work to one speed per kind of work.

    seconds = overhead + flops / a + weight bytes / b + map bytes / c          (`bbgrap.cluster.types.Speed`)

is linear in `overhead, 1/a, 1/b, 1/c`, none of which may be negative. Errors count relative to the time of the piece: a kernel of ten
microseconds is as important as one of ten milliseconds. Law: among all speeds that are not negative none has a smaller sum of squared
relative errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bbgrap.cluster.types import Speed
from bbgrap.graph.types import Array
from bbgrap.work import Work

Check = Callable[[], None]
"""What a measurement calls now and then: it raises an error when that is to end."""

OVERHEAD, FLOPS, WEIGHTS, MAPS = range(4)
"""The columns of the system of equations."""

_DIGITS = 3
"""Of a measurement, these mean something."""

_SAME = 1e-12
"""Sums of squares that differ by less are equal: then the speed with fewer terms is the better one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A piece of work and the seconds it took."""

    work: Work
    seconds: float
    name: str = ""


_TERMS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("depthwise", "depthwise_int8"), (OVERHEAD, FLOPS, MAPS)),
    "matvec": (OVERHEAD, FLOPS, WEIGHTS),
    **dict.fromkeys(("transform", "scalar"), (OVERHEAD, FLOPS)),
    "pool": (OVERHEAD, FLOPS, MAPS),
    **dict.fromkeys(("normalize", "elementwise", "elementwise_int8", "move", "segment", "message"), (OVERHEAD, MAPS)),
}
"""What may cost time, where not everything may: of two amounts that always grow together only one can be told."""


def fit(kind: str, samples: Sequence[Sample]) -> Speed:
    """Return the speed that explains samples of one kind best; what does not matter in them costs nothing.

    Raises:
        ValueError: if there are no samples, or one took no time.
    """
    if not samples or min(sample.seconds for sample in samples) <= 0:
        raise ValueError(f"speed of '{kind}': expected samples that took some time, got {len(samples)}")
    times = np.array([sample.seconds for sample in samples])
    amounts = np.array([[1.0, s.work.flops, s.work.weight_bytes, s.work.map_bytes] for s in samples])
    amounts[:, [column for column in (OVERHEAD, FLOPS, WEIGHTS, MAPS) if column not in _TERMS.get(kind, (column,))]] = 0.0
    overhead, *costs = (rounded(float(cost)) for cost in non_negative_least_squares(amounts / times[:, None], np.ones(len(times))))
    flops, weights, maps = (rounded(1 / cost) if cost else 0.0 for cost in costs)
    return Speed(kind, flops, weights, maps, overhead)


def non_negative_least_squares(matrix: Array, target: Array) -> Array:
    """Return the `x >= 0` of shape `[n]` with the smallest `|matrix @ x - target|`, for a few columns n.

    At the solution, the columns that are in use are solved without bounds; so it is the best of all such choices that has no
    negative number.
    """
    columns = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    best, least = np.zeros(columns), float(target @ target)
    for count in range(1, columns + 1):
        for used in combinations(np.flatnonzero(matrix.any(axis=0)), count):
            scaled = matrix[:, used] / scale[list(used)]
            found, _, rank, _ = np.linalg.lstsq(scaled, target, rcond=None)
            left = float(np.sum((scaled @ found - target) ** 2))
            if rank == count and found.min() >= 0 and left < least - _SAME:
                best, least = np.zeros(columns), left
                best[list(used)] = found / scale[list(used)]
    return best


def typical(times: Sequence[float]) -> float:
    """Return the lower quartile of repeated measurements: whatever disturbs them only ever adds time."""
    return sorted(times)[len(times) // 4]


def rounded(value: float) -> float:
    """Return a measurement with the digits that mean something."""
    return float(f"{value:.{_DIGITS}g}")
