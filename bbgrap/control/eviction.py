"""Which variants go when an agent is to load others and has as many as it may have, or no memory for them.

Laws: what somebody uses does not go for what others use, or they would take turns for ever; only what nothing else answers for comes
anyway, and what somebody waits for by name. What nobody uses takes nobody's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bbgrap.compiler.artifacts import DeviceArtifacts
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log
from bbgrap.control.loading import Loading
from bbgrap.control.plans import ServedPlan, Variant

MAX_LOADED = 30
"""Variants and copies of standbys that an agent has loaded at once, besides those that were scaled; memory may end before it.

Chosen: a worker that is started anew loads all of them again, one after the other, and campaigns of faults find no harm in that yet.
"""
MAX_SCALED = 256
"""Scaled variants that an agent has loaded at once: they share nearly all with others."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """What is to come to an agent: so many variants, and the bytes that they take at most while they are loaded."""

    variants: int
    memory_bytes: int
    scaled: bool = False

    @classmethod
    def of(cls, parts: Iterable[DeviceArtifacts], *, scaled: bool) -> Incoming:
        """Return what parts of variants need at most; scaled ones share what others have."""
        taking = [part for part in parts if part.takes_part]
        return cls(len(taking), 0 if scaled else sum(part.loading_bytes for part in taking), scaled)


@dataclass(frozen=True, slots=True)
class Room:
    """What is to go on an agent for what comes to it."""

    going: tuple[Variant, ...]
    is_enough: bool
    """Whether there is room then."""


def room_for(loading: Loading, newcomer: ServedPlan, name: str, incoming: Incoming, now: float, going: Iterable[Variant] = ()) -> Room:
    """Find what is to go on an agent, besides what goes anyway: what serves nobody first, then what is not in use, then the oldest.

    Where something large has to go, what would have gone before it stays if there is room. For too little memory nothing goes; beyond
    the number of variants comes only what cannot wait.
    """
    leaving = _Leaving(loading, newcomer, name, now, going)
    most = MAX_SCALED if incoming.scaled else MAX_LOADED
    while len(alike := [v for v in leaving.staying() if v.is_scaled == incoming.scaled]) + incoming.variants > most:
        if not leaving.lets_go_one(alike):
            if leaving.may_wait:
                return Room((), is_enough=False)
            break
    counted = tuple(leaving.going)
    memory = loading.members.memory_of(name)
    while incoming.memory_bytes and loading.packed_bytes(name, leaving.lost) + incoming.memory_bytes > memory:
        if not leaving.lets_go_one(leaving.staying()):
            return Room(counted, is_enough=False)
    for variant in reversed(leaving.going[len(counted) :]):  # what is too small, or shares what it has, may have gone for nothing
        staying = leaving.lost - {variant.epoch}
        if loading.packed_bytes(name, staying) + incoming.memory_bytes <= memory:
            leaving.lost = staying
            leaving.going.remove(variant)
    return Room(tuple(leaving.going), is_enough=True)


def make_room(loading: Loading, coming: Mapping[str, Incoming], newcomer: ServedPlan, now: float) -> list[CoordinatorInstruction] | None:
    """Release what is to go on agents for what comes to each of them; nothing, and return None, if that is not enough.

    What nothing else answers for comes anyway, and what somebody waits for by name.
    """
    going: dict[int, Variant] = {}
    for name, incoming in coming.items():
        room = room_for(loading, newcomer, name, incoming, now, going.values())
        if not room.is_enough and _may_wait(newcomer, now):
            return None
        going |= {variant.epoch: variant for variant in room.going}
    names = " and ".join(f"'{name}'" for name in coming)
    done: list[CoordinatorInstruction] = []
    for variant in going.values():
        text = f"{variant.plan.called}: {variant.name} is released, to make room on {names}"
        done += [Log(text, model=variant.plan.model, epoch=variant.epoch), *loading.lose(variant)]
    return done


class _Leaving:
    """What goes on an agent, one variant after the other."""

    def __init__(self, loading: Loading, newcomer: ServedPlan, name: str, now: float, going: Iterable[Variant]) -> None:
        self.may_wait = _may_wait(newcomer, now)
        self.lost = {variant.epoch for variant in going}
        self.going: list[Variant] = []
        self._there = loading.of_member(name)
        self._newcomer = newcomer
        self._now = now

    def staying(self) -> list[Variant]:
        return [variant for variant in self._there if variant.epoch not in self.lost]

    def lets_go_one(self, variants: Iterable[Variant]) -> bool:
        """Whether one of these can go; then it does."""
        idle = [v for v in variants if not v.queue.running and v.tracker.state != "loading" and not self._is_needed(v)]
        if self.may_wait:
            idle = [variant for variant in idle if self._newcomer.is_used(self._now) and not self._is_in_use(variant)]
        if idle:
            least = min(idle, key=lambda v: (v in v.plan.serving, v.plan.is_used(self._now), v.plan.is_standby, v.plan.asked, v.used))
            self.lost.add(least.epoch)
            self.going.append(least)
        return bool(idle)

    def _is_needed(self, variant: Variant) -> bool:
        """Whether somebody waits for a variant, or may for what is the last copy of a standby in use."""
        plan = variant.plan
        if plan.is_standby:
            return plan.is_used(self._now) and not self._has_another(variant)
        if variant.away and plan is self._newcomer:
            return False  # who waits for the plan shall not wait for the one who is away
        return plan.is_wanted and (variant.job == plan.latest or variant in plan.serving)

    def _has_another(self, copy: Variant) -> bool:
        return any(other is not copy and other.epoch not in self.lost and not other.away for other in copy.plan.variants)

    def _is_in_use(self, variant: Variant) -> bool:
        """Whether a variant stays although another plan, or a further copy of a standby, would need its place."""
        plan = variant.plan
        if self._newcomer.is_standby:
            return plan.is_used(self._now) or (plan.is_standby and not self._has_another(variant))
        if plan.is_standby or not plan.is_used(self._now):
            return False
        # The newest job's last one would only be planned anew, for the place of another.
        others = any(other is not variant and other.epoch not in self.lost and other.world == variant.world for other in plan.variants)
        return variant in plan.serving or (variant.job == plan.latest and (plan.timed != plan.latest or not others))


def _may_wait(newcomer: ServedPlan, now: float) -> bool:
    """Whether something answers for what comes, or nobody asks for it."""
    if newcomer.callers:
        return False
    answered = newcomer.serving or (newcomer.helper is not None and newcomer.helper.open_variants)
    return bool(answered) or not (newcomer.is_used(now) or newcomer.outstanding)
