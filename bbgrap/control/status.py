"""The coordinator's state as `Status` tells it: made when somebody asks, of what is there anyway, and changed by nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.dispatch import Requests
from bbgrap.control.links import Links
from bbgrap.control.membership import Member, Members
from bbgrap.control.plan_reports import measured_times, prepared_answer, who_is_away, why_not
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.request_statistics import RequestCounts, RequestStatistics
from bbgrap.costmodel.timeline import Timeline, read_timeline
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.status_messages import (
    ExchangeStatus,
    LinkStatus,
    ModelStatus,
    NodeStatus,
    PlanShown,
    PlanStatus,
    ReadPlan,
    ReadStatus,
    SegmentStatus,
    Status,
    VariantStatus,
)
from bbgrap.report.trace import segment_seconds, timeline_of

MAX_PLANS_TOLD = 64
"""Plans that a status tells of: those that were asked for last."""
MAX_SEGMENTS_TOLD = 256
"""Segments of a plan that a status tells of."""
_WORST = 1024
"""Characters of a reason."""


class StatusReader:
    """Tells how the cluster is."""

    def __init__(self, members: Members, links: Links, requests: Requests, statistics: RequestStatistics) -> None:
        self._members = members
        self._links = links
        self._requests = requests
        self._statistics = statistics
        self._segments: dict[int, tuple[float, tuple[SegmentStatus, ...]]] = {}

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the agents as `bbgrap nodes` lists them."""
        return tuple(map(self.node, self._members.alive()))

    def node(self, member: Member) -> NodeStatus:
        """Return an agent."""
        loading, verifying, join = self._requests.loading, self._requests.verifying, member.join
        return NodeStatus(
            name=join.name,
            address=join.data_address,
            state="alive",
            threads=join.threads,
            cores=join.cores,
            memory_bytes=self._members.known_memory_of(member),
            version=join.version,
            onnxruntime=join.onnxruntime,
            max_opset=join.max_opset,
            profile=self._members.known_of(member),
            used_bytes=member.beat.used_bytes,
            standby_bytes=loading.loaded_bytes(join.name, standbys=True),
            unreachable=self._links.unreachable(join.name),
            since=self._statistics.time(member.since),
            free_bytes=member.beat.free_bytes,
            busy=member.busy,
            verified=verifying.verified[join.name],
            differed=verifying.differed[join.name],
            running=sum(len(variant.queue.running) for variant in loading.of_member(join.name)),
            reloads=member.reloads,
        )

    def read(self, asked: ReadStatus, now: float) -> Status:
        """Return the answer to `ReadStatus`."""
        settings, loading = self._requests.settings, self._requests.loading
        nodes = [replace(node, profile=None) for node in (*self.nodes(), *self._statistics.gone.values())]
        traffic, shown = loading.traffic.read(loading.by_epoch.values()), {COORDINATOR, *(node.name for node in nodes)}
        self._segments = {epoch: known for epoch, known in self._segments.items() if epoch in loading.by_epoch}
        return Status(
            asked.call,
            settings.version,
            settings.incarnation,
            settings.started,
            self._statistics.time(now),
            tuple(nodes),
            tuple(self._link_list()),
            tuple(self._models()),
            tuple(ExchangeStatus(*pair, size) for pair, size in sorted(traffic.items()) if size and shown.issuperset(pair)),
            self._statistics.events_after(asked.events_after),
        )

    def show(self, asked: ReadPlan) -> PlanShown | None:
        """Return the answer to `ReadPlan`, None if there is no such plan."""
        plan = self._requests.planning.plans.get(asked.plan)
        if plan is None:
            return None
        source = plan.source
        variant = None if source is None else source.serving[0]
        recorded = None if variant is None else self._statistics.recorded.get(variant.epoch)
        report = prepared_answer(plan, asked.call).report
        if variant is None or recorded is None:
            return PlanShown(asked.call, report, () if variant is None else variant.device_names, (), 0.0)
        return PlanShown(asked.call, report, variant.device_names, recorded.records, recorded.at)

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _link_list(self) -> Iterator[LinkStatus]:
        told: set[frozenset[str]] = set()
        for member in self._members.alive():
            profile = self._members.known_of(member)
            for link in () if profile is None else profile.links:
                if link.peer == COORDINATOR or link.peer in self._members.by_name:
                    pair = frozenset((member.name, link.peer))
                    told.add(pair)
                    is_up = pair not in self._links.apart
                    yield LinkStatus(member.name, link.peer, link.bandwidth_bytes_per_s, link.round_trip_s, is_up)
        for pair in self._links.apart:
            if pair not in told:
                source, target = sorted(pair, key=lambda name: (name == COORDINATOR, name))
                yield LinkStatus(source, target, 0.0, 0.0, is_up=False)

    def _models(self) -> Iterator[ModelStatus]:
        plans = sorted(self._requests.planning.plans.values(), key=lambda plan: -plan.asked)[:MAX_PLANS_TOLD]
        standbys = {plan.model: plan for plan in self._requests.standbys.by_model.values()}
        of_model: dict[str, list[ServedPlan]] = {}
        for plan in plans:
            of_model.setdefault(plan.model, []).append(plan)
        running: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        on_plan: Counter[ServedPlan] = Counter()
        for request in self._requests.open.values():
            (running if request.epoch else waiting)[request.plan.model] += 1
            on_plan[request.plan] += bool(request.epoch)
        sequences = self._requests.sequences.by_model()
        names = {plan.model: plan.files[0].name for plan in (*plans, *standbys.values())}
        for model in sorted({*names, *self._statistics.counts}):
            counts = self._statistics.counts.get(model) or RequestCounts(names[model])
            standby = standbys.get(model)
            yield ModelStatus(
                model,
                counts.name.removesuffix(".onnx"),
                dict(counts.ended),
                counts.latency,
                counts.queued_s,
                waiting[model],
                running[model],
                () if standby is None else tuple(name for variant in standby.open_variants for name in variant.parts),
                tuple(self._plan(plan, on_plan[plan]) for plan in of_model.get(model, ())),
                sequences[model],
                counts.recovered,
                counts.replayed,
            )

    def _plan(self, plan: ServedPlan, running: int) -> PlanStatus:
        source = plan.source
        serving = [] if source is None else source.serving
        names = dict.fromkeys(name for variant in serving for name in variant.parts)
        serves: Literal["plan", "standby", "nobody"] = "nobody" if source is None else "plan" if source is plan else "standby"
        variants = tuple(self._variant(v) for v in plan.variants)
        first = next((v for v in variants if serving and v.epoch == serving[0].epoch), None)
        return PlanStatus(
            plan=plan.key,
            shapes=plan.shapes,
            planner=plan.options.planner if plan.options is not None else "",
            objective=plan.options.objective if plan.options is not None else "",
            serves=serves,
            variant=" and ".join(dict.fromkeys(variant.name for variant in serving)),
            why=_why(plan)[:_WORST],
            epoch=serving[0].epoch if serving else 0,
            nodes=tuple(names),
            weight_bytes={name: max(variant.weight_bytes(name) for variant in serving) for name in names},
            predicted_s=0.0 if first is None else first.predicted_s,
            measured_s=first.measured_s if first is not None else serving[0].usual_s if serving else 0.0,
            requests=plan.requests,
            waiting=len(plan.waiting),
            running=running,
            variants=variants,
            segments=self._segments_of(serving[0]) if serves == "plan" else (),
        )

    def _variant(self, variant: Variant) -> VariantStatus:
        return VariantStatus(
            variant.name,
            variant.epoch,
            variant.tracker.state,
            tuple(variant.parts),
            len(variant.queue.running),
            variant.answered,
            variant.planned.predicted_s,
            variant.usual_s or variant.plan.policy.medians.get(variant.epoch, 0.0),
        )

    def _segments_of(self, variant: Variant) -> tuple[SegmentStatus, ...]:
        recorded = self._statistics.recorded.get(variant.epoch)
        if recorded is None:
            return ()
        at, segments = self._segments.get(variant.epoch, (-1.0, ()))
        if at != recorded.at:
            devices = variant.device_names
            measured = _seconds(timeline_of(recorded.records, devices))
            predicted = _seconds(_predicted(variant))
            segments = tuple(
                SegmentStatus(devices[device], segment, predicted.get((device, segment), 0.0), seconds)
                for (device, segment), seconds in sorted(measured.items())[:MAX_SEGMENTS_TOLD]
            )
            self._segments[variant.epoch] = recorded.at, segments
        return segments


def _predicted(variant: Variant) -> Timeline:
    try:
        return read_timeline(variant.planned.report["predicted_timeline"])
    except (KeyError, RemoteProtocolError):
        return Timeline((), ())


def _seconds(timeline: Timeline) -> Mapping[tuple[int, int], float]:
    return {place: seconds for place, (_, seconds) in segment_seconds(timeline).items()}


def _why(plan: ServedPlan) -> str:
    """Return why that answers which does, in words."""
    if not plan.serving:
        return why_not(plan)
    times = measured_times(plan)
    if len(times) > 1:
        why = "timed in turns: " + ", ".join(
            f"{name} {1e3 * seconds:.1f} ms" for name, seconds in sorted(times.items(), key=lambda entry: entry[1])
        )
    else:
        why = "the only plan" if len(plan.open_variants) < 2 else "its variants were not timed"
    away = who_is_away(plan)
    return f"{why}; {away}" if away else why
