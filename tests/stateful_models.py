"""Random networks with state: what some layers compute is added to what they have computed in the requests before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from bbgrap.graph import Array, Graph, Node
from bbgrap.graph.state import with_state
from tests.partition import plain_outputs
from tests.random_models import networks


@st.composite
def stateful_networks(draw: st.DrawFn) -> Graph:
    """Draw a random network, and one or two of its layers that go on from request to request; its input may be lasting."""
    graph = draw(networks())
    made = [node.outputs[0] for node in graph.nodes]
    for value in draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True)):
        graph = accumulating(graph, value)
    pairs = {name: f"{name}.next" for name in graph.inputs if name.startswith("state of ")}
    lasting = draw(st.sets(st.sampled_from([name for name in graph.inputs if name not in pairs]), max_size=1))
    return with_state(graph, {**pairs, **{name: name for name in lasting}})


def accumulating(graph: Graph, value: str) -> Graph:
    """Let all readers of a value read its sum over requests."""
    name, total, answer = f"state of {value}", f"state of {value}.next", f"answer of {value}"
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(replace(node, inputs=tuple(total if v == value else v for v in node.inputs)))
        if value in node.outputs:
            nodes.append(Node(total, "Add", (value, name), (total,)))
    outputs = (*(v for v in graph.outputs if v != value), total)
    if value in graph.outputs:
        nodes.append(Node(answer, "Identity", (total,), (answer,)))
        outputs = (*outputs, answer)
    types = {**graph.types, name: graph.types[value], total: graph.types[value], answer: graph.types[value]}
    used = {v for node in nodes for v in (*node.inputs, *node.outputs)}
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=(*graph.inputs, name),
        outputs=outputs,
        types={v: kind for v, kind in types.items() if v in used or v in graph.weights},
    )


def plain_sequence(graph: Graph, first: Sequence[Array], given: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return what plain onnxruntime answers to the requests of a sequence; the first one's inputs are `first`, state with them."""
    answers: list[list[Array]] = []
    feeds = dict(zip(graph.inputs, first, strict=True))
    for number in range(len(given) + 1):
        found = dict(zip(graph.outputs, plain_outputs(graph, [feeds[name] for name in graph.inputs]), strict=True))
        answers.append([found[name] for name in graph.answered])
        if number < len(given):
            found |= feeds
            feeds = {name: found[output] for name, output in graph.state.items()} | dict(zip(graph.given, given[number], strict=True))
    return answers
