"""Which of its plan variants a request takes: the timing at the start, and one policy per objective.

A variant is a complete set of programs of a deployment. Policies know variants by their epochs, and of each only how many requests are
in flight and how long others took; `medians` holds what was measured last, in seconds by epoch, and `serving` is the variant that takes
all requests but trials, or None if all do. Laws: a policy never chooses a variant that is full; for the same calls it makes the same
choices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bbgrap.protocol.tensors import Inputs

WARM_UP = 2
"""Synthetic requests per variant that are not counted: connections, caches and memory pools settle in them."""
ROUNDS = 7
"""Synthetic requests per variant that are counted. Chosen: a median of so many outlives a neighbour that is busy for three turns."""
TIMING_S = 4.0
"""After this long every variant is timed with what there is, but with one counted request at least."""
PROBE_WITHIN_S = 30.0
"""How long a synthetic request may take; then the variants are not timed this way."""

WINDOW = 11
"""Requests of the serving variant whose median is watched."""
DRIFT = 0.2
"""How far that median may go before all variants are timed again. Chosen: above the noise of a shared network, below what a user feels."""
TRIAL_SHARE = 20
"""While variants are timed again, one request in so many takes another variant than the one that serves."""
RIVAL_SHARE = 2
"""So does every second one while the serving one takes longer than the others did, or nothing is known: trials cost nothing then."""
TRIALS = 6
"""Live requests per variant in such a comparison; the first one finds cold caches and is not counted."""
GAIN = 0.05
"""How much faster a variant must be to replace the one that serves."""
AGAIN_S = 60.0
"""How long after another variant has begun to serve all are compared again, twice as long each further time: what has made one slow, a
throttled node or a busy moment, may be over, and the one that serves does not drift when it is."""
LATEST_AGAIN_S = 600.0

SMOOTHING = 0.25
"""Weight of the newest service time in the running mean: it follows a change within about eight requests."""
STALE = 100.0
"""After so many times its service time without a request a variant of a stream is tried anew: what has made it slow may be gone."""


@dataclass(slots=True)
class InFlightQueue:
    """A variant as policies see it: at most `limit` requests are `running`, by their number, with the time they started in seconds.

    Those of clients, synthetic ones, and second runs that verify.
    """

    epoch: int
    limit: int
    running: dict[int, float] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether one more request may start."""
        return len(self.running) < self.limit


class Timing:
    """Times variants in turns, one request at a time: what disturbs the machines for a while disturbs all variants of a turn."""

    def __init__(self, epochs: Sequence[int], inputs: Inputs, until: float) -> None:
        """Time these variants with synthetic inputs, best until that time."""
        self.inputs = inputs
        self._samples: dict[int, list[float]] = {epoch: [] for epoch in epochs}
        self.until = until

    def next(self, now: float) -> int | None:
        """Return the variant whose turn it is, or None if enough is known."""
        epoch = min(self._samples, key=lambda epoch: len(self._samples[epoch]), default=None)
        enough = 2 if now > self.until else WARM_UP + ROUNDS
        return None if epoch is None or len(self._samples[epoch]) >= enough else epoch

    def took(self, epoch: int, seconds: float) -> None:
        """Take the time of a request."""
        self._samples[epoch].append(seconds)

    def forget(self, epoch: int) -> bool:
        """Leave a variant out: it is gone; returns whether it was one of these."""
        return self._samples.pop(epoch, None) is not None

    def give_up(self) -> None:
        """Forget all times: the variants cannot be timed this way."""
        self._samples.clear()

    def medians(self) -> dict[int, float]:
        """Return the typical time of each variant that was timed, in seconds."""
        return {epoch: median(times[min(WARM_UP, len(times) - 1) :]) for epoch, times in self._samples.items() if times}


