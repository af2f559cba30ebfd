"""How a plan is cut comes back from the disk as it was, or not at all."""

import msgpack
from bbgrap_coordinator.plan_tiles import read_tiles, write_tiles

from bbgrap.cluster import Cluster
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.zoo import build


def test_how_a_plan_is_cut_is_read_as_it_was_written(tmp_path):
    graph = build("tiny")
    plan = make_plan(graph, Cluster.even(2), PlanOptions())
    write_tiles(tmp_path, {"input": (1, 3, 32, 32)}, [plan])
    (cut,) = read_tiles(tmp_path)
    assert (cut.shapes, cut.tiles) == ({"input": (1, 3, 32, 32)}, plan.tiles)
    (tmp_path / "tiles").write_bytes(msgpack.packb([[[{}, {"node": [[0, [[[[5, 3]]]], None]]}]]]))
    assert read_tiles(tmp_path) == ()
