"""The coordinator's process: the real `CoordinatorMachine`, the host of the data plane, planners, and a disk that keeps what was saved."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bbgrap.cluster.types import COORDINATOR, NodeProfile
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.saved_state import SavedState, StoredPlan
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.data import SequenceStart
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.executor import Deployment, Executor, Key
from tests.campaign.simulation.models import scaled, standby_of, variants_of, with_state
from tests.campaign.simulation.network import Frame
from tests.campaign.simulation.workers import record_of

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

ADDRESS = "tcp://head:1"
TICK_S = 0.1
VERIFIED = 0.3
"""The part of the requests that is verified, in every second story."""
SYNC_S = 0.02
"""How long at most until what is saved is on disk."""
PLANNER_DEADLINE_S = 5.0
NO_PLAN = "the cut of the plan for others does not fit, or no node has the memory"


class HeadDisk:
    """What survives a coordinator."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.files: dict[str, int] = {}
        self.models: dict[str, tuple[c.ModelFile, ...]] = {}
        self.profiles: tuple[dict[str, NodeProfile], dict[str, NodeProfile]] = ({}, {})
        self.plans: dict[int, StoredPlan] = {}
        self.made: dict[int, tuple[PlannedVariant, ...]] = {}
        self.saw_agents = False


class Head(Process):
    """One life of the coordinator."""

    def __init__(self, world: World, disk: HeadDisk) -> None:
        super().__init__(world.clock)
        self.world, self.disk = world, disk
        self.name, self.address = COORDINATOR, ADDRESS
        disk.incarnation += 1
        disk.made = {job: made for job, made in disk.made.items() if job in disk.plans}  # as `Storage.read` does
        plans = tuple((plan, disk.made[job]) for job, plan in disk.plans.items() if job in disk.made)
        stored = SavedState(dict(disk.files), dict(disk.models), *map(dict, disk.profiles), plans, saw_agents=disk.saw_agents)
        settings = coordinator_settings.Settings(
            "0.1.0",
            ADDRESS,
            first_epoch=disk.incarnation << 32,
            max_waiting=world.story.max_waiting,
            verify_fraction=VERIFIED * (world.story.seed % 2),
        )
        self.machine = CoordinatorMachine(settings, stored, world.clock.now)
        self.machine.requests.sequences.most_kept = world.story.kept_bytes
        self.executor = Executor(self, world.data, self._compute, self._done, self._lost, 0)
        self.pingers: set[str] = set()
        self.planning: set[int] = set()
        self._synced = 0.0
        world.data.at[ADDRESS] = self
        self._on_tick()

    # --- data plane ---------------------------------------------------------------------------------------------------------------

    def arrive(self, frame: Frame) -> None:
        """Take a frame."""
        self.do(self._take, frame)

    def _take(self, frame: Frame) -> None:
        if frame[0] in {"data", "state", "keep"}:
            self.executor.take(frame)
        elif frame[0] == "ping" and frame[2] in self.pingers:
            self.world.data.send(self, frame[2], ("pong", frame[1]))

    def link_broken(self, address: str) -> None:
        """Tell the machine."""
        self.do(self.handle, ce.HostLinkBroken(address))

    def knows(self, address: str) -> bool:
        """Whether a deployment is connected to it."""
        return self.executor.knows(address)

    def _compute(self, key: Key, segment: str, token: str, then: Callable[[str], None]) -> None:
        raise AssertionError("the host computes nothing")

    def _lost(self, key: Key) -> None:
        raise AssertionError("the host keeps no state")

    def _done(self, key: Key, token: str, recorded: bool) -> None:
        host = self.executor.deployments[key[0]].schedule.host
        record = record_of(host) if recorded else None
        self.later(1e-5, self.handle, ce.RequestDone(key[1], (), (token.encode(),), record))

    # --- the machine --------------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self.handle(ce.Tick())
        self.tick_later(TICK_S, self._on_tick)

    def from_peer(self, identity: bytes, message: Any) -> None:  # noqa: ANN401
        """Take a control message."""
        self.do(self.handle, ce.FromPeer(identity, message))

    def handle(self, event: ce.CoordinatorEvent) -> None:
        """Let the machine take an event, and do what it wants."""
        if not self.alive:
            return
        try:
            done = self.machine.handle(event, self.clock.now)
        except RemoteProtocolError as error:
            what = event.message if isinstance(event, ce.FromPeer) else event
            self.world.surprise(f"coordinator: {type(what).__name__}: {error}")
            return
        except Exception:
            self.world.surprise(f"coordinator: {type(event).__name__}: {traceback.format_exc()[-1500:]}")
            return
        for instruction in done:
            self._carry_out(instruction)
        self.world.checks.after(self)

    def _carry_out(self, instruction: coordinator_instructions.CoordinatorInstruction) -> None:  # noqa: C901 - one branch per instruction
        disk, executor = self.disk, self.executor
        match instruction:
            case coordinator_instructions.ToAgent(identity, message):
                self.world.to_agent(identity, message)
            case coordinator_instructions.ToClient(identity, answer):
                self.world.to_client(identity, answer)
            case coordinator_instructions.StartRequest(epoch, number):
                if epoch in executor.deployments:
                    feed, start = token_of(instruction.payload), start_of(instruction)
                    executor.begin((epoch, number), recorded=instruction.record, feed=feed, start=start)
                else:
                    reason = "the host does not have the deployment"
                    self.later(0.0, self.handle, ce.RequestBroke(number, c.Fault.EXECUTION, reason))
            case coordinator_instructions.DropRequest(epoch, number):
                executor.end((epoch, number))
            case coordinator_instructions.KeepState(epoch, number, other):
                executor.tell_heir(epoch, number, other)
            case coordinator_instructions.HostDeploy(epoch, schedule, peers, further, reading):
                addresses = {peer.device: peer.address for peer in peers}
                executor.deployments[epoch] = Deployment(schedule, (), addresses, further, reading)
            case coordinator_instructions.HostRelease(epoch):
                executor.remove(epoch)
            case coordinator_instructions.HostPings(peers):
                self.pingers = {peer.address for peer in peers}
            case coordinator_instructions.StartPlanning():
                self._plan(instruction)
            case coordinator_instructions.StartStandby(job, files, state):
                model = self.world.models[files[0].name.removesuffix(".onnx")]
                self._make(job, lambda: (standby_of(model, keeps_state=bool(state), joins=self.world.story.joins),), 0.1)
            case coordinator_instructions.CancelPlanning(job):
                self.planning.discard(job)
            case coordinator_instructions.WriteChunk(identity, chunk, size):
                written = ce.ChunkWritten(identity, chunk.call, chunk.digest, size, complete=True)
                self._save(lambda: disk.files.update({chunk.digest: size}))
                self.later(0.001, self.handle, written)
            case coordinator_instructions.SaveModel(model_name, files):
                self._save(lambda: disk.models.update({model_name: files}))
            case coordinator_instructions.SaveProfile(profile, by_hand):
                self._save(lambda: disk.profiles[by_hand].update({profile.name: profile}))
            case coordinator_instructions.RemoveProfile(node, by_hand):
                self._save(lambda: disk.profiles[by_hand].pop(node, None))
            case coordinator_instructions.SavePlan(plan):
                self._save(lambda: disk.plans.update({plan.job: plan}))
            case coordinator_instructions.ForgetPlan(job):
                self._save(lambda: self._forget(job))
            case coordinator_instructions.Compare(check, answers):
                *before, last = ([bytes(part) for part in answer.payload] for answer in answers)
                faults = tuple("" if last == other else "they differ" for other in before)
                self.world.checks.counted["verified"] += 1
                self.later(0.001, self.handle, ce.Compared(check, faults))
            case coordinator_instructions.Audit(event):
                if event == "differed":
                    self.world.surprise(f"coordinator: nobody answers wrongly, but {instruction}")
            case coordinator_instructions.Log(text):
                self.world.log(f"coordinator: {text}")
        disk.saw_agents = disk.saw_agents or self.machine.members.saw_agents

    def _save(self, write: Callable[[], None]) -> None:
        # In order: the last ones may be lost, never one before another.
        self._synced = max(self._synced, self.clock.now + SYNC_S * self.world.rng.random())
        self.later(self._synced - self.clock.now, write)

    def _forget(self, job: int) -> None:
        self.disk.plans.pop(job, None)
        self.disk.made.pop(job, None)

    # --- planners -----------------------------------------------------------------------------------------------------------------

    def _plan(self, job: coordinator_instructions.StartPlanning) -> None:
        model = self.world.models[job.files[0].name.removesuffix(".onnx")]
        cluster, options, (width, _) = job.cluster, job.options, job.shapes["x"]
        for base in job.bases:
            if base.job not in self.disk.made:
                self.world.surprise(f"coordinator: job {job.job} is to be like job {base.job}, of which nothing is kept")

        def make() -> tuple[PlannedVariant, ...]:
            known = [made[base.place] for base in job.bases if (made := self.disk.made.get(base.job))]
            if known and self.world.scaling_fails > self.clock.now:
                return ()
            # What it was to be like may be gone since: then it is searched for.
            found = scaled(model, cluster, known[0], width) if known else variants_of(model, cluster, options.planner, options.objective)
            return tuple(with_state(each, joins=self.world.story.joins) for each in found) if options.state else found

        self._make(job.job, make, self.world.story.planner_s)

    def _make(self, job: int, make: Callable[[], tuple[PlannedVariant, ...]], seconds: float) -> None:
        world, now = self.world, self.clock.now
        self.planning.add(job)
        if world.planner_never > now:
            self.later(PLANNER_DEADLINE_S, self._failed, job, c.Fault.EXECUTION, "planner: it did not end within its deadline")
        elif world.planner_fails > now:
            self.later(seconds / 2, self._failed, job, c.Fault.EXECUTION, "planner: it ended by SIGKILL")
        else:
            slow = 8.0 if world.planner_late > now else 1.0
            self.later(seconds * slow * (0.5 + world.rng.random()), lambda: self._made(job, make()))

    def _made(self, job: int, variants: tuple[PlannedVariant, ...]) -> None:
        if not variants:
            self._failed(job, c.Fault.PLAN, NO_PLAN)
        elif job in self.planning:
            self.planning.discard(job)
            self.disk.made[job] = variants
            self.handle(ce.Planned(job, variants))

    def _failed(self, job: int, fault: c.Fault, reason: str) -> None:
        if job in self.planning:
            self.planning.discard(job)
            self.handle(ce.PlanFailed(job, fault, reason))


def start_of(begin: coordinator_instructions.StartRequest) -> SequenceStart | None:
    """Return how a request of a sequence begins; None for others."""
    return SequenceStart(begin.sequence, begin.before, begin.record, begin.reads) if begin.sequence else None


def token_of(payload: Any) -> str:  # noqa: ANN401
    """Return the text of an input."""
    content = bytes(payload[0]) if payload else b""
    return content.decode() if content[:1] == b"x" else "ones"
