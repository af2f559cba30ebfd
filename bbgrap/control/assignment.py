"""Which request of a plan is next, and what it runs on: the plan's variants, or the model's standby.

Laws: a client with many requests does not keep those of others waiting; a request that has ended workers ends no further agent's; a model
that has answered nothing yet has one agent at a time, since it may never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Members
from bbgrap.control.plans import MAX_DEATHS, ServedPlan, Variant
from bbgrap.control.request import Request
from bbgrap.control.scaled_plans import answer_more_at_once
from bbgrap.control.sequences import Sequences, fits
from bbgrap.control.stalls import is_behind_another, is_stuck
from bbgrap.control.standby import Standbys

LOADING_COSTS = 2.0
"""How many times as long a request takes on an agent that loads something: both want the same cores, and the load takes longer, too."""


@dataclass(frozen=True, slots=True)
class RequestAssigner:
    """Chooses among the requests that are open, by number, with what is known of the other parts."""

    _members: Members
    _loading: Loading
    _standbys: Standbys
    _sequences: Sequences
    _open: Mapping[int, Request]

    def next(self, plan: ServedPlan) -> Iterator[Request]:
        """Yield whose turn it is: the oldest request of the client that has the fewest running, of those that are not held.

        One that may not run everywhere does not keep others waiting: the next one of each such kind follows.
        """
        waiting = [request for number in plan.waiting if (request := self._open[number]).held is None]
        variants = [*plan.variants, *(plan.standby.variants if plan.standby is not None else ())]
        free = [variant for variant in variants if variant.queue.has_room]
        if len(waiting) < 2 or not free:
            yield from waiting[:1]
            return
        running = self._running(variants)
        kinds = set[tuple[str, bool, tuple[int, ...]]]()
        for request in sorted(waiting, key=lambda request: _turn(request, running)):
            kind = request.blamed, request.interruptions < MAX_DEATHS, self._places(request, free)
            if kind not in kinds:
                kinds.add(kind)
                yield request

    def _places(self, request: Request, free: Iterable[Variant]) -> tuple[int, ...]:
        """Return where a request of a sequence may run: at its home, or else on which of those that have room; nothing for others."""
        if (sequence := request.sequence) is None:
            return ()
        if (home := self._home(request)) is not None:
            return (home.epoch,)
        return 0, *(variant.epoch for variant in free if fits(variant, sequence, request))

    def _home(self, request: Request) -> Variant | None:
        """Return what has the state of a request's sequence, if the request may run there."""
        if (sequence := request.sequence) is None:
            return None
        home = self._sequences.home(sequence)
        return home if home is not None and fits(home, sequence, request) else None

    def in_turn(self, standby: ServedPlan, plans: Iterable[ServedPlan]) -> list[ServedPlan]:
        """Return plans of a standby in the order in which their requests have their turns on it; before them those without any."""
        running = self._running(standby.variants)

        def turn(plan: ServedPlan) -> tuple[int, ...]:
            return min((_turn(self._open[number], running) for number in plan.waiting), default=())

        return sorted(plans, key=turn)

    def _running(self, variants: Iterable[Variant]) -> Counter[RoutingId]:
        """Return how many requests of each client run on variants."""
        flying = (number for variant in variants for number in variant.queue.running)
        return Counter(self._open[number].caller[0] for number in flying if number in self._open)

    def choose(self, plan: ServedPlan, request: Request, now: float) -> Variant | None:
        """Return what a request runs on now: the plan, or the standby until there is one; None if it has to wait."""
        if (home := self._home(request)) is not None:
            # The state is there: it waits for that rather than computing it anew.
            return home if home.queue.has_room and not home.suspects and self._may_take(home, request) else None
        mine = [v for v in plan.open_variants if self._may_take(v, request)] if plan.serves else []
        has_copies = plan.standby is not None and any(not v.away for v in plan.standby.variants) and not plan.standby.quarantine
        standby = () if plan.helper is None else plan.helper.open_variants
        copies = [v for v in standby if self._may_take(v, request)]
        if (tried := self._tried_on(plan.helper)) is not None:
            copies = [v for v in copies if v is tried]
        has_copy_there = plan.standby is not None and any(request.blamed in v.parts for v in plan.standby.variants)
        if has_copy_there and request.blamed in self._members.by_name:
            # What has ended a worker may end another: it takes the one that it has ended already, and the others go on.
            mine, copies = ([v for v in there if set(v.parts) == {request.blamed}] for there in (mine, copies))
        mine, copies = self._without_aside(mine, copies)
        leaves = bool(mine) and (answer_more_at_once(len(copies), plan) or self._is_compared(plan, request, copies))
        if mine and not leaves and (request.interruptions + request.broken < MAX_DEATHS or not has_copies):
            queue = plan.policy.choose([variant.queue for variant in mine], now, tries=not request.message.record)
            return next((variant for variant in mine if variant.queue is queue), None)
        free = [v for v in copies if v.queue.has_room]
        loading = self._loading.loading_agents if len(free) > 1 else frozenset[str]()

        def cost(copy: Variant) -> tuple[float, ...]:
            shares = not loading.isdisjoint(copy.parts)
            homes = 0 if request.sequence is None else self._sequences.homes(copy.epoch)
            return homes, len(copy.queue.running), copy.usual_s * (LOADING_COSTS if shares else 1.0), shares, copy.epoch

        return min(free, key=cost, default=None)

    def _is_compared(self, plan: ServedPlan, request: Request, copies: Sequence[Variant]) -> bool:
        """Whether a request runs on the standby, alone, to see whether the plan is still faster; one that is traced shows what serves."""
        is_free = bool(copies) and request.sequence is None and not request.message.record and not self._loading.is_anything_running
        return is_free and plan.trial.is_turn_of_standby()

    def _without_aside(self, mine: list[Variant], copies: list[Variant]) -> tuple[list[Variant], list[Variant]]:
        """Leave out what a node takes part in that is set aside, unless there is nothing else."""
        aside = self._members.aside
        others = [[v for v in there if aside not in v.parts] for there in (mine, copies)]
        return (others[0], others[1]) if any(others) else (mine, copies)

    def _tried_on(self, standby: ServedPlan | None) -> Variant | None:
        """Return the copy of a standby that runs its first request or is being proved; None if it has answered, or nothing runs."""
        if standby is None or standby.is_proven:
            return None
        return next((v for v in standby.variants if v.queue.running and not is_behind_another(v, self._loading)), None)

    def _may_take(self, variant: Variant, request: Request) -> bool:
        """Whether a variant is for such requests, and no agent of it is busy with a segment for unusually long."""
        if request.sequence is not None and not fits(variant, request.sequence, request):
            return False
        return not any(is_stuck(member, self._loading) for member in self._members.living(variant.parts))

    def fits_nowhere(self, plan: ServedPlan, request: Request, now: float) -> bool:
        """Whether it is one of a sequence, all that is loaded for its plan is for others, and nothing else will be."""
        if (sequence := request.sequence) is None or self._sequences.waits_for_home(sequence, now):
            return False
        if self._home(request) is not None:
            return False  # links of it may be tried, or a newer one may take all that is new
        helper = plan.helper
        if not plan.answering or (helper is not None and not helper.open_variants and self.can_answer(helper, now)):
            return False
        return not any(fits(variant, sequence, request) for variant in plan.answering)

    def waits_in_vain(self, plan: ServedPlan, request: Request) -> str:
        """Return why a request that has ended a worker is not run again before its deadline; nothing if it may be."""
        standby = plan.standby
        return standby.quarantine if request.deaths and standby is not None and standby.quarantine_ends > request.deadline else ""

    def home_rests(self, request: Request, now: float) -> str:
        """Return why what has a request's state, which cannot be made anew, is not run before its deadline; nothing if it may be."""
        sequence = request.sequence
        if sequence is None or not self._sequences.waits_for_home(sequence, now):
            return ""
        plan = self._loading.by_epoch[sequence.epoch].plan
        return plan.quarantine if plan.quarantine_ends > request.deadline else ""

    def can_answer(self, standby: ServedPlan, now: float) -> bool:
        """Whether a model's standby answers, or will."""
        failed = standby.failed and not standby.variants and standby.job is None
        return not (standby.quarantine or failed or self._standbys.lacks_room(standby, now))


def _turn(request: Request, running: Mapping[RoutingId, int]) -> tuple[int, ...]:
    """Return what requests take turns by: those that were interrupted first, then who has the fewest running, then the oldest."""
    return not request.interruptions, running[request.caller[0]], request.came
