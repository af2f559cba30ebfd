"""The process that computes: what takes long, takes memory or runs models of strangers. Its parent, the nanny, talks to the coordinator.

    main thread   reads what the nanny wants
    loader        weights, sessions and measuring: everything that takes long
    links         asks peers for answers
    executor      data plane and kernels

Laws: it ends when its nanny ends, however that ends; what it says goes through the codec, never through pickle; the nanny sees in shared
memory what it computes and loads.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bbgrap.control import agent_events as events
from bbgrap.engine.sessions import give_back_arena, share_arena
from bbgrap.errors import BbgrapError, ExecutionError, ModelError
from bbgrap.observing.logs import inherited_format, name_node, write_logs
from bbgrap.protocol import messages
from bbgrap.transport.memory_broker import MemoryClient
from bbgrap.transport.process import allow_many_descriptors
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.tls import TlsIdentity
from bbgrap_agent.confinement import confine_worker
from bbgrap_agent.executor import Executor
from bbgrap_agent.introduction import introduce
from bbgrap_agent.link_measurement import AnsweredPeers, SilentPeers, measure_links, unreachable
from bbgrap_agent.loading import load, reachable
from bbgrap_agent.pipe import FROM_WORKER, TO_WORKER, Pipe
from bbgrap_agent.progress import WorkerProgress
from bbgrap_agent.sequence_states import SequenceStates, bytes_for_states
from bbgrap_agent.shared_segments import SharedSegments
from bbgrap_agent.speed_fitting import Check
from bbgrap_agent.weights import WeightStore
from bbgrap_agent.worker_settings import WorkerSettings

_LINK_THREADS = 4
"""Chosen: one for what the coordinator wants tried, and some for deployments whose peers are slow to answer."""
_ECHO_S = (0.3, 0.5, 1.0, 3.0)
"""How long a peer of a deployment may take to answer, each time; it answers between two kernels, or may just have a new worker."""
_STOP_S = 2.0
"""How long a kernel may go on when the nanny wants the end."""
_REASON_CHARACTERS = 16_000
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = "100"
"""For the system's choice of whom to end when memory is short: rather this process than its nanny, which starts another."""

EXECUTOR_FAILED = 70
"""The exit status of a worker whose executor had a fault of its own (`EX_SOFTWARE`)."""

_log = logging.getLogger("bbgrap.agent")


