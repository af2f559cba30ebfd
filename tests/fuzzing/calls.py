"""Random calls of every described operator, taken from the strategies of the operators' own tests.

Hypothesis reads its choices from bytes that the seed decides, so a seed repeats a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from hypothesis import HealthCheck, given, settings

from bbgrap.graph.divided_experts import OWN_DOMAIN
from bbgrap.tdl import described_operators
from tests.bbgrap.tdl.test_operators import CASES
from tests.bbgrap.tdl.verifier import Case

Operator = tuple[str, str]
"""Domain ('' is ai.onnx) and type."""

OPERATORS: tuple[Operator, ...] = tuple(sorted(operator for operator in described_operators() if operator[0] != OWN_DOMAIN))
"""That a file can have."""

_CHOICES = 4096
"""Bytes for one call: more than any strategy reads."""


@cache
def _source(operator: Operator) -> tuple[Callable[[bytes], object], list[Case]]:
    found: list[Case] = []

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=CASES[operator]())
    def keep(case: Case) -> None:
        found.append(case)

    return keep.hypothesis.fuzz_one_input, found


def random_call(operator: Operator, random: np.random.Generator, attempts: int = 8) -> Case | None:
    """Return a random call of an operator; None if the strategy rejected all attempts."""
    draw, found = _source(operator)
    for _ in range(attempts):
        found.clear()
        draw(random.bytes(_CHOICES))
        if found:
            return found.pop()
    return None
