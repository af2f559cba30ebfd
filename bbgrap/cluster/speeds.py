"""Speeds by kind of work: what is measured, and what is assumed of the rest."""

from __future__ import annotations

from collections.abc import Mapping

from bbgrap.cluster.types import NodeProfile, Speed

DEFAULT_WORK: tuple[Speed, ...] = (
    Speed("conv1x1", 100e9, 40e9, 20e9, 2e-6),
    Speed("conv3x3", 120e9, 40e9, 20e9, 2e-6),
    Speed("conv", 60e9, 40e9, 20e9, 2e-6),
    Speed("depthwise", 20e9, 40e9, 20e9, 2e-6),
    Speed("matmul", 100e9, 20e9, 10e9, 3e-6),
    Speed("matvec", 0, 15e9, 10e9, 3e-6),
    Speed("pool", 0, 0, 8e9, 2e-6),
    Speed("normalize", 0, 0, 3e9, 3e-6),
    Speed("elementwise", 0, 0, 8e9, 2e-6),
    Speed("move", 0, 0, 5e9, 3e-6),
    Speed("other", 0, 0, 5e9, 3e-6),
    Speed("segment", 0, 0, 8e9, 40e-6),
    Speed("message", 0, 0, 3e9, 30e-6),
)
"""A generic core."""


def speeds_of(node: NodeProfile) -> Mapping[str, Speed]:
    """Return the speeds of a node by kind."""
    known = {speed.kind: speed for speed in node.work}
    factor = node.share * max(1.0, 0.95 * node.threads)
    scaled = (
        Speed(s.kind, s.flops_per_s * factor, s.weight_bytes_per_s * factor, s.map_bytes_per_s * factor, s.overhead_s / factor)
        for s in DEFAULT_WORK
    )
    return {speed.kind: known.get(speed.kind, speed) for speed in scaled}
