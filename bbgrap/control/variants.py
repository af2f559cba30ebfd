"""Which of its routes a request takes: the measuring at the start, and one policy per objective.

A route is a complete set of programs of a deployment. Policies know routes by their epochs, and of each only how many requests are on
their way and how long others took. Laws: a policy never chooses a route that is full; for the same calls it makes the same choices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import truediv
from statistics import median
from typing import Protocol

WARM_UP = 2
"""Made-up requests per route that are not counted: connections, caches and memory pools settle in them."""
ROUNDS = 5
"""Made-up requests per route that are, at least."""
HOPELESS_ROUNDS = 2
"""The same for routes that are out of the question."""
HOPELESS = 1.3
"""How many times as long as another route's median the fastest time of such a route is. Chosen: a busy neighbour makes two cores 1.75 times
as slow for half a second at a time (decision 16), but all routes that take turns."""
CLOSE_ROUNDS = 15
"""The same for routes that are too close to tell apart by fewer."""
MEASURE_S = 4.0
"""After this long every route is measured with what there is, but with one counted request at least."""

WINDOW = 11
"""Requests of the serving route whose median is watched."""
DRIFT = 0.2
"""How far that median may go before all routes are timed again. Chosen: above the noise of a shared network, below what a user feels."""
REMEASURE_FIRST = 250
"""Requests after which all routes are timed again for the first time: what disturbed the start is over by then."""
REMEASURE_EVERY = 1_000
"""The same from then on, drift or not: the others may have become faster."""
TRIAL_SHARE = 20
"""While routes are timed again, one request in so many takes another route than the one that serves."""
TRIALS = 6
"""Live requests per route in such a comparison; the first one finds cold caches and is not counted."""
GAIN = 0.05
"""How much faster a route must be to replace the one that serves."""

_LEAST_S = 1e-9
"""That a request took: ratios to it must exist, even where a clock stood still."""

SMOOTHING = 0.25
"""Weight of the newest service time in the running mean: it follows a change within about eight requests."""


@dataclass(slots=True)
class Lane:
    """A route as policies see it: at most `limit` requests are `running`, by their number, with the time they started."""

    epoch: int
    limit: int
    running: dict[int, float] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether one more request may start."""
        return len(self.running) < self.limit


class Measuring:
    """Timing routes in turns, one request at a time.

    Whatever disturbs a request makes it slower. So a route whose fastest time is above another's median is out after `ROUNDS` turns, or
    earlier if it is far above; those that are left take more.
    """

    def __init__(self, epochs: Sequence[int], until: float) -> None:
        """Measure these routes, best until that time."""
        self.samples: dict[int, list[float]] = {epoch: [] for epoch in epochs}
        self._until = until

    def is_late(self, now: float) -> bool:
        """Whether it should be over by now."""
        return now > self._until

    def next(self, now: float) -> int | None:
        """Return the route whose turn it is, or None if enough is known."""
        if not self.samples:
            return None
        if self.is_late(now):
            epoch = self._least_timed(self.samples)
            return epoch if len(self.samples[epoch]) < 2 else None
        best = min(self._medians_apart().values(), default=0.0)
        likely = [
            epoch
            for epoch, times in self.samples.items()
            if len(times) < WARM_UP + HOPELESS_ROUNDS or self._fastest(epoch) <= HOPELESS * best
        ]
        epoch = self._least_timed(likely)
        if len(self.samples[epoch]) < WARM_UP + ROUNDS:
            return epoch
        close = [epoch for epoch in likely if self._fastest(epoch) <= best]
        epoch = self._least_timed(close)
        return epoch if len(close) > 1 and len(self.samples[epoch]) < WARM_UP + CLOSE_ROUNDS else None

    def _least_timed(self, epochs: Iterable[int]) -> int:
        return min(epochs, key=lambda epoch: len(self.samples[epoch]))

    def _fastest(self, epoch: int) -> float:
        return min(self._counted(epoch))

    def _counted(self, epoch: int) -> Sequence[float]:
        times = self.samples[epoch]
        return times[min(WARM_UP, len(times) - 1) :]

    def note(self, epoch: int, seconds: float) -> None:
        """Take a time."""
        if epoch in self.samples:
            self.samples[epoch].append(max(seconds, _LEAST_S))

    def forget(self, epoch: int) -> None:
        """Leave a route out: it is gone."""
        self.samples.pop(epoch, None)

    def give_up(self) -> None:
        """Forget what was measured: the routes cannot be timed this way."""
        self.samples.clear()

    def medians(self) -> dict[int, float]:
        """Return the typical time of each route that was timed, in seconds: medians, those of routes with all turns by ratios within turns.

        What slows the machines for a while slows all routes of a turn, so such ratios tell more than medians apart (decision 12).
        """
        typical = self._medians_apart()
        first = max(typical, key=lambda epoch: len(self.samples[epoch]), default=None)
        if first is not None:
            for epoch in typical:
                if len(self.samples[epoch]) == len(self.samples[first]):
                    typical[epoch] = typical[first] * median(map(truediv, self._counted(epoch), self._counted(first)))
        return typical

    def _medians_apart(self) -> dict[int, float]:
        return {epoch: median(self._counted(epoch)) for epoch, times in self.samples.items() if times}


