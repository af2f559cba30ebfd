"""HyPar over a tree of wires: the first level's cut is between its subtrees."""

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link, Network
from bbgrap.cluster.wires import Wiring, tree
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.ways import loads
from bbgrap.graph.state import with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.zoo import training


def test_less_goes_over_the_wires_between_subtrees_than_if_nothing_were_known_of_them() -> None:
    step = training.build("lenet-c", batch=64)
    graph = with_state(step.graph, step.state)
    descriptions = all_descriptions(graph)
    levels = [(2, Link(1e7, 0.0)), (2, Link(1e9, 0.0))]
    nodes = tuple(NodeProfile(name) for name in ("a", "c", "b", "d"))
    wired = Cluster(nodes, Network(wiring=Wiring(tree("abcd", levels))))
    moved, seconds = [], []
    for cluster in (wired, Cluster(nodes)):
        plan = make_plan(graph, cluster, PlanOptions("hypar"), descriptions)
        predictor = Predictor(wired)
        timeline = predictor.timeline(build_direct(plan, Pieces(graph, descriptions)))
        moved.append(loads(timeline, predictor.network)[0])
        seconds.append(timeline.total_s)
    assert moved[0].way.wire.ends[0] == moved[1].way.wire.ends[0] == "switch"
    assert moved[0].bytes < moved[1].bytes
    assert seconds[0] < seconds[1]
