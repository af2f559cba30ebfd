"""What a plan does, as plain values: the object of `plan --json`, and the text of `plan --explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bbgrap.compiler.compile import Compiled
from bbgrap.compiler.segments import region_name
from bbgrap.program.cases import Case, Need, needs_of
from bbgrap.program.statistics import LABELS, ProgramStatistics, statistics_of
from bbgrap.program.steps import Send
from bbgrap.report.layers import layers_of
from bbgrap.shapemap import ShapeMap

EXPLAINED_NEEDS = 400
"""Lines of the explanation that list single needs; a longer list is cut, and says so."""


def report_of(compiled: Compiled, search_s: float) -> dict[str, Any]:
    """Return the object of `plan --json`, without what is predicted (`bbgrap.auto.forecast`)."""
    plan = compiled.plan
    names = [node.name for node in plan.cluster.nodes]
    needs = list(needs_of(plan, compiled.initial))
    cases = Counter(need.case for need in needs)
    return {
        "schema": 1,
        "planner": plan.planner,
        "model": plan.graph.name,
        "agents": names,
        "nodes_used": [names[d] for d in plan.devices_used],
        "search_s": search_s,
        "transfer_dtype": compiled.optimized.transfers,
        "dictionaries": _with_dictionary(compiled),
        "initial": asdict(statistics_of(compiled.initial)),
        "optimized": asdict(statistics_of(compiled.optimized)),
        "cases": {case.name.lower(): cases[case] for case in Case},
        "nodes": [
            {
                "name": node.name,
                "operator": node.op,
                "device": names[tile.device],
                "region": str(tile.region),
                "part": tile.part and str(tile.part),
            }
            for node in plan.graph.nodes
            for tile in plan.tiles[node.name]
        ],
        "layers": [asdict(layer) for layer in layers_of(plan, needs)],
    }


def explain(compiled: Compiled) -> Iterator[str]:
    """Yield the lines of `plan --explain`."""
    plan = compiled.plan
    names = [node.name for node in plan.cluster.nodes]
    yield f"Plan of '{plan.graph.name}' by planner '{plan.planner}' over {len(names)} nodes: {', '.join(names)}"
    yield ""
    yield from _table(statistics_of(compiled.initial), statistics_of(compiled.optimized))
    if devices := _with_dictionary(compiled):
        yield f"  inputs go to {', '.join(devices)} with dictionaries: a byte a number if they have few values, exactly"
    needs = list(needs_of(plan, compiled.initial))
    counts = Counter(need.case for need in needs)
    yield ""
    yield "What the nodes hold against what they need (figure 5 of the paper), over all layers and nodes:"
    for case in Case:
        yield f"  {counts[case]:6d}  {case.value}"
    yield ""
    yield "Every need that costs something:"
    dear = [need for need in needs if need.case is not Case.IDENTICAL]
    for need in dear[:EXPLAINED_NEEDS]:
        yield f"  {_line(compiled, names, need)}"
    if len(dear) > EXPLAINED_NEEDS:
        yield f"  ... and {len(dear) - EXPLAINED_NEEDS} more"


def _with_dictionary(compiled: Compiled) -> list[str]:
    """Return the nodes that get the model's inputs encoded with dictionaries."""
    program, nodes = compiled.optimized, compiled.plan.cluster.nodes
    reached = {step.destination for step in program.devices[program.host].steps if isinstance(step, Send)}
    return [nodes[device].name for device in sorted(reached) if program.wire(program.host, device) == "dictionary"]


def _table(initial: ProgramStatistics, optimized: ProgramStatistics) -> Iterator[str]:
    yield f"  {'per request':<25}{'initial':>14}{'optimised':>14}"
    before, after = asdict(initial), asdict(optimized)
    for key, label in LABELS.items():
        yield f"  {label:<25}{before[key]:>14,}{after[key]:>14,}"


def _line(compiled: Compiled, names: list[str], need: Need) -> str:
    whole = ShapeMap.full(compiled.plan.graph.types[need.value].shape or ())
    missing = ", ".join(str(region) for region in need.missing)
    letter = need.case.value.split(":")[0]
    held = "nothing" if need.held is None else str(need.held)
    what = f"{names[need.device]:<10} {letter:<7} {need.node} reads {region_name(need.value, need.needed, whole)}, holds {held}"
    return what if need.case is Case.CROP or not missing else f"{what}, missing {missing}"
