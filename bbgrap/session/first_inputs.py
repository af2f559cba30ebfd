"""What inputs plans are made for: the first ones of a shape speak for those that follow."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bbgrap.graph.types import Array
from bbgrap.planners.options import InputValues
from bbgrap.program.dictionaries import have_few_values

Shapes = tuple[tuple[int, ...], ...]


class FirstInputs:
    """Decides once per combination of input shapes; any thread may ask.

    Invariant: at most so many combinations are remembered; one that was forgotten is decided again.
    """

    def __init__(self, asked: InputValues, most: int) -> None:
        """Decide where `auto` was asked for; anything else is the answer."""
        self._asked = asked
        self._most = most
        self._values: dict[Shapes, InputValues] = {}
        self._lock = threading.Lock()

    def see(self, shapes: Shapes, feeds: Sequence[Array]) -> None:
        """Look at inputs of these shapes, if nobody has; none at all are any."""
        if self._asked != "auto" or shapes in self._values:
            return
        values: InputValues = "few" if have_few_values(feeds) else "any"
        with self._lock:
            while len(self._values) >= self._most:
                self._values.pop(next(iter(self._values)))
            self._values.setdefault(shapes, values)

    def values(self, shapes: Shapes) -> InputValues:
        """Return what inputs of these shapes are planned to be like."""
        return self._values.get(shapes, self._asked)
