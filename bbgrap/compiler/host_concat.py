"""Which concatenations the host does: those that only make outputs of the model.

    heads ──► concat ──► output          on agents: copied once more, and sent when the last head is there
    heads ──────────────► output         joined by the host: sent as soon as they are there, copied where they belong

The host puts outputs together from the agents' tiles anyway; so it takes the parts from wherever they are made.
"""

from __future__ import annotations

from itertools import accumulate

from bbgrap.costmodel.messages import MESSAGE_S
from bbgrap.graph import Graph, Node
from bbgrap.planners.plan import Plan
from bbgrap.runtime.schedule import Box
from bbgrap.tdl import Descriptions

COPIED_BYTES_PER_S = 1e9
"""How fast an agent concatenates what is in no cache any more: 4.3 MB in 4.1 ms (decision 18)."""

WORTH_JOINING_BYTES = round(MESSAGE_S * COPIED_BYTES_PER_S)
"""Smaller outputs, of up to 188 KB, stay whole: to copy them takes less than a message more."""


def joined_by_host(plan: Plan, descriptions: Descriptions) -> frozenset[str]:
    """Return the names of the nodes that no agent computes, for the host joins their operands.

    None if there is only one agent: what it makes whole is received where the client finds it, without a copy.
    """
    graph, found = plan.graph, set[str]()
    if len(plan.devices_used) < 2:
        return frozenset()
    kept = set(graph.state.values())
    for node in reversed(graph.nodes):
        if node.op != "Concat" or node.domain or descriptions[node.name] is None:
            continue
        output = node.outputs[0]
        readers = graph.consumers.get(output, ())
        if output in kept:
            continue
        large = graph.types[output].nbytes >= WORTH_JOINING_BYTES and all(name in graph.producers for name in node.inputs)
        if large and (readers or output in graph.answered) and all(reader.name in found for reader in readers):
            found.add(node.name)
    return frozenset(found)


def places_of(graph: Graph, node: Node) -> tuple[Box, ...]:
    """Return where the operands of a concatenation are in its output."""
    shape = graph.types[node.outputs[0]].known_shape
    axis = int(str(node.attributes["axis"])) % len(shape)
    stops = list(accumulate(graph.types[name].known_shape[axis] for name in node.inputs))
    return tuple(
        tuple(((start, stop) if a == axis else (0, extent),) for a, extent in enumerate(shape))
        for start, stop in zip([0, *stops], stops, strict=False)
    )


def shifted(place: Box, box: Box | None) -> Box:
    """Return where a region of an operand is in the output, if the operand is at `place` there; None is all of it."""
    if box is None:
        return place
    starts = (ranges[0][0] for ranges in place)
    return tuple(tuple((by + start, by + stop) for start, stop in ranges) for by, ranges in zip(starts, box, strict=True))
