"""Networks that end in concatenations, of which agents may need a part, too."""

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.zoo.builder import Builder
from tests.bbgrap.compiler.test_direct import messages, work
from tests.partition import assert_partition_agrees
from tests.random_models import clusters, plan_options


@st.composite
def heads(draw) -> Graph:
    """A network that ends in concatenations, one of another perhaps, of which agents may need a part, too."""
    b = Builder("heads", (1, 4, draw(st.integers(6, 12)), draw(st.integers(6, 9))))
    axis = draw(st.sampled_from((1, 2, 3)))
    first = b.conv("input", "first", draw(st.sampled_from((3, 4))), 3, pad=1)
    second = b.conv(first, "second", 4, 3, pad=1)
    third = b.act("Relu", b.conv(second, "third", 4, 1), "third.relu")
    parts = [first, third] if axis == 1 or b.shape(first) == b.shape(third) else [second, third]
    inner = b.concat(parts, "inner", axis)
    nested = axis == 1 and draw(st.booleans())
    outputs = [b.concat([second, inner], "outer", 1) if nested else inner]
    if draw(st.booleans()):
        outputs.append(draw(st.sampled_from([second, third, inner])))
    if draw(st.booleans()):
        outputs.append(b.act("Abs", draw(st.sampled_from([second, inner])), "after"))
    return b.graph(*outputs)


@given(heads(), clusters(), plan_options())
def test_answers_are_those_of_onnxruntime(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    assert_partition_agrees(graph, cluster, options)


@given(heads(), clusters(), plan_options())
def test_the_short_way_makes_the_same_program(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, options, descriptions)
    long_way, short = compile_plan(plan, descriptions).optimized, build_direct(plan, Pieces(graph, descriptions))
    assert messages(short) == messages(long_way)
    assert work(short) == work(long_way)