class Policy(Protocol):
    """Chooses routes and learns from what became of it.

    Invariants: `medians` holds what was measured last, in seconds by epoch; `serving` is the route that takes all requests but trials,
    or None if all routes do.
    """

    @property
    def medians(self) -> Mapping[int, float]:
        """What was measured last."""

    @property
    def serving(self) -> int | None:
        """Who takes the requests."""

    def begin(self, medians: Mapping[int, float]) -> None:
        """Start from measured times; without any if measuring was not possible."""

    def choose(self, lanes: Sequence[Lane], now: float) -> Lane | None:
        """Return the route for the next request, or None if it must wait."""

    def done(self, lane: Lane, started: float, now: float, *, alone: bool) -> bool:
        """Note that a request ended well; `alone`: no other one was on its way meanwhile. Returns whether another route serves now."""

    def lost(self, epoch: int) -> None:
        """Forget a route."""


class Fastest:
    """For the latency of single requests: the fastest route serves; now and then the others are tried.

    Invariants: `serving` is one of the routes; a comparison (`_trial`) holds times of the routes that are left only.
    """

    def __init__(self, epochs: Sequence[int]) -> None:
        """Begin with the first route."""
        self.medians: Mapping[int, float] = {}
        self.serving: int = epochs[0]
        self._epochs = list(epochs)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._baseline: float | None = None
        self._since = 0
        self._due = REMEASURE_FIRST
        self._trial: dict[int, list[float]] | None = None
        self._share = TRIAL_SHARE
        self._turn = 0

    def begin(self, medians: Mapping[int, float]) -> None:
        """Let the fastest route serve; if nothing could be measured, compare with the first live requests, every second one."""
        if len(medians) == len(self._epochs):
            self._settle(medians, min(self._epochs, key=lambda epoch: medians[epoch]))
        elif len(self._epochs) > 1:
            self._share = 2
            self._compare()

    def choose(self, lanes: Sequence[Lane], now: float) -> Lane | None:
        """Return the serving route; during a comparison, now and then the least tried of the others, if nothing else is on its way."""
        del now
        mine = next(lane for lane in lanes if lane.epoch == self.serving)
        if self._trial is not None and not any(lane.running for lane in lanes):
            self._turn += 1
            others = [lane for lane in lanes if lane is not mine]
            if others and self._turn % self._share == 0:
                return min(others, key=lambda lane: len((self._trial or {}).get(lane.epoch, ())))
        return mine if mine.has_room else None

    def done(self, lane: Lane, started: float, now: float, *, alone: bool) -> bool:
        """Take the time of a request that ran alone; others would tell of their company."""
        if not alone:
            return False
        if self._trial is not None:
            self._trial.setdefault(lane.epoch, []).append(now - started)
            return self._decide(self._trial)
        if lane.epoch == self.serving:
            self._recent.append(now - started)
            self._since += 1
            self._watch()
        return False

    def lost(self, epoch: int) -> None:
        """Forget a route; if it served, the fastest of the others does."""
        self._epochs.remove(epoch)
        self.medians = {known: seconds for known, seconds in self.medians.items() if known != epoch}
        if self._epochs and epoch == self.serving:
            self._settle(self.medians, min(self._epochs, key=lambda known: self.medians.get(known, float("inf"))))
        elif self._trial is not None:
            self._trial.pop(epoch, None)

    def _watch(self) -> None:
        if len(self._recent) < WINDOW:
            return
        current = median(self._recent)
        if self._baseline is None:
            self._baseline = current
        elif abs(current - self._baseline) > DRIFT * self._baseline or self._since >= self._due:
            self._compare()

    def _compare(self) -> None:
        if len(self._epochs) == 1:
            self._settle(self.medians, self.serving)
            return
        self._trial = {}
        self._turn = 0

    def _decide(self, trial: Mapping[int, Sequence[float]]) -> bool:
        """End a comparison if every route has been tried often enough."""
        if any(len(trial.get(epoch, ())) < TRIALS for epoch in self._epochs):
            return False
        medians = {epoch: median(trial[epoch][1:]) for epoch in self._epochs}
        best = min(self._epochs, key=lambda epoch: medians[epoch])
        before, self._due = self.serving, REMEASURE_EVERY
        keep = medians[best] > (1 - GAIN) * medians[before]
        self._settle(medians, before if keep else best)
        return self.serving != before

    def _settle(self, medians: Mapping[int, float], serving: int) -> None:
        self.medians, self.serving = dict(medians), serving
        self._trial, self._baseline, self._since, self._share = None, None, 0, TRIAL_SHARE
        self._recent.clear()


