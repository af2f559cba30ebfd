"""How the variants of a plan are cut, on disk beside its artifacts: what plans for further shapes are scaled from.

Only planners read it: the coordinator serves without knowing how a plan was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bbgrap.planners.plan import Plan, Tile
from bbgrap.protocol.limits import Name
from bbgrap.protocol.schema import SchemaError
from bbgrap_coordinator.artifacts import TILES, packed, read_form


@dataclass(frozen=True, slots=True)
class VariantTiles:
    """How a variant is cut, for which shapes."""

    shapes: Mapping[Name, tuple[int, ...]]
    tiles: Mapping[str, tuple[Tile, ...]]


@dataclass(frozen=True, slots=True)
class _Cuts:
    variants: tuple[VariantTiles, ...]


def write_tiles(folder: Path, shapes: Mapping[str, tuple[int, ...]], plans: Sequence[Plan]) -> None:
    """Write how the first variants of a folder are cut.

    Raises:
        OSError: if it cannot be written.
    """
    cuts = _Cuts(tuple(VariantTiles(shapes, plan.tiles) for plan in plans))
    with (folder / TILES).open("xb") as stream:
        stream.write(packed(cuts))


def read_tiles(folder: Path) -> tuple[VariantTiles, ...]:
    """Return how the first variants of a folder are cut, in their order; none if that is not there."""
    try:
        return read_form(_Cuts, folder / TILES).variants
    except (SchemaError, OSError, ValueError, TypeError, LookupError, RecursionError):
        return ()
