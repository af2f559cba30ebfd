"""How many examples a property gets whose usual number is its own, not that of its profile."""

from hypothesis import settings

AMPLE = 30
"""Examples of a property in `make test-slow`; `make test` has half."""


def examples(count: int) -> int:
    """Return this number, or in a profile of less than `AMPLE` examples as small a part of it."""
    return max(1, count * min(settings().max_examples, AMPLE) // AMPLE)