class Worker:
    """One worker in this process.

    Invariants: every instruction that has an answer is answered once.
    """

    def __init__(
        self,
        pipe: Pipe[events.FromWorker],
        plane: TcpDataPlane,
        join: messages.Join,
        store: WeightStore,
        progress: WorkerProgress,
        settings: WorkerSettings,
        identity: TlsIdentity | None = None,
    ) -> None:
        """Take over the connections; nothing is said before `run`."""
        self._pipe = pipe
        self._say: Callable[[events.FromWorker], None] = pipe.send
        self._join = join
        self._store = store
        self._shared = SharedSegments()
        self._progress = progress
        self._settings = settings
        self._identity = identity
        self._executor = Executor(
            plane,
            self._say,
            on_broken=self._broken,
            progress=progress,
            states=SequenceStates(bytes_for_states(settings.state_bytes, join.memory_bytes)),
        )
        self._loader = ThreadPoolExecutor(1, "loader")
        self._links = ThreadPoolExecutor(_LINK_THREADS, "links")
        # Measuring takes seconds: a deployment that comes meanwhile does not wait for it.
        self._measuring = ThreadPoolExecutor(1, "measuring")
        self._measurements: dict[int, threading.Event] = {}
        """Those that are not answered; one whose event is set is to end."""
        self._answering: frozenset[tuple[str, str]] = frozenset()
        self._answered = AnsweredPeers()
        self._silent = SilentPeers(join.data_address)

    def run(self) -> None:
        """Work until the nanny ends, or wants the end.

        Raises:
            RemoteProtocolError: if the nanny does not speak as it should: it is of another version.
        """
        share_arena()
        thread = threading.Thread(target=self._execute, name="executor", daemon=True)
        thread.start()
        self._say(events.WorkerReady(self._join))
        while (frames := self._pipe.receive()) is not None:
            self._carry_out(TO_WORKER.decode(frames))
        self._executor.stop()
        thread.join(_STOP_S)

    def _execute(self) -> None:
        try:
            self._executor.run()
        except Exception:  # without its executor a worker is of no use; the nanny starts another
            _log.exception("the executor failed")
            os._exit(EXECUTOR_FAILED)

    def _broken(self, address: str, reason: str) -> None:
        self._answered.lost(address)
        self._say(messages.LinkBroken(address, reason))

    def _carry_out(self, instruction: events.ToWorker) -> None:  # noqa: C901 - one branch per instruction
        executor = self._executor
        match instruction:
            case events.CheckWeights(epoch, digests):
                self._later(
                    lambda: events.WeightsChecked(epoch, self._store.missing(digests)), lambda fault: events.DeploymentLoaded(epoch, fault)
                )
            case messages.WeightChunk():
                self._later(
                    lambda: events.WeightArrived(instruction.digest, *self._store.add(instruction)),
                    lambda fault: events.WeightArrived(instruction.digest, 0, complete=False, fault=fault),
                )
            case messages.Deploy():
                self._later(lambda: self._load(instruction), lambda fault: events.DeploymentLoaded(instruction.epoch, fault))
            case messages.Release(epoch):
                self._answered.forget(epoch)
                executor.post(lambda: executor.remove(epoch))
                executor.post(give_back_arena)
            case messages.Abandon(epoch, request):
                executor.drop_soon(epoch, request)
            case events.DropBefore(request):
                executor.drop_before_soon(request)
            case messages.AnswerPings(peers):
                asking = reachable(peers, self._settings.coordinator_host)
                self._answering = frozenset((peer.address, peer.fingerprint) for peer in asking)
                executor.post(lambda: executor.pings.allow(asking))
            case messages.Measure(measurement):
                self._measure(
                    measurement, lambda check: self._measured(measurement, check), lambda fault: messages.Measured(measurement, None, fault)
                )
            case messages.MeasureLinks(measurement, peers):
                others = reachable(peers, self._settings.coordinator_host)
                self._measure(
                    measurement,
                    lambda check: messages.LinksMeasured(measurement, measure_links(others, executor, check), ""),
                    lambda fault: messages.LinksMeasured(measurement, (), fault),
                )
            case messages.EndMeasuring(measurement):
                if (ended := self._measurements.get(measurement)) is not None:
                    ended.set()
            case messages.TryLinks():
                every = tuple(peer.device for peer in instruction.peers)
                self._later(lambda: self._try(instruction), lambda _: messages.LinksTried(instruction.trial, every), self._links)

    def _measure(self, number: int, work: Callable[[Check], events.FromWorker], failed: Callable[[str], events.FromWorker]) -> None:
        """Measure in a thread of its own, until it is done or to end."""
        ended = self._measurements[number] = threading.Event()

        def check() -> None:
            if ended.is_set():
                raise ExecutionError("it was broken off, as something else was to be done")

        def measure() -> events.FromWorker:
            try:
                check()
                return work(check)
            finally:
                self._measurements.pop(number, None)
                self._executor.post(give_back_arena)

        self._later(measure, failed, self._measuring)

    def _measured(self, number: int, check: Check) -> messages.Measured:
        # Here and not above: most workers never measure, and all shall be ready soon.
        from bbgrap_agent.machine_probe import measure_machine

        return messages.Measured(number, measure_machine(self._join, check, identity=self._identity), "")

    def _later(
        self, work: Callable[[], events.FromWorker | None], failed: Callable[[str], events.FromWorker], pool: Pool | None = None
    ) -> None:
        """Do something that takes long in a thread of its own; what it returns, or `failed` of its error, is said.

        None says that this is not its end: another thread goes on with it.
        """

        def safely() -> None:
            answer: events.FromWorker | None
            try:
                answer = work()
            except (BbgrapError, MemoryError, OSError) as error:  # of the system: the disk is full, say
                answer = failed(str(error)[:_REASON_CHARACTERS] or "out of memory")
            except Exception as error:  # a bug ends this work with a reason: the coordinator waits for it
                _log.exception("the loader failed")
                answer = failed(f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS])
            if answer is not None:
                self._say(answer)

        (pool or self._loader).submit(safely)

    def _load(self, deploy: messages.Deploy) -> events.FromWorker | None:
        self._progress.begin_load(deploy.epoch)
        try:
            settings = self._settings
            deployment = load(
                deploy, self._store, self._join.threads, settings.coordinator_host, self._shared, compiling=settings.compiling
            )
        except ModelError:
            if damaged := self._store.damaged(deploy.weight_types):
                return events.DeploymentLoaded(deploy.epoch, missing=damaged)
            raise
        finally:
            self._progress.end_load()
        # It may be told to be ready while the executor is in a kernel: what comes of that waits there.
        self._executor.install_soon(deployment)
        peers = [p for p in reachable(deploy.peers, self._settings.coordinator_host) if p.device in deployment.destinations]
        if not self._to_be_asked(peers):
            return self._loaded(deploy.epoch, peers, [])
        # The loader shall not wait for slow peers.
        self._later(lambda: self._echo(deploy.epoch, peers), lambda fault: events.DeploymentLoaded(deploy.epoch, fault), self._links)
        return None

    def _to_be_asked(self, peers: Sequence[messages.Peer]) -> list[messages.Peer]:
        """Return those that know this one, which are those it knows, and that have not answered yet."""
        return [peer for peer in self._answered.unasked(peers) if (peer.address, peer.fingerprint) in self._answering]

    def _echo(self, epoch: int, peers: Sequence[messages.Peer]) -> events.FromWorker:
        """End a load when all peers that it sends to have answered."""
        asked = self._to_be_asked(peers)
        silent = unreachable(asked, self._executor, _ECHO_S)
        if not silent:
            return self._loaded(epoch, peers, asked)
        names = ", ".join(f"'{peer.name}' at {peer.address}" for peer in silent)
        fault = f"no answer on the data plane from {names}; is it blocked, or advertised wrongly (--advertise)?"
        return events.DeploymentLoaded(epoch, fault[:_REASON_CHARACTERS], unreachable=tuple(peer.device for peer in silent))

    def _loaded(self, epoch: int, peers: Sequence[messages.Peer], asked: Sequence[messages.Peer]) -> events.DeploymentLoaded:
        unasked = self._answered.unasked(peers)
        self._answered.add(epoch, [peer for peer in peers if peer in asked or peer not in unasked])
        return events.DeploymentLoaded(epoch)

    def _try(self, trial: messages.TryLinks) -> events.FromWorker:
        peers = reachable(trial.peers, self._settings.coordinator_host)
        while True:
            try:
                missing = unreachable(peers, self._executor)
                self._silent.tried(peers, missing)
                return messages.LinksTried(trial.trial, tuple(peer.device for peer in missing))
            except ExecutionError as error:  # a kernel keeps this side from asking, which says nothing about the others
                _log.info("links are tried again: %s", error)


