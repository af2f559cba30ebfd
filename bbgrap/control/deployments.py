"""Plans and their deployments: from a request to prepare a model to agents that have it loaded.

    PrepareModel or RunModel -> StartPlanning -> Planned -> Deploy to every device that takes part -> Deployed by all -> HostDeploy

What plans, routes and deployments are: `coordinator_plans`. Laws: a plan has at most one current deployment; an ended deployment is
forgotten by everyone who had a part in it; an agent loads one route of a deployment at a time, so that weights they share travel once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_events import (
    HostDeploy,
    HostRelease,
    Identity,
    Instruction,
    Planned,
    PlannedRoute,
    Settings,
    StartPlanning,
    Tell,
    ToAgent,
    ToClient,
)
from bbgrap.control.membership import Member, Members
from bbgrap.control.plans import Deployment, Plan, Route
from bbgrap.control.states import Role, Tracker
from bbgrap.control.variants import Balanced, Fastest, Lane
from bbgrap.graph.types import TensorType
from bbgrap.protocol.client_messages import Progress
from bbgrap.protocol.messages import Deploy, Peer, Release


class Deployments:
    """All plans and live deployments.

    Invariants: `by_epoch` holds no ended deployment.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        """Start without plans."""
        self.settings = settings
        self.members = members
        self.plans: dict[str, Plan] = {}
        self.by_epoch: dict[int, Deployment] = {}
        self._epochs = count(settings.first_epoch)

    def remember(self, plan: Plan) -> Plan:
        """Return the plan of that key, the known one if there is one; the least recently asked one makes room."""
        known = self.plans.pop(plan.key, plan)
        self.plans[plan.key] = known
        while len(self.plans) > self.settings.max_plans:
            del self.plans[next(iter(self.plans))]
        return known

    def current(self, plan: Plan) -> Deployment | None:
        """Return the plan's deployment, be it ready or on its way."""
        return None if plan.epoch is None else self.by_epoch.get(plan.epoch)

    def is_up_to_date(self, deployment: Deployment) -> bool:
        """Whether a new deployment would see the same agents with the same profiles."""
        alive = self.members.alive()
        same = [m.identity for m in alive] == [m.identity for m in deployment.members]
        return same and self.members.cluster(alive) == deployment.cluster

    def begin(self, plan: Plan, now: float) -> tuple[Deployment, list[Instruction]]:
        """Start a deployment of a plan over all agents that live; there must be one."""
        done = self._make_room()
        old = self.current(plan)
        deployment, start = self._new(plan, now)
        plan.epoch = deployment.epoch
        if old is not None:
            done += self._move(old, deployment)
        return deployment, [*done, start]

    def _move(self, old: Deployment, new: Deployment) -> list[Instruction]:
        """Let whoever waits for a deployment wait for the one that replaces it."""
        new.callers, old.callers = [*new.callers, *old.callers], []
        new.waiting, old.waiting = [*new.waiting, *old.waiting], []
        return self.retire(old)

    def _new(self, plan: Plan, now: float) -> tuple[Deployment, StartPlanning]:
        members = self.members.alive()
        epoch = next(self._epochs)
        cluster = self.members.cluster(members)
        tracker = Tracker(Role.DEPLOYMENT, f"epoch {epoch}")
        deployment = Deployment(epoch, plan, members, cluster, tracker, now, Fastest([epoch]))
        self.by_epoch[epoch] = deployment
        return deployment, StartPlanning(epoch, plan.files, plan.shapes, cluster, plan.options)

    def retire(self, deployment: Deployment) -> list[Instruction]:
        """End a deployment that was replaced, once its last request is done."""
        replaced = deployment.plan.epoch != deployment.epoch
        if not replaced or deployment.running or deployment.waiting or deployment.epoch not in self.by_epoch:
            return []
        return self.end(deployment, "released" if deployment.tracker.may("released") else "stop")

    def _make_room(self) -> list[Instruction]:
        """Release what is idle, the least recently used first, as long as there is too much: routes that do not serve, then deployments.

        A deployment without its other routes still serves; one that is gone takes a search when it is asked for again.
        """
        done: list[Instruction] = []
        while sum(d.load for d in self.by_epoch.values()) >= self.settings.max_deployments:
            idle = [d for d in self.by_epoch.values() if d.tracker.state == "ready" and not d.running and not d.waiting]
            if not idle:
                break
            idle.sort(key=lambda d: d.used)
            lavish = next((d for d in idle if d.serving is not None and len(d.routes) > 1), None)
            done += self.end(idle[0], "released") if lavish is None else self._keep_serving_only(lavish)
        return done

    def _keep_serving_only(self, deployment: Deployment) -> list[Instruction]:
        spare = [route for route in deployment.routes if route is not deployment.serving]
        told = Tell(f"deployment {deployment.epoch}: {', '.join(route.name for route in spare)} released, to make room")
        return [told, *(instruction for route in spare for instruction in self.drop(deployment, route))]

    def planned(self, event: Planned, now: float) -> list[Instruction]:
        """Deploy what was planned to the agents that take part."""
        deployment = self.by_epoch[event.epoch]
        deployment.tracker.move("planned")
        own = PlannedRoute(event.name or deployment.plan.options.planner, event.artifacts, event.report)
        numbered = [(event.epoch, own), *((next(self._epochs), other) for other in event.alternatives)]
        deployment.routes = [self._route(deployment, epoch, planned) for epoch, planned in numbered]
        deployment.policy = Balanced() if deployment.is_stream else Fastest([epoch for epoch, _ in numbered])
        return self.advance(deployment, now)

    def _route(self, deployment: Deployment, epoch: int, planned: PlannedRoute) -> Route:
        devices = list(zip(deployment.members, planned.artifacts.devices, strict=True))
        addresses = [(m.name, m.join.data_address) for m, _ in devices] + [(COORDINATOR, self.settings.data_address)]
        peers = tuple(Peer(device, name, address) for device, (name, address) in enumerate(addresses))
        working = {device: m.identity for device, (m, part) in enumerate(devices) if part.schedule.steps}
        parts = {
            identity: Deploy(epoch, peers, planned.artifacts.devices[device].schedule, planned.artifacts.devices[device].segments)
            for device, identity in working.items()
        }
        lane = Lane(epoch, self.settings.in_flight_per_node * max(1, len(parts)))
        nodes = tuple(peer for peer in peers if peer.device in working)
        return Route(planned.name, lane, planned.artifacts.host, planned.report, parts, nodes, planned.artifacts.weights)

    def advance(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Become the host of routes that are loaded, deploy those whose agents load no other one, and tell who waits how far it is."""
        done: list[Instruction] = []
        busy: set[Identity] = set()
        for route in deployment.routes:
            if not route.begun and not busy & route.parts.keys():
                route.begun, deployment.used = True, now
                route.pending = dict.fromkeys(route.parts, now)
                done += [ToAgent(identity, deploy) for identity, deploy in route.parts.items()]
            busy |= route.parts.keys() if not route.begun else route.pending.keys()
            if route.begun and not route.pending and not route.ready:
                route.ready, route.weights = True, {}
                names = ", ".join(peer.name for peer in route.nodes)
                done += [HostDeploy(route.epoch, route.host, route.nodes), Tell(f"deployment {route.epoch} is ready on {names}")]
        return [*done, *self.progress(deployment)]

    def progress(self, deployment: Deployment) -> list[Instruction]:
        """Tell those who wait how far a deployment is."""
        if deployment.tracker.state == "planning":
            stage, done, total = "planning", 0, 1
        else:
            stage = "deploying" if deployment.tracker.state == "loading" else "measuring"
            total = sum(len(route.parts) for route in deployment.routes)
            done = total - sum(len(route.pending if route.begun else route.parts) for route in deployment.routes)
        return [ToClient(identity, Progress(call, stage, done, total)) for identity, call in deployment.callers]

    def find(self, epoch: int) -> tuple[Deployment, Route] | None:
        """Return the route of that number, and its deployment."""
        return next(((d, route) for d in self.by_epoch.values() for route in d.routes if route.epoch == epoch), None)

    def missing(self, member: Member, epoch: int, digests: Iterable[str], now: float) -> list[Instruction]:
        """Send an agent the weights it lacks."""
        found = self.find(epoch)
        if found is None or member.identity not in found[1].parts:
            return [ToAgent(member.identity, Release(epoch))]
        deployment, route = found
        deployment.tracker.move("WeightsMissing")
        if member.identity in route.pending:
            route.pending[member.identity] = now
        segments = route.parts[member.identity].segments
        types: dict[str, TensorType] = {ref.digest: ref.type for s in segments for ref in s.weights.values()}
        wanted = [d for d in digests if d in types]
        size = sum(types[d].nbytes for d in wanted)
        told = Tell(f"deployment {epoch} sends weights to '{member.name}': {len(wanted)} slices, {size:,} bytes")
        return [told, *member.feed(wanted, route.weights, types)]

    def progressed(self, member: Member, now: float) -> None:
        """Note that an agent takes in weights: what is still loading on it is neither stuck nor too slow."""
        for deployment, route in self._loading():
            if member.identity in route.pending:
                route.pending[member.identity] = deployment.used = now

    def deployed(self, member: Member, epoch: int, now: float) -> list[Instruction]:
        """Note that an agent is done."""
        found = self.find(epoch)
        if found is None:
            return [ToAgent(member.identity, Release(epoch))]
        deployment, route = found
        deployment.tracker.move("Deployed")
        route.pending.pop(member.identity, None)
        return self.advance(deployment, now) if deployment.tracker.state == "loading" else []

    def drop(self, deployment: Deployment, route: Route) -> list[Instruction]:
        """Take a route out of a deployment that goes on. Its requests are the caller's to move or fail."""
        deployment.tracker.move("route lost")
        deployment.routes.remove(route)
        deployment.policy.lost(route.epoch)
        if deployment.measuring is not None:
            deployment.measuring.forget(route.epoch)
        return self._release(route)

    def end(self, deployment: Deployment, event: str) -> list[Instruction]:
        """Forget a deployment everywhere. Its callers and requests are the caller's to move or fail."""
        deployment.tracker.move(event)
        del self.by_epoch[deployment.epoch]
        return [instruction for route in deployment.routes for instruction in self._release(route)]

    def _release(self, route: Route) -> list[Instruction]:
        living = [identity for identity in route.parts if route.begun and identity in self.members.by_identity]
        return [*(ToAgent(identity, Release(route.epoch)) for identity in living), HostRelease(route.epoch)]

    def _loading(self) -> Iterator[tuple[Deployment, Route]]:
        for deployment in list(self.by_epoch.values()):
            if deployment.tracker.state == "loading":
                yield from ((deployment, route) for route in list(deployment.routes) if route.pending)

    @property
    def loading_agents(self) -> frozenset[Identity]:
        """Who has been told to load a deployment and has not said that it has."""
        return frozenset(identity for _, route in self._loading() for identity in route.pending)

    def overdue(self, now: float) -> tuple[list[tuple[Deployment, Route]], list[Instruction]]:
        """Return the routes that take too long to load, and say again what other agents have not answered."""
        slow, again = [], list[Instruction]()
        for deployment, route in self._loading():
            if now - deployment.used > self.settings.deploy_within_s:
                slow.append((deployment, route))
            for identity, said in route.pending.items():
                if now - said > self.settings.resend_s:
                    route.pending[identity] = now
                    again.append(ToAgent(identity, route.parts[identity]))
        return slow, again
