"""Agents: the real `AgentMachine` in a nanny, with its control connection and its worker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bbgrap_agent.worker_timeouts import EARLIER_S

from bbgrap.control import agent_events as ae
from bbgrap.control.agent import AgentMachine
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import messages as m
from tests.campaign.simulation.clock import Process
from tests.campaign.simulation.executor import Key
from tests.campaign.simulation.models import MEMORY
from tests.campaign.simulation.network import Line
from tests.campaign.simulation.workers import Disk, Worker

if TYPE_CHECKING:
    from tests.campaign.simulation.world import World

IDLE = m.Heartbeat()


class Agent(Process):
    """The nanny of a worker, with its control connection. What it has told others is `world.log`."""

    def __init__(self, world: World, name: str, number: int, speed: float, address: str) -> None:
        super().__init__(world.clock)
        self.world, self.name, self.speed, self.address = world, name, speed, address
        self.identity = f"{name}/{number}".encode()
        self.disk = world.disks.setdefault(name, Disk())
        self.machine: AgentMachine | None = None
        self.worker: Worker | None = None
        self.quit: str | None = None
        self.to_head = Line(world.clock, world.rng, world.control_latency(), partial(world.from_peer, self.identity))
        self.from_head = Line(world.clock, world.rng, world.control_latency(), self._received)
        self._dropped: dict[Key, tuple[float, float]] = {}
        self._before = (0, 0.0)
        self._tick = 0
        self._start_worker()
        self._look()

    # --- worker -------------------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        worker = Worker(self)
        starting = self.world.worker_start()

        def ready() -> None:
            self.worker = worker
            self.world.data.silent.discard(self.address)
            self.world.data.at[self.address] = worker
            join = m.Join(self.name, "0.1.0", "1.31.1", 26, 1, 1, MEMORY, self.address, None)
            if self.machine is None:
                self.machine = AgentMachine(join, self.clock.now)
                self._on_tick()
            else:
                self._handle(ae.WorkerReady(join))

        self.later(starting, ready)

    def worker_dies(self, worker: Worker, reason: str, ended_by: m.EndedBy, *, only: str = "") -> None:
        """A worker ends; `only` is what the nanny ended it for, a "kernel" or a "load"."""
        if worker is not self.worker or not worker.alive:
            return
        worker.end()
        self.worker = None
        epoch, request = (worker.executor.computing or (0, 0)) if only != "load" else (0, 0)
        loading = worker.loading if only != "kernel" else 0
        self.world.data.gone(worker, silent=False)
        self.do(self._worker_died, m.WorkerLost(f"it ended: {reason}", epoch, request, ended_by, loading))

    def _worker_died(self, event: m.WorkerLost) -> None:
        self._handle(event)
        self._start_worker()

    def hear(self, event: ae.AgentEvent) -> None:
        """Take what the worker says."""
        self.do(self._handle, event)

    def _look(self) -> None:
        """End kernels that nobody wants and loads that do not end."""
        worker = self.worker
        if worker is not None and worker.alive and not worker.paused:
            key = worker.executor.computing
            dropped = None if key is None else self._dropped.get(key)
            if key is not None and key[1] < self._before[0]:
                dropped = min(dropped or (self._before[1], EARLIER_S), (self._before[1], EARLIER_S), key=sum)
            if key is not None and dropped is not None and self.clock.now - max(dropped[0], worker.computing_since) > dropped[1]:
                self.worker_dies(worker, f"a kernel of request {key[1]} did not end", m.EndedBy.NANNY, only="kernel")
            elif worker.loading and self.clock.now - worker.load_began > worker.load_limit_s:
                self.worker_dies(worker, f"the load of epoch {worker.loading} did not end", m.EndedBy.NANNY, only="load")
        # Only while there is something to look at: time is cheap in a simulation, but not free.
        self.tick_later(0.1 if self._dropped or (worker is not None and worker.loading) else 0.5, self._look)

    # --- control ------------------------------------------------------------------------------------------------------------------

    def _received(self, message: m.AgentCommand) -> None:
        self.do(self._handle, ae.Received(message))

    def _on_tick(self) -> None:
        machine = self.machine
        if machine is None:
            return
        worker = self.worker
        beat: m.Heartbeat | None = IDLE
        if worker is not None:
            key = worker.executor.computing
            if worker.paused:
                beat = None
            elif key is not None:
                beat = m.Heartbeat(*key, max(1e-6, self.clock.now - worker.computing_since), worker.steps, 0)
            elif worker.steps:
                beat = m.Heartbeat(0, 0, 0.0, worker.steps, 0)
        self._handle(ae.AgentTick(beat))
        if self.alive:
            self.tick_later(machine.next_tick_s, self._on_tick)

    def _handle(self, event: ae.AgentEvent) -> None:
        if self.machine is None or not self.alive:
            return
        try:
            done = self.machine.handle(event, self.clock.now)
        except RemoteProtocolError as error:
            self.world.surprise(f"agent {self.name}: {type(event).__name__}: {error}")
            return
        for instruction in done:
            self._carry_out(instruction)

    def _carry_out(self, instruction: ae.AgentInstruction) -> None:
        match instruction:
            case ae.ToCoordinator(message):
                self.to_head.send(self.world.through_codec(message, "head"))
            case ae.Quit(fault):
                self.quit = fault
                self.world.log(f"agent {self.name} quits: {fault}")
                self.world.end_agent(self, silent=False)
            case ae.LogLine(text):
                self.world.log(f"agent {self.name}: {text}")
            case ae.Reconnect():
                self.to_head.reset()
                self.from_head.reset()
            case _:
                if isinstance(instruction, m.Abandon):
                    self._dropped.setdefault((instruction.epoch, instruction.request), (self.clock.now, instruction.patience_s))
                    while len(self._dropped) > 64:
                        self._dropped.pop(next(iter(self._dropped)))
                if isinstance(instruction, ae.DropBefore):
                    self._before = (instruction.request, self.clock.now)
                if self.worker is not None:
                    self.worker.tell(instruction)

    def device_of(self, epoch: int) -> int:
        """Which device it is."""
        machine = self.machine
        assert machine is not None
        deployment = machine._deployments.by_epoch.get(epoch)
        return 0 if deployment is None else deployment.deploy.schedule.device

    def loaded(self) -> set[int]:
        """The epochs that its worker has."""
        return set() if self.worker is None else set(self.worker.executor.deployments)
