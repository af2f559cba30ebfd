"""Who is taken for stuck: a worker in a segment that takes unusually long, and requests with which nothing goes on anywhere.

Both are judged by heartbeats, and by others that overtake them. A stuck worker may be right (a large segment) or never end: what waits
behind it runs elsewhere meanwhile. A request stalls when each of its agents is idle or at later ones: what one of them waits for is lost.
Laws: what took long before may take as long again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.request import Request
from bbgrap.control.send_window import FLYING_S
from bbgrap.protocol.tensors import given_bytes

STUCK_S = 0.3
"""A segment that takes longer keeps others waiting, unless requests usually take as long."""
STALLED_S = 0.4
"""How long all agents of a request may be idle at once. Chosen: four heartbeats."""
OVERTAKEN = 24
"""Others that end on an agent after a request was started: agents work on the oldest ones first, so there is nothing to do for it. Chosen:
twice what may have been in flight before it."""
UNAWAITED_STALLED_S = 2.0
"""The same of a synthetic request, or a second run that verifies one: no client waits for them."""
USUAL = 3.0
"""Times the usual duration of a request."""
MOST_TWICE = 6
"""So often a request that stalls has twice as long as before. Chosen: inputs come over 200 kbit/s, too."""
SLOWEST_LINK = 1 << 20
"""Bytes per second of a link over which the inputs of a first request may still be on their way."""
SLOWEST_FOR_STATE = 8 << 20
"""The same of a state of a sequence: of 100 Mbit/s, two thirds. Chosen: what is lost of a gigabyte is missed
after two minutes."""


def is_stuck(member: Member, loading: Loading) -> bool:
    """Whether an agent's worker is in a segment of a request for unusually long."""
    beat = member.beat
    if not beat.request or beat.seconds <= STUCK_S or beat.request in loading.members.ended:
        return False
    variant = loading.by_epoch.get(beat.epoch)
    return variant is None or is_unusual(variant, beat.seconds)


def is_behind_another(variant: Variant, loading: Loading) -> bool:
    """Whether an agent of a variant is busy for unusually long, and not with it."""
    return any(is_stuck(member, loading) and member.beat.epoch != variant.epoch for member in loading.members.living(variant.parts))


def is_unusual(variant: Variant, seconds: float) -> bool:
    """Whether a request of a variant, or a segment of one, should have ended before so many seconds."""
    return seconds > max(STUCK_S, USUAL * variant.usual_s)


def usual_s_of(plan: ServedPlan) -> float:
    """Return how long requests of a plan take, on it or its standby, in seconds; 0: that is not known."""
    return max((v.usual_s for p in (plan, plan.standby) if p is not None for v in p.variants), default=0.0)


def kept_waiting(member: Member, requests: Collection[int], loading: Loading) -> Iterator[tuple[Variant, list[int]]]:
    """Yield those of these requests of clients that a stuck agent keeps waiting, by variant."""
    for variant in loading.of_member(member.name):
        if behind := [number for number in variant.queue.running if number in requests and number != member.beat.request]:
            yield variant, behind


def stalled(requests: dict[int, Request], loading: Loading, now: float) -> Iterator[tuple[Variant, int]]:
    """Yield the requests with which nothing goes on, and their variants."""
    for variant in [variant for variant in loading.by_epoch.values() if variant.queue.running]:
        there = loading.members.living(variant.parts)
        for number, started in list(variant.queue.running.items()):
            request = requests.get(number)
            if request is None or request.is_computed:
                continue
            patience = (max(STALLED_S, USUAL * variant.usual_s) + _on_its_way_s(request, variant, there)) * _longer(request)
            if now - started <= patience:
                continue
            if there and all(_has_left(member, request, now - started, now) for member in there):
                yield variant, number


def _longer(request: Request) -> int:
    """Return how many times as long a request has that has stalled: where it was on a slow way, to run it again is only more to carry.

    Once it may have stalled for another reason: its agent was about to be lost.
    """
    return 1 << min(max(0, request.stalls - 1), MOST_TWICE)


def _has_left(member: Member, request: Request, running_s: float, now: float) -> bool:
    """Whether an agent has nothing to do for a request that runs for so long: it is idle, or at others that came later."""
    overtaken = member.finished - request.overtook.get(member.name, 0) > OVERTAKEN
    return overtaken or min(now - member.idle_since, running_s) > STALLED_S


def _on_its_way_s(request: Request, variant: Variant, there: Sequence[Member]) -> float:
    """Return how long inputs may be on their way beyond what is known: all of a first request, or the state of a sequence.

    A run that makes a lost state anew has other inputs than the request that waits for it.
    """
    if request.sequence is not None and request.sequence.arriving_bytes:
        return request.sequence.arriving_bytes / SLOWEST_FOR_STATE
    behind_weights_s = 2 * FLYING_S if any(member.weights.outgoing for member in there) else 0.0
    return behind_weights_s + (0.0 if variant.usual_s else request.bytes / SLOWEST_LINK + _far_s(there))


def _far_s(there: Sequence[Member]) -> float:
    """Return how long a first message may be on its way to the farthest of some agents, whatever it carries."""
    return max((member.far_s or 0.0 for member in there), default=0.0)


def state_on_its_way_s(variant: Variant) -> float:
    """Return how long inputs of a synthetic request may be on their way: it brings all state, other than what was timed."""
    artifacts = variant.planned.artifacts
    return 0.0 if artifacts.further is None else given_bytes(artifacts.host) / SLOWEST_FOR_STATE


def unawaited_stalled(requests: Collection[int], loading: Loading, now: float) -> Iterator[tuple[Variant, int]]:
    """Yield the runs that are none of these requests of clients and with which nothing goes on, and their variants."""
    for variant in loading.by_epoch.values():
        for number, started in variant.queue.running.items():
            if number in requests:
                continue
            usual_s = usual_s_of(variant.plan)
            there = loading.members.living(variant.parts)
            idle_since = max((member.idle_since for member in there), default=now)
            patience = max(UNAWAITED_STALLED_S, USUAL * usual_s) + state_on_its_way_s(variant) + _far_s(there)
            # Others may keep the agents busy; where it is known how long requests take, it does not take much longer.
            if now - max(idle_since, started) > patience or (usual_s and now - started > USUAL * patience):
                yield variant, number