class LowestLatency:
    """For the latency of single requests: the fastest variant serves; when its median drifts, the others are tried.

    If it has become slower than some of them were, these alone are tried first and often: what made it slow may have made them slow, too.
    Without a drift they are tried again, too, ever more seldom.
    Invariants: `serving` is one of the variants; a comparison (`_trial`) holds times of the variants that are left only.
    """

    def __init__(self) -> None:
        self.medians: Mapping[int, float] = {}
        self.serving = 0
        self._epochs: list[int] = []
        self._open: list[int] = []
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._baseline: float | None = None
        self._trial: dict[int, list[float]] | None = None
        self._rivals: frozenset[int] = frozenset()
        self._share = TRIAL_SHARE
        self._turn = 0
        self._settled = float("inf")
        self._again_s = AGAIN_S
        self.drifted_s = 0.0
        """What requests take on the fastest, if that is not what they took, in seconds; 0: it is. Who has seen that sets it to 0."""

    def add(self, epoch: int) -> None:
        """Know one more variant; a comparison that goes on begins anew."""
        self._epochs.append(epoch)
        if self._trial is not None:
            self._trial, self._rivals = {}, frozenset()

    def best(self, epochs: Sequence[int]) -> int:
        """Return which of these takes requests, one at least: the one that serves, unless another is known to be faster, or the fastest."""
        fastest = min(epochs, key=self._takes)
        if self.serving not in epochs or self._takes(fastest) <= (1 - GAIN) * self._takes(self.serving, 0.0):
            return fastest
        return self.serving

    def _takes(self, epoch: int, unknown: float = float("inf")) -> float:
        return self.medians.get(epoch, unknown)

    def serve(self, epoch: int) -> None:
        """Let a variant serve that nothing is known of."""
        self._settle(self.medians, epoch)

    def begin(self, medians: Mapping[int, float]) -> None:
        """Let the fastest variant serve, or the first of those that are hardly slower; they stand in the order in which they are preferred.

        If nothing could be timed, compare with the first live requests, every second one.
        """
        if medians:
            least = min(medians.values())
            self._settle({**self.medians, **medians}, next(epoch for epoch, took in medians.items() if (1 - GAIN) * took <= least))
        else:
            self._compare(share=RIVAL_SHARE)

    def renew(self, before: int, after: int) -> None:
        """Know a variant, of which the same as before is known, under another epoch."""
        if before in self.medians:
            self.medians = {**self.medians, after: self.medians[before]}
        if self.serving == before:
            self.serving = after

    def choose(self, queues: Sequence[InFlightQueue], now: float, *, tries: bool = True) -> InFlightQueue | None:
        """Return the serving variant; during a comparison, now and then the least tried of the others, if nothing else is in flight.

        The variants that take requests are those of `queues`, one at least; with `tries` false this one takes no part in a comparison.
        """
        self._open = [queue.epoch for queue in queues]
        epoch = self.best(self._open)
        if epoch != self.serving and self.serving in self._open:
            self._settle(self.medians, epoch)
        self._settled = min(self._settled, now)
        if self._trial is None and now >= self._settled + self._again_s:
            self._again_s = min(LATEST_AGAIN_S, 2 * self._again_s)
            self._compare()
        mine = next(queue for queue in queues if queue.epoch == epoch)
        if tries and self._trial is not None and not any(queue.running for queue in queues):
            self._turn += 1
            others = [queue for queue in queues if queue is not mine and queue.epoch in self._compared]
            if others and self._turn % self._share == 0:
                return min(others, key=lambda queue: len((self._trial or {}).get(queue.epoch, ())))
        return mine if mine.has_room else None

    def done(self, queue: InFlightQueue, started: float, now: float, *, alone: bool) -> bool:
        """Take the time of a request that ended well, if it ran alone; returns whether another variant serves now."""
        if not alone:
            return False
        if queue.epoch == self.serving:
            self._recent.append(now - started)
            self._watch()
        if self._trial is not None:
            self._trial.setdefault(queue.epoch, []).append(now - started)
            return self._decide(self._trial)
        return False

    def lost(self, epoch: int) -> None:
        """Forget a variant; if it served, the fastest of the others does."""
        self._epochs.remove(epoch)
        self.medians = {known: seconds for known, seconds in self.medians.items() if known != epoch}
        if epoch == self.serving and self._epochs:
            self._settle(self.medians, self.best(self._epochs))
        elif self._trial is not None:
            self._trial.pop(epoch, None)

    def _watch(self) -> None:
        if len(self._recent) < WINDOW:
            return
        current = median(self._recent)
        if self._baseline is None:
            # Synthetic requests rest between each other: a node that may compute for a part of each moment only is slower without.
            self._baseline = self.medians.get(self.serving, current)
        rivals = frozenset(epoch for epoch in self._open if epoch != self.serving and self._takes(epoch) < current)
        if self._trial is not None and (self._share == RIVAL_SHARE or not rivals):
            return  # what is compared already goes on, unless there are rivals only now: they are tried first and often
        if abs(current - self._baseline) > DRIFT * self._baseline:
            self.drifted_s = min([current, *(self._takes(epoch) for epoch in self._open if epoch != self.serving)])
            self._baseline = current
            self._compare(rivals, RIVAL_SHARE if rivals else TRIAL_SHARE)

    @property
    def _compared(self) -> frozenset[int]:
        """The variants that a comparison is about, of those that take requests."""
        there = frozenset(self._open)
        return (there & (self._rivals | {self.serving}) if self._rivals else there) or there

    def _compare(self, rivals: frozenset[int] = frozenset(), share: int = TRIAL_SHARE) -> None:
        if len(self._epochs) == 1:
            self._settle({**self.medians, **({self.serving: median(self._recent)} if self._recent else {})}, self.serving)
            return
        self._trial, self._rivals, self._share = {}, rivals, share
        self._turn = 0
        self._recent.clear()

    def _decide(self, trial: Mapping[int, Sequence[float]]) -> bool:
        """End a comparison if every variant that it is about has been tried often enough."""
        compared = [epoch for epoch in self._open if epoch in self._compared]
        if any(len(trial.get(epoch, ())) < TRIALS for epoch in compared):
            return False
        medians = {epoch: median(trial[epoch][1:]) for epoch in compared}
        best, before = min(compared, key=lambda epoch: medians[epoch]), self.best(compared)
        keep, of_some = medians[best] > (1 - GAIN) * medians[before], bool(self._rivals)
        self._settle({**self.medians, **medians}, before if keep else best)
        self.drifted_s = min(map(self._takes, self._open))
        if of_some:  # it may have been slow for a moment: what was known of all is old
            self._compare()
        return self.serving != before

    def _settle(self, medians: Mapping[int, float], serving: int) -> None:
        self._settled, self._again_s = float("inf"), self._again_s if serving == self.serving else AGAIN_S
        self.medians, self.serving = dict(medians), serving
        self._trial, self._baseline, self._rivals, self._share = None, None, frozenset(), TRIAL_SHARE
        self._recent.clear()


