"""What is predicted of a compiled plan: its timeline, that of the best single node, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from bbgrap.auto.evaluate import quick_narrower
from bbgrap.auto.search import SearchResult, plan_auto
from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, LinkProfile
from bbgrap.cluster.wires import Wiring
from bbgrap.compiler.compile import Compiled
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.memory import program_bytes
from bbgrap.compiler.passes import ChunkInputs
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.timeline import LANES, Timeline, plain_timeline
from bbgrap.costmodel.ways import WayLoad, loads
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import forms_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.single import plan_whole
from bbgrap.program.steps import Program
from bbgrap.tdl import Descriptions

L = TypeVar("L", Link, LinkProfile)

MORE_BANDWIDTH = 10
"""What `what_if` multiplies the links' bandwidth by."""


SHOWN_SPANS = 5_000
"""A longer timeline is not part of the report: some 60 bytes each."""


@dataclass(frozen=True)
class Forecast:
    """The predictions for one compiled plan; `found` says what planner `auto` saw, if it was the planner.

    `whole` is the graph of a machine that has the whole model, where the plan is of another form of it (`bbgrap.planners.forms`).
    """

    compiled: Compiled
    descriptions: Descriptions
    found: SearchResult | None = None
    whole: Graph | None = None

    @property
    def graph_of_one(self) -> Graph:
        """The graph that one node computes alone."""
        return self.compiled.plan.graph if self.whole is None else self.whole

    @cached_property
    def predictor(self) -> Predictor:
        """Times pieces and messages on the plan's cluster."""
        return Predictor(self.compiled.plan.cluster)

    @cached_property
    def timeline(self) -> Timeline:
        """When every node does what."""
        return self.predictor.timeline(self.compiled.optimized)

    @cached_property
    def busiest_wire(self) -> WayLoad | None:
        """The direction of a wire that is busy longest, if wires are known and used."""
        return next(iter(loads(self.timeline, self.predictor.network)), None)

    @cached_property
    def _pieces(self) -> Pieces:
        graph = self.graph_of_one
        return Pieces(graph, self.descriptions if graph is self.compiled.plan.graph else all_descriptions(graph))

    @cached_property
    def _whole(self) -> tuple[Program, ...]:
        """The programs of the whole model on one node, per node; inputs come at once."""
        cluster, made = self.compiled.plan.cluster, self.compiled.optimized
        programs = (build_direct(plan_whole(self.graph_of_one, cluster, device), self._pieces) for device in range(cluster.host))
        return tuple(replace(program, transfers=made.transfers, dictionary_devices=made.dictionary_devices) for program in programs)

    @cached_property
    def single_s(self) -> tuple[float, ...]:
        """Seconds of a request that one node answers alone, through the same cluster, per node, whether it has room or not.

        Inputs come at once: to look for the best way to part them takes up to half a second a node. So only `alone` counts parts.
        """
        return tuple(self.predictor.timeline(program).total_s for program in self._whole)

    def best_single(self, besides: Sequence[int] = ()) -> int | None:
        """Return the node that is fastest alone, of those with room for the whole model; None if none has.

        Args:
            besides: Bytes on each node that must have room, too.
        """
        nodes, taken = self.compiled.plan.cluster.nodes, besides or [0] * len(self._whole)
        able = [
            device
            for device, program in enumerate(self._whole)
            if not nodes[device].memory_bytes or program_bytes(program)[device] + taken[device] <= nodes[device].memory_bytes
        ]
        return min(able, key=lambda device: self.single_s[device], default=None)

    @cached_property
    def alone(self) -> tuple[str, float] | None:
        """The name of the node that is fastest alone, and its seconds; None if no node has room for the whole model."""
        best, used, found = self.best_single(), self.compiled.plan.devices_used, dict[int, float]()
        if best is not None:
            found[best] = self._alone_s(best)
        if len(used) == 1:
            found[used[0]] = self.timeline.total_s
        if not found:
            return None
        device = min(found, key=lambda device: found[device])
        return self.compiled.plan.cluster.nodes[device].name, found[device]

    def _alone_s(self, device: int) -> float:
        """Return the seconds that one node takes alone, if inputs may come in parts where those of the plan may."""
        program = self._whole[device]
        if self.compiled.instalments:
            program = ChunkInputs(self.predictor, quick_narrower(self._pieces))(program)
        return self.predictor.timeline(program).total_s

    def report(self) -> dict[str, object]:
        """Return the keys of `plan --json` that are predicted; times in milliseconds."""
        timeline, names = self.timeline, [node.name for node in self.compiled.plan.cluster.nodes]
        report: dict[str, object] = {
            "predicted_ms": _ms(timeline.total_s),
            "predicted_single_node_ms": None if self.alone is None else _ms(self.alone[1]),
            "predicted_nodes": {
                name: {f"{lane}_ms": _ms(timeline.busy_s(device, lane)) for lane in LANES} for device, name in enumerate(names)
            },
        }
        if (load := self.busiest_wire) is not None:
            wire = {"wire": load.way.wire.name, "to": load.way.to, "bytes": load.bytes, "busy_ms": _ms(load.busy_s)}
            report["predicted_busiest_wire"] = wire
        if len(timeline.spans) <= SHOWN_SPANS:
            report["predicted_timeline"] = plain_timeline(timeline)
        if self.found is not None:
            report["search"] = {
                "plans": self.found.plans,
                "origin": self.found.origin,
                "candidates": [{"name": c.name, "predicted_ms": _ms(c.score.seconds)} for c in self.found.candidates],
            }
        return report

    def what_if(self, options: PlanOptions) -> Iterator[tuple[str, float]]:
        """Yield what would change, in words, and the seconds of the best plan then: one more node, faster links."""
        plan = self.compiled.plan
        brief = replace(options, search_seconds=options.search_seconds / 4)
        fastest = self.single_s.index(min(self.single_s))
        for words, cluster in (
            ("one more node like the fastest one", _one_more(plan.cluster, fastest)),
            (f"links {MORE_BANDWIDTH} times as fast", _faster(plan.cluster)),
        ):
            found = [plan_auto(form, cluster, brief, all_descriptions(form)).score for form in forms_of(self.graph_of_one)]
            yield words, min(found).seconds


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def _one_more(cluster: Cluster, fastest: int) -> Cluster:
    """Return a cluster with one more node that has the links of the fastest one; between the two it is as between that and its nearest."""
    best = cluster.nodes[fastest]
    name = next(
        name for name in (f"one more {number}" for number in range(len(cluster.nodes) + 1)) if all(name != n.name for n in cluster.nodes)
    )
    wires = cluster.network.wiring.wires
    like = [
        replace(wire, name=f"{wire.name} of {name}", ends=(name, next(end for end in wire.ends if end != best.name)))
        for wire in wires
        if best.name in wire.ends
    ]
    nearest = [replace(max(best.links, key=lambda link: link.bandwidth_bytes_per_s), peer=best.name)] if best.links else []
    more = replace(best, name=name, links=(*best.links, *nearest))
    return Cluster((*cluster.nodes, more), replace(cluster.network, wiring=Wiring((*wires, *like))))


def _faster(cluster: Cluster) -> Cluster:
    network = cluster.network
    within = tuple((name, _faster_link(link)) for name, link in network.within)
    wiring = Wiring(tuple(replace(wire, link=_faster_link(wire.link)) for wire in network.wiring.wires))
    nodes = tuple(replace(node, links=tuple(map(_faster_link, node.links))) for node in cluster.nodes)
    return Cluster(nodes, replace(network, between=_faster_link(network.between), within=within, wiring=wiring))


def _faster_link(link: L) -> L:
    return replace(link, bandwidth_bytes_per_s=MORE_BANDWIDTH * link.bandwidth_bytes_per_s)
