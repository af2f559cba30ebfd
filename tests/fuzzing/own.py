"""The source of random models of this folder."""

from __future__ import annotations

from tests.fuzzing.generators import random_sample
from tests.fuzzing.samples import Sample


def sample(seed: int) -> Sample:
    """Return the model of a seed."""
    return random_sample(seed)