class LeastFinishTime:
    """For streams of requests: all variants serve, each as fast as it can; none is idle while a request waits.

    Invariants: `medians` is what the variants' latest requests took each, without waiting for those before them.
    """

    serving: int | None = None
    drifted_s = 0.0
    """As of the other; what it takes is no matter here."""

    def __init__(self) -> None:
        """Start without any times: every variant is tried."""
        self.medians: dict[int, float] = {}
        self._predicted: Mapping[int, float] = {}
        self._ended: dict[int, float] = {}

    def add(self, epoch: int) -> None:
        """Know one more variant."""

    def begin(self, medians: Mapping[int, float]) -> None:
        """Start from measured times."""
        self.medians = dict(medians)

    def renew(self, before: int, after: int) -> None:
        """Know a variant, of which the same as before is known, under another epoch."""
        if before in self.medians:
            self.medians[after] = self.medians[before]

    def expect(self, predicted: Mapping[int, float]) -> None:
        """Go by predicted times until there are measured ones, in seconds by epoch."""
        self._predicted = predicted

    def choose(self, queues: Sequence[InFlightQueue], now: float, *, tries: bool = True) -> InFlightQueue | None:
        """Return the variant that is predicted to end one more request first; if it is full, an idle one, or none.

        A busy slow variant gets its next request when its own is nearly done: earlier, and the end of a stream would wait for it.
        """
        del tries
        best = min(queues, key=lambda queue: (self._ends(queue, now), not queue.has_room))
        if best.has_room:
            return best
        idle = [queue for queue in queues if not queue.running]
        return min(idle, key=lambda queue: self._ends(queue, now), default=None)

    def done(self, queue: InFlightQueue, started: float, now: float, *, alone: bool) -> bool:
        """Learn how long the variant works on a request."""
        del alone
        seconds = now - max(started, self._ended.get(queue.epoch, started))
        known = seconds if self._is_stale(queue.epoch, started) else self.medians.get(queue.epoch, seconds)
        self.medians[queue.epoch] = known + SMOOTHING * (seconds - known)
        self._ended[queue.epoch] = now
        return False

    def lost(self, epoch: int) -> None:
        """Forget a variant."""
        self.medians.pop(epoch, None)
        self._ended.pop(epoch, None)

    def _is_stale(self, epoch: int, now: float) -> bool:
        """Whether a variant has done nothing for so long that its time is not known any more."""
        return now - self._ended.get(epoch, now) > STALE * self.medians.get(epoch, 0.0)

    def _ends(self, queue: InFlightQueue, now: float) -> float:
        """Return in how many seconds one more request would end."""
        service = self.medians.get(queue.epoch, self._predicted.get(queue.epoch, 0.0))
        if not queue.running:
            return 0.0 if self._is_stale(queue.epoch, now) else service
        began = max(min(queue.running.values()), self._ended.get(queue.epoch, float("-inf")))
        return max(0.0, service - (now - began)) + len(queue.running) * service


Policy = LowestLatency | LeastFinishTime