class Balanced:
    """For streams of requests: all routes serve, each as fast as it can; none is idle while a request waits.

    Invariants: `medians` is what the routes' latest requests took each, without waiting for those before them.
    """

    serving: int | None = None

    def __init__(self) -> None:
        """Start without any times: every route is tried."""
        self.medians: dict[int, float] = {}
        self._ended: dict[int, float] = {}

    def begin(self, medians: Mapping[int, float]) -> None:
        """Start from measured times."""
        self.medians = dict(medians)

    def choose(self, lanes: Sequence[Lane], now: float) -> Lane | None:
        """Return the route that is predicted to end one more request first; if it is full, an idle one, or none.

        A busy slow route gets its next request when its own is nearly done: earlier, and the end of a stream would wait for it.
        """
        best = min(lanes, key=lambda lane: (self._ends(lane, now), not lane.has_room))
        if best.has_room:
            return best
        idle = [lane for lane in lanes if not lane.running]
        return min(idle, key=lambda lane: self._ends(lane, now), default=None)

    def done(self, lane: Lane, started: float, now: float, *, alone: bool) -> bool:
        """Learn how long the route works on a request."""
        del alone
        seconds = now - max(started, self._ended.get(lane.epoch, started))
        known = self.medians.get(lane.epoch, seconds)
        self.medians[lane.epoch] = known + SMOOTHING * (seconds - known)
        self._ended[lane.epoch] = now
        return False

    def lost(self, epoch: int) -> None:
        """Forget a route."""
        self.medians.pop(epoch, None)
        self._ended.pop(epoch, None)

    def _ends(self, lane: Lane, now: float) -> float:
        """Return in how many seconds one more request would end."""
        service = self.medians.get(lane.epoch, 0.0)
        if not lane.running:
            return service
        began = max(min(lane.running.values()), self._ended.get(lane.epoch, float("-inf")))
        return max(0.0, service - (now - began)) + len(lane.running) * service
