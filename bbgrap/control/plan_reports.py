"""What is said of a plan: to who waits for it, to who watches the cluster, and in the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bbgrap.control.plans import ServedPlan
from bbgrap.protocol.client_messages import ModelPrepared


def prepared_answer(plan: ServedPlan, call: int) -> ModelPrepared:
    """Return the answer to `PrepareModel`: who serves a plan now."""
    source = plan.source
    if source is None:
        return ModelPrepared(call, plan.key, 0, (), json.dumps({**_about(plan), "serving": "nobody yet"}))
    names = tuple(name for name, _ in source.serving[0].nodes)
    return ModelPrepared(call, plan.key, source.number, names, json.dumps({**_served_report(source), **_about(plan, source)}))


def why_not(plan: ServedPlan) -> str:
    """Return why none of a plan's variants serves, in words."""
    if plan.quarantine:
        return plan.quarantine
    if plan.timing is not None:
        return "the plan's variants are being timed"
    if plan.job is not None:
        return "a plan is being made"
    if plan.is_arriving:
        return "the plan is being loaded"
    if plan.failed:
        return next(reason for _, reason in plan.failed.values())
    if away := who_is_away(plan):
        return away
    if plan.variants:
        return "the plan's links are being tried"
    if plan.latest_failure:
        return f"{plan.latest_failure}; it is tried again when requests come"
    return "a plan is made when more requests come with these shapes"


def who_is_away(plan: ServedPlan) -> str:
    """Return which agents keep a plan's variants from serving, in words; empty if there are none."""
    away = sorted({name for variant in plan.variants for name in variant.away})
    return "" if not away else f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} away"


def _about(plan: ServedPlan, source: ServedPlan | None = None) -> dict[str, Any]:
    """Return what is said of the plan besides the report of who serves."""
    why = plan.quarantine or next((reason for _, reason in plan.failed.values()), "") or next(iter(plan.unlike.values()), "")
    planner = {} if source is plan or plan.options is None else {"asked": plan.options.planner}
    standby: dict[str, Any] = {} if plan.standby is None else {"standby": [name for v in plan.standby.open_variants for name in v.parts]}
    standby |= {"uncovered": dict(plan.uncovered)} if plan.uncovered else {}
    return {**planner, **standby, **({"why_not": why} if why and source is not plan else {})}


def _served_report(plan: ServedPlan) -> Mapping[str, Any]:
    """Return the report of what serves a plan, and what was measured."""
    serving, medians = plan.serving, plan.policy.medians
    # Of a stream, variants of several plans serve: that of agents which joined later has more nodes than the first one.
    known = dict.fromkeys(name for variant in serving for name, _ in variant.nodes)
    used = [name for name in known if any(name in variant.parts for variant in serving)]
    report = {**serving[0].planned.report, "serving": " and ".join(dict.fromkeys(v.name for v in serving)), "nodes_used": used}
    group = [v for v in plan.variants if v.job == serving[0].job]
    if len(group) < 2 or not medians or plan.is_standby:
        return report
    timed = [
        {"name": v.name, "nodes": [peer.name for peer in v.peers], "median_ms": 1e3 * medians[v.epoch]} for v in group if v.epoch in medians
    ]
    return {**report, "measured": {"variants": timed, "chosen": [variant.name for variant in serving]}}


def measured_times(plan: ServedPlan) -> Mapping[str, float]:
    """Return what was measured of a plan's variants, in seconds by name; where two over other agents have one, by those, too."""
    timed = [(v.name, tuple(v.parts), plan.policy.medians[v.epoch]) for v in plan.variants if v.epoch in plan.policy.medians]
    alike = Counter(name for name, _ in {(name, parts) for name, parts, _ in timed})
    return {name if alike[name] == 1 else f"{name} on {', '.join(parts)}": seconds for name, parts, seconds in timed}


def measured_text(plan: ServedPlan) -> str:
    """Return what was measured of a plan, for the operator."""
    times = [f"{name} {1e3 * seconds:.1f} ms" for name, seconds in measured_times(plan).items()]
    names = "every variant" if plan.policy.serving is None else " and ".join(v.name for v in plan.serving) or "nobody"
    return f"{plan.called}: {', '.join(times) or 'its variants could not be timed'}; {names} serves"
