import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.passes.crops import forward_crops
from bbgrap.compiler.passes.pipeline import optimize
from bbgrap.errors import ProgramError
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.zoo import build


@pytest.mark.parametrize("verify", [False, True])
def test_passes_that_send_more_are_refused(verify):
    graph = build("tiny")
    descriptions = all_descriptions(graph)
    compiled = compile_plan(make_plan(graph, Cluster.even(2), PlanOptions(), descriptions), descriptions)

    def undo(_):
        return compiled.initial

    with pytest.raises(ProgramError, match=r"traffic grew from \d+ to \d+ bytes by pass undo; passes before it: forward_crops"):
        optimize(compiled.optimized, (forward_crops, undo), verify=verify)
