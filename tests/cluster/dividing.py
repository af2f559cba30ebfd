"""A real coordinator whose planner always divides: without a look at machines, whose speeds a test cannot know.

python -m tests.cluster.dividing --bind ...      the coordinator
python -m tests.cluster.dividing KIND DESCRIPTOR    its planners
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from bbgrap_coordinator import planner

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.engine.prepare import PreparedVariant, prepare_graph, prepare_like
from tests.cluster import coordinator_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bbgrap.control.planned_variant import PlannedVariant
    from bbgrap.graph import Graph
    from bbgrap.planners.options import PlanOptions
    from bbgrap.planners.plan import Tile

PLANNER = ("-m", "tests.cluster.dividing")


def prepare(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[PreparedVariant, ...]:
    """Divide by rows, whatever one node alone would take."""
    return prepare_graph(graph, _plain(cluster), replace(options, planner="bbgrap"))


def like(
    graph: Graph, others: Sequence[tuple[Graph, Mapping[str, tuple[Tile, ...]]]], cluster: Cluster, options: PlanOptions
) -> PlannedVariant:
    return prepare_like(graph, others, _plain(cluster), options)


def _plain(cluster: Cluster) -> Cluster:
    return Cluster(tuple(NodeProfile(node.name) for node in cluster.nodes))


if __name__ == "__main__":
    if "--bind" in sys.argv:
        coordinator_process.main(PLANNER)
    else:
        planner.prepare_like = like
        planner.main(prepare)
