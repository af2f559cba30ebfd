"""Ways to divide a model: planner, split, number of nodes, even or uneven shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.planners.options import AUTO, SPLITS, PlanOptions, Split
from bbgrap.planners.registry import NAMES

NODES = (2, 3, 5)
UNEVEN = (3.0, 1.0, 7.0, 2.0, 2.0)
"""Shares of uneven clusters: the first so many of them."""

SEARCH_SECONDS = 1.0
"""What planner `auto` may take here; small models are done long before."""

CHEAP_COUNT = 7
"""Configurations of a model by default: as many as keep it under half a second."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to divide a model."""

    planner: str
    split: Split
    nodes: int
    uneven: bool = False

    @property
    def label(self) -> str:
        """In one word, e.g. `bbgrap-rows-3-uneven`."""
        split = f"-{self.split}" if self.planner == "bbgrap" else ""
        return f"{self.planner}{split}-{self.nodes}{'-uneven' if self.uneven else ''}"

    @property
    def cluster(self) -> Cluster:
        """The machines."""
        if not self.uneven:
            return Cluster.even(self.nodes)
        return Cluster(tuple(NodeProfile(f"node{n}", share=share) for n, share in enumerate(UNEVEN[: self.nodes])))

    @property
    def options(self) -> PlanOptions:
        """What the planner is asked for."""
        return PlanOptions(planner=self.planner, split=self.split, search_seconds=SEARCH_SECONDS)


ALL: tuple[Configuration, ...] = tuple(
    Configuration(planner, split, nodes, uneven)
    for planner in NAMES
    for split in (SPLITS if planner == "bbgrap" else SPLITS[:1])
    for nodes in NODES
    for uneven in (False, True)
)
"""Every planner and split, 2, 3 and 5 nodes, even and uneven."""

COSTLY = (AUTO,)
RARE = (AUTO, "single")
"""Planners of one in twelve choices: one takes a second, the other divides nothing."""


def chosen(seed: int, count: int = CHEAP_COUNT) -> tuple[Configuration, ...]:
    """Return a seeded choice of different planners and splits, one of the rare ones among twelve choices."""
    random = np.random.default_rng((seed, 1))
    words = [("bbgrap", split) for split in SPLITS] + [(name, SPLITS[0]) for name in NAMES if name not in ("bbgrap", *RARE)]
    picked = [words[int(k)] for k in random.choice(len(words), min(count, len(words)), replace=False)]
    if random.random() < 1 / 12:
        picked[-1] = (str(random.choice(RARE)), SPLITS[0])
    return tuple(Configuration(p, s, int(random.choice(NODES)), bool(random.random() < 0.4)) for p, s in picked)
