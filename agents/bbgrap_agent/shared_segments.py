"""Segments that deployments share: what is made of equal models and equal weights is made once, however many shapes it serves.

Laws: what no deployment has any more is gone; what is remembered of segments that are gone takes some hundred bytes each, and is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet, WeakValueDictionary

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.graph.onnx_layout import Boundary
from bbgrap_agent.deployment import Segment

MAX_KNOWN = 16_384
"""Compiled segments of which it is remembered what they offer."""


@dataclass(frozen=True)
class KnownSegment:
    """What was found out of a segment: the boundary that it offers if these inputs are blocked, and those that it cannot have."""

    offers: dict[frozenset[str], Boundary] = field(default_factory=dict)
    refused: set[Boundary] = field(default_factory=set)


class SharedSegments:
    """Segments by what they are made of. Used by one thread."""

    def __init__(self) -> None:
        self._segments: WeakValueDictionary[tuple[object, ...], Segment] = WeakValueDictionary()
        self._known: OrderedDict[tuple[object, ...], KnownSegment] = OrderedDict()
        self._warm: WeakSet[Segment] = WeakSet()
        self.made = 0
        """How many segments were made so far."""

    def find(self, key: tuple[object, ...]) -> Segment | None:
        """Return a segment that a deployment has."""
        return self._segments.get(key)

    def get(self, key: tuple[object, ...], make: Callable[[], Segment]) -> Segment:
        """Return the segment of that key, made unless a deployment has it."""
        found = self._segments.get(key)
        if found is None:
            found = self._segments[key] = make()
            self.made += 1
        return found

    def warmed(self, segment: Segment) -> bool:
        """Note that a segment runs, and return whether it has run before."""
        was_warm = segment in self._warm
        self._warm.add(segment)
        return was_warm

    def known(self, key: tuple[object, ...]) -> KnownSegment:
        """Return what is known of a segment, to be added to."""
        found = self._known.pop(key, None) or KnownSegment()
        self._known[key] = found
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return found


def weights_key(model: SegmentModel) -> tuple[tuple[str, str], ...]:
    """Return what tells a segment's weights from others."""
    return tuple(sorted((name, ref.digest) for name, ref in model.weights.items()))
