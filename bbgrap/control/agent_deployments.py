"""The deployments of an agent, from `Deploy` to `Release`, over the end of the worker that had loaded them.

    Deploy -> CheckWeights -> (WeightsMissing, chunks) -> Deploy to the worker -> Deployed
    WorkerLost ... WorkerReady -> CheckWeights -> ... -> Deployed

One is looked at and loaded after the other: first what somebody waits for (`LoadNext`), then what is new, then what is loaded again.

A worker is told of a release while it looks for weights or loads; its answer comes all the same, perhaps when the epoch has been offered
again. Laws: such late answers are not those to the new offer; nothing is asked of a worker that is not there; what ended its worker while
it was loaded is not loaded again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from bbgrap.control.agent_events import AgentInstruction, CheckWeights, DeploymentLoaded, DropBefore, WeightArrived, WeightsChecked
from bbgrap.control.lifecycles import Lifecycle, Tracker
from bbgrap.control.to_coordinator import ToCoordinator
from bbgrap.protocol.messages import (
    Abandon,
    Deploy,
    Deployed,
    DeploymentFailed,
    Release,
    WeightChunk,
    WeightsMissing,
    WeightStored,
    WorkerLost,
)

MAX_DEPLOYMENTS = 512
"""Deployments an agent keeps: more than a coordinator has loaded on it, scaled ones among them, so that only a broken one is refused."""
ASK_AGAIN_S = 10.0
"""Weights that do not come are asked for again after this long without any chunk, or any part of one."""
SAID_AGAIN_S = 5.0
"""The same when their deployment is said again: the coordinator has heard of none, either."""
MAX_ABANDONED = 64
"""Abandoned requests of which the next worker is told."""


@dataclass(slots=True)
class _Deployment:
    deploy: Deploy
    tracker: Tracker
    missing: set[str] = field(default_factory=set)
    heard: float = 0.0


class AgentDeployments:
    """What one agent holds.

    Invariants: `by_epoch` holds no released deployment and at most `MAX_DEPLOYMENTS`; `missing` of one is what it waits for.
    """

    def __init__(self) -> None:
        """Hold nothing, with a worker that is ready."""
        self.by_epoch: dict[int, _Deployment] = {}
        self.has_worker = True
        self._doubtful = 0
        self._unheard: dict[int, bool] = {}
        """Epochs that this worker has not heard of, and whether one before it had: these wait for the others. It hears of the next one when
        it has looked for the weights of `_looked_at`."""
        self._looked_at = 0
        self._urgent: set[int] = set()
        """Epochs that somebody waits for, and that are not loaded."""
        self._abandoned: deque[Abandon] = deque(maxlen=MAX_ABANDONED)
        self._late: dict[int, str] = {}
        """The states in which epochs were released whose worker looked for weights or loaded: of each one answer will come."""

    @property
    def ready(self) -> tuple[int, ...]:
        """The epochs that are loaded."""
        return tuple(epoch for epoch, deployment in self.by_epoch.items() if deployment.tracker.state == "ready")

    # --- what the coordinator wants -----------------------------------------------------------------------------------------------

    def deploy(self, deploy: Deploy, now: float) -> list[AgentInstruction]:
        """Take a deployment, or say how far it is."""
        known = self.by_epoch.get(deploy.epoch)
        if known is not None:
            known.tracker.move("Deploy")
            if known.tracker.state == "ready":
                return [ToCoordinator(Deployed(deploy.epoch))]
            # What is on its way is not asked for again: the coordinator would begin anew.
            stalled = known.missing and now - known.heard > SAID_AGAIN_S
            return [ToCoordinator(WeightsMissing(deploy.epoch, tuple(sorted(known.missing))))] if stalled else []
        if len(self.by_epoch) >= MAX_DEPLOYMENTS:
            return [ToCoordinator(DeploymentFailed(deploy.epoch, f"the agent keeps at most {MAX_DEPLOYMENTS} deployments"))]
        tracker = Tracker(Lifecycle.AGENT_DEPLOYMENT, f"epoch {deploy.epoch}")
        self.by_epoch[deploy.epoch] = _Deployment(deploy, tracker, heard=now)
        # Answers of two loads of an epoch may change places: the worker begins when it has told of the last one.
        if not self.has_worker or deploy.epoch in self._late:
            return []
        self._unheard[deploy.epoch] = False
        return self._look_at_next(0)

    def load_next(self, epoch: int) -> list[AgentInstruction]:
        """Load a deployment before those that nobody waits for: after what is loaded now, and others that somebody waits for."""
        deployment = self.by_epoch.get(epoch)
        if deployment is None or deployment.tracker.state == "ready":
            return []
        self._urgent.add(epoch)
        return [] if self._unheard.pop(epoch, None) is None else [_check(deployment.deploy)]

    def _is_late(self, epoch: int, *states: str) -> bool:
        """Whether an answer that has come is that to an offer that was released in one of these states."""
        if self._late.get(epoch) not in states:
            return False
        del self._late[epoch]
        return True

    def store(self, chunk: WeightChunk, now: float) -> list[AgentInstruction]:
        """Take a piece of a weight; without a worker it is lost, and asked for again."""
        self.coming(now)
        return [chunk] if self.has_worker else []

    def coming(self, now: float) -> None:
        """Note that a piece of a weight is on its way: who asked again would have all that waits behind it sent twice."""
        for deployment in self.by_epoch.values():
            deployment.heard = now

    def abandon(self, message: Abandon) -> list[AgentInstruction]:
        """Forget a request; its deployment may be gone already, and the worker still in a kernel of it."""
        self._abandoned.append(message)
        return [message] if self.has_worker else []

    def abandon_before(self, request: int) -> list[AgentInstruction]:
        """Forget the requests with lower numbers."""
        return [DropBefore(request)] if self.has_worker and request else []

    def release(self, epoch: int, event: str) -> list[AgentInstruction]:
        """Let a deployment go, if it is here; `event` is the move that it makes."""
        deployment = self.by_epoch.pop(epoch, None)
        if deployment is None:
            return []
        state = deployment.tracker.state
        deployment.tracker.move(event)
        self._urgent.discard(epoch)
        if self._unheard.pop(epoch, None) is not None:
            return []
        if self.has_worker and event != "load failed" and state in {"offered", "loading"}:
            self._late.setdefault(epoch, state)
        return [Release(epoch)] if self.has_worker else []

    def release_others(self, kept: Collection[int]) -> list[AgentInstruction]:
        """Let all go but those."""
        return [i for epoch in list(self.by_epoch) if epoch not in kept for i in self.release(epoch, "reset")]

    def ask_again(self, now: float) -> list[AgentInstruction]:
        """Ask for weights of which nothing has come for long."""
        done: list[AgentInstruction] = []
        asked: set[str] = set()
        for epoch, deployment in self.by_epoch.items():
            if deployment.tracker.state == "fetching" and now - deployment.heard > ASK_AGAIN_S:
                deployment.heard = now
                done.append(ToCoordinator(WeightsMissing(epoch, tuple(sorted(deployment.missing - asked)))))
                asked |= deployment.missing
        return done

    # --- what happens to the worker -----------------------------------------------------------------------------------------------

    def answered(self, event: WeightsChecked | DeploymentLoaded, now: float) -> list[AgentInstruction]:
        """Take what a worker says of a deployment that it was to look at, or to load, and have it look at the next one."""
        done = self._checked(event, now) if isinstance(event, WeightsChecked) else self._loaded(event, now)
        return [*done, *self._look_at_next(event.epoch)]

    def _checked(self, event: WeightsChecked, now: float) -> list[AgentInstruction]:
        """Load a deployment whose weights are here, or ask for those that are not."""
        deployment = self.by_epoch.get(event.epoch)
        if self._is_late(event.epoch, "offered"):
            return [] if deployment is None else [_check(deployment.deploy)]
        if deployment is None:
            return []
        if event.missing:
            return self._fetch(deployment, event.missing, now)
        deployment.heard = now
        deployment.tracker.move("weights complete")
        return [deployment.deploy]

    def _fetch(self, deployment: _Deployment, missing: tuple[str, ...], now: float) -> list[AgentInstruction]:
        """Ask for the weights of a deployment, but not for those that are on their way for another one: all of them would come again."""
        coming = {digest for other in self.by_epoch.values() if other is not deployment for digest in other.missing}
        deployment.tracker.move("weights missing")
        deployment.heard, deployment.missing = now, set(missing)
        return [ToCoordinator(WeightsMissing(deployment.deploy.epoch, tuple(d for d in missing if d not in coming)))]

    def weight_arrived(self, event: WeightArrived, now: float) -> list[AgentInstruction]:
        """Acknowledge a piece; load what waited for the last one."""
        waiting = {epoch: d for epoch, d in self.by_epoch.items() if event.digest in d.missing}
        done: list[AgentInstruction] = []
        if event.fault:
            for epoch in waiting:
                done += [*self.release(epoch, "broken weight"), ToCoordinator(DeploymentFailed(epoch, event.fault))]
            return done
        done.append(ToCoordinator(WeightStored(event.digest, event.received)))
        for deployment in waiting.values():
            deployment.heard = now
            if event.complete:
                deployment.missing.discard(event.digest)
            if not deployment.missing:
                deployment.tracker.move("weights complete")
                done.append(deployment.deploy)
        return done

    def _loaded(self, event: DeploymentLoaded, now: float) -> list[AgentInstruction]:
        """Say that a deployment is ready, or why it cannot be; ask for weights that were damaged on disk meanwhile."""
        deployment = self.by_epoch.get(event.epoch)
        # What cannot look for weights says so as what cannot load.
        if self._is_late(event.epoch, "offered", "loading") or deployment is None:
            # Released while it was loading: what was loaded goes again, and if it is wanted again it is loaded anew.
            return [Release(event.epoch), *([] if deployment is None else [_check(deployment.deploy)])]
        if event.fault:
            failed = DeploymentFailed(event.epoch, event.fault, event.unreachable)
            return [*self.release(event.epoch, "load failed"), ToCoordinator(failed)]
        if event.missing:
            return self._fetch(deployment, event.missing, now)
        deployment.tracker.move("loaded")
        self._urgent.discard(event.epoch)
        return [ToCoordinator(Deployed(event.epoch))]

    def worker_ready(self, now: float) -> list[AgentInstruction]:
        """Load everything again: what somebody waits for, whole models, the oldest first, parts, the newest first.

        With a whole model each request can be answered, and what ends workers is mostly new; new parts replace old ones. What may have
        ended the last worker while it was loaded comes before all: nothing is computed meanwhile, so it is alone to blame.
        """
        self.has_worker = True
        for deployment in self.by_epoch.values():
            deployment.heard = now

        def order(deploy: Deploy) -> tuple[bool, bool, bool, int]:
            epoch, age = deploy.epoch, deploy.epoch if deploy.is_whole else -deploy.epoch
            return epoch != self._doubtful, epoch not in self._urgent, not deploy.is_whole, age

        self._unheard |= {deploy.epoch: True for deploy in sorted((d.deploy for d in self.by_epoch.values()), key=order)}
        # What was on its way to the last worker may come to this one.
        late = [message for message in self._abandoned if message.epoch in self.by_epoch]
        return [*late, *self._look_at_next(self._looked_at)]

    def _look_at_next(self, epoch: int) -> list[AgentInstruction]:
        """Go on with what waits for its turn if this epoch is what the worker was to look at: all loads before it have begun."""
        if epoch != self._looked_at:
            return []
        self._looked_at = min(self._unheard, key=self._unheard.__getitem__, default=0)
        self._unheard.pop(self._looked_at, None)
        return [_check(self.by_epoch[self._looked_at].deploy)] if self._looked_at else []

    def worker_lost(self, lost: WorkerLost) -> list[AgentInstruction]:
        """Wait for the next worker with everything but what ended this one while it was loaded."""
        self.has_worker = False
        self._late.clear()
        self._unheard.clear()
        self._looked_at = 0
        in_doubt = lost.ended_by.guilty and lost.epoch > 0
        self._doubtful = lost.loading if in_doubt else 0
        done: list[AgentInstruction] = []
        for epoch, deployment in list(self.by_epoch.items()):
            deployment.missing = set()
            if lost.ended_by.guilty and not in_doubt and epoch == lost.loading and deployment.tracker.state == "loading":
                deployment.tracker.move("ended the worker")
                del self.by_epoch[epoch]
                self._urgent.discard(epoch)
                done.append(ToCoordinator(DeploymentFailed(epoch, lost.reason)))
            else:
                deployment.tracker.move("worker lost")
        return done


def _check(deploy: Deploy) -> CheckWeights:
    return CheckWeights(deploy.epoch, tuple(deploy.weight_types))
