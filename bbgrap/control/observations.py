"""What the coordinator learns from recorded requests: how long every segment took, and whether a node has slowed down.

    measuring: made-up requests          -> the model's factors, and what the plan took when it was new
    a client's recorded request          -> the model's factors
    the route that serves drifts         -> its next requests: the model's factors; where a node has slowed down, a new plan beside this one

Laws: nobody waits for records that nobody asked for; for one plan there is one new plan at a time, and not before `MOVE_EVERY` requests.
"""

from __future__ import annotations

from bbgrap.auto.calibrate import message_factors
from bbgrap.control.calibrations import Calibrations, medians_of, slowed
from bbgrap.control.coordinator_events import Instruction, Tell
from bbgrap.control.deployments import Deployments
from bbgrap.control.plans import Deployment, Route
from bbgrap.control.recordings import Recordings
from bbgrap.errors import RemoteProtocolError
from bbgrap.report.trace import HOST_NAME, segment_seconds, timeline_of
from bbgrap.runtime.recording import Record

RECORDED = 3
"""Requests of a plan that are recorded to learn from them."""

DISTURBED = 1.3
"""How many times as long as its route usually takes a made-up request may take, to be learnt from. Chosen: a busy neighbour makes two cores
1.75 times as slow for half a second (decision 16), and three requests in a row are over sooner."""

MOVE_EVERY = 200
"""Requests between two new plans for the same reason."""


class Observations:
    """Requests that are recorded without having been asked for, and what all recorded ones tell.

    Invariants: `epochs` are the routes of those that are not finished, by their number.
    """

    def __init__(self, deployments: Deployments, recordings: Recordings, calibrations: Calibrations) -> None:
        """Start without any."""
        self.epochs: dict[int, int] = {}
        self._deployments = deployments
        self._recordings = recordings
        self._calibrations = calibrations

    def ask(self, deployment: Deployment, route: Route) -> None:
        """Let the next requests on a route be recorded, once, if its predictions count."""
        if deployment.is_calibrated and route.segments and not route.asked:
            route.asked, route.records_due = True, RECORDED

    def begin(self, number: int, route: Route) -> None:
        """Record a request."""
        route.records_due -= 1
        self.epochs[number] = route.epoch
        self._recordings.begin(number, route.devices)

    def complete(self, number: int, now: float) -> list[Instruction] | None:
        """Learn from a request if all of its records are there; None if they are not."""
        complete, found = self._recordings.complete(number), self._deployments.find(self.epochs[number])
        if complete is None:
            return None
        self.forget(number)
        return [] if found is None else self.learn(*found, complete[1], now)

    def forget(self, number: int) -> None:
        """Wait no longer for the records of a request."""
        if self.epochs.pop(number, None) is not None:
            self._recordings.forget(number)

    def take_another(self, number: int, took_s: float, usual_s: float) -> bool:
        """Learn nothing from a request that took so long beside others of its route, but from another one; only so often."""
        found = self._deployments.find(self.epochs.get(number, 0))
        if found is None or took_s <= DISTURBED * usual_s or found[1].disregarded >= RECORDED:
            return False
        found[1].disregarded += 1
        found[1].records_due += 1
        self.forget(number)
        return True

    def give_up(self, number: int) -> None:
        """Note that a request cannot be recorded: do not try with more."""
        found = self._deployments.find(self.epochs.get(number, 0))
        if found is not None:
            found[1].records_due, found[1].drifted = 0, False
        self.forget(number)

    def learn(self, deployment: Deployment, route: Route, records: tuple[Record, ...], now: float) -> list[Instruction]:
        """Take what the segments of one request took."""
        if not route.segments:
            return []
        try:
            timeline = timeline_of(records, [*(member.name for member in deployment.members), HOST_NAME])
        except RemoteProtocolError as error:
            return [Tell(f"deployment {deployment.epoch}: nothing is learnt from {error}")]
        inside = {(device, number) for device, segments in enumerate(route.segments) for number in range(len(segments))}
        seconds = {key: seconds for key, (_, seconds) in segment_seconds(timeline).items() if key in inside}
        route.recorded.append(seconds)
        route.messages.append(message_factors(deployment.cluster, timeline))
        medians = medians_of(route.recorded)
        done: list[Instruction] = [
            self._calibrations.take(deployment.plan.model, deployment.cluster, route.segments, medians, medians_of(route.messages))
        ]
        if not route.records_due and route.epoch not in self.epochs.values():
            if route.drifted:
                route.drifted = False
                done += self._judge(deployment, route, now)
            elif not route.settled:
                route.settled = medians
        return done

    def settle(self, deployment: Deployment) -> list[Instruction]:
        """Note that the made-up requests are over: later times are compared with theirs."""
        done: list[Instruction] = []
        for route in deployment.routes:
            route.records_due = 0
            if route.recorded:
                route.settled = medians_of(route.recorded)
                done.append(
                    Tell(f"deployment {deployment.epoch}: {route.name} was recorded {len(route.recorded)} times to correct predictions")
                )
        return done

    def answered(self, deployment: Deployment) -> None:
        """Note that a request was answered: the first ones of another route that serves are recorded, and the next ones after a drift."""
        plan, route = deployment.plan, deployment.serving
        plan.answered += 1
        drift = deployment.policy.drift()
        if route is None or len(route.parts) < 2:
            return
        self.ask(deployment, route)
        if drift and deployment.is_calibrated and route.settled and plan.answered >= plan.next_move:
            route.recorded.clear()
            route.messages.clear()
            route.drifted, route.records_due = True, RECORDED

    def _judge(self, deployment: Deployment, route: Route, now: float) -> list[Instruction]:
        """Plan anew if one node has slowed down."""
        plan = deployment.plan
        found = slowed(route.settled, medians_of(route.recorded), [member.name for member in deployment.members])
        if found is None or plan.epoch != deployment.epoch:
            return []
        plan.next_move = plan.answered + MOVE_EVERY
        name, ratio = found
        told = f"deployment {deployment.epoch}: '{name}' has become {ratio:.2f} times as slow as the other nodes"
        _, begun = self._deployments.begin_beside(deployment, now)
        return [Tell(f"{told}; planning anew to move rows"), *begun]
