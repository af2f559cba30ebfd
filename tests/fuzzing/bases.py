"""Models for converters to convert: random networks of plain layers, and the zoo's small ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx

from bbgrap.zoo import materialize
from tests.fuzzing.generators import random_network, random_sample
from tests.fuzzing.samples import Sample

ZOO = ("tiny", "tiny", "tiny", "mobilenet_v2")
"""Models whose file is small enough to convert in seconds; every 16th seed takes one."""


def base_sample(seed: int, *, any_operator: bool = False) -> Sample:
    """Return the model of a seed; with `any_operator` some are models of all operators instead of networks."""
    random = np.random.default_rng((seed, 2))
    if seed % 16 == 15:
        return zoo_sample(ZOO[seed // 16 % len(ZOO)], random)
    if any_operator and random.random() < 0.2:
        return random_sample(seed)
    return random_network(seed)


def zoo_sample(name: str, random: np.random.Generator) -> Sample:
    """Return a network of the zoo for one image."""
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        model = onnx.load(materialize(name, Path(folder)))
    (value,) = model.graph.input
    shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    return Sample(name, model.SerializeToString(), {value.name: random.standard_normal(shape).astype(np.float32)})