def main(argument: str) -> None:
    """Work for a nanny until it ends, then end this process, whatever its threads do."""
    settings = WorkerSettings.parse(argument)
    _follow(settings.nanny)
    # Where a model ends this process, the log says in which kernel; the nanny says the rest.
    # Of the thread that it ends by alone: looking at others while they run ends it by SIGSEGV, and of SIGBUS the cause is looked for.
    faulthandler.enable(all_threads=False)
    write_logs(inherited_format(), verbose=settings.verbose)
    name_node(settings.name)
    confine_worker(Path(settings.cache_dir))
    for descriptor in (settings.pipe, settings.listener, settings.progress, settings.memories):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    allow_many_descriptors()
    pipe = Pipe(socket.socket(fileno=settings.pipe), FROM_WORKER)
    identity = None
    if settings.identity >= 0:
        with os.fdopen(settings.identity, "rb") as inherited:
            identity = TlsIdentity.from_bytes(inherited.read())
    memories = None if settings.memories < 0 else MemoryClient(socket.socket(fileno=settings.memories), settings.memory_name)
    listener = socket.socket(fileno=settings.listener)
    plane = TcpDataPlane(listener, settings.host, computes=True, identity=identity, memories=memories)
    fingerprint = "" if identity is None else identity.fingerprint
    join = replace(introduce(settings.name, settings.threads, plane.address), fingerprint=fingerprint)
    weights = WeightStore(Path(settings.cache_dir), disk_bytes=settings.cache_bytes)
    Worker(pipe, plane, join, weights, WorkerProgress(settings.progress), settings, identity).run()
    logging.shutdown()
    # A loader that is in a session cannot be told to end.
    os._exit(0)


def _follow(nanny: int) -> None:
    """End with the nanny, and not before: an interrupt from a terminal goes to both, and only the nanny knows what to do then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        # The nanny starts workers from its main thread, whose end is the end it means. Where this is missing, the pipe's end does it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nanny:
        os._exit(0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


if __name__ == "__main__":
    main(sys.argv[1])
