"""A real server carries out what a scripted machine says: planning, cancelling, keeping, forgetting."""

import hashlib
import sqlite3
import threading
import time
from contextlib import closing

import psutil
import pytest
import zmq
from bbgrap_coordinator.artifacts import ArtifactFolders
from bbgrap_coordinator.audit import AuditLog
from bbgrap_coordinator.input_files import LARGE_BYTES, InputFiles
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.no_keys import NoKeys
from bbgrap_coordinator.planning import PlanningQueues
from bbgrap_coordinator.server import Server
from bbgrap_coordinator.state_database import StateDatabase
from bbgrap_coordinator.storage import Storage

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import NodeProfile
from bbgrap.control.coordinator_events import ChunkWritten, FromPeer, HostLinkBroken, PlanFailed, Planned, RequestBroke, Tick
from bbgrap.control.coordinator_instructions import (
    CancelPlanning,
    ForgetPlan,
    HostDeploy,
    HostRelease,
    SaveModel,
    SavePlan,
    SaveProfile,
    StartPlanning,
    StartRequest,
    StartStandby,
    ToAgent,
    ToClient,
    WriteChunk,
)
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import Ask, Failed, ModelChunk, ModelFile, RunModel, StillWorking
from bbgrap.protocol.directions import TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Peer, Welcome
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.zoo import materialize
from tests.coordinator.bbgrap_coordinator.test_planning import SHAPES, STRANGE
from tests.coordinator.made import HOST, plan
from tests.waiting import until

WAIT_S = 60


class Script:
    """A machine that says what it is told to, and keeps what it hears."""

    def __init__(self):
        self.heard, self.sayings, self.ticks = [], [], 0

    def handle(self, event, now):
        del now
        if isinstance(event, Tick):
            self.ticks += 1
        else:
            self.heard.append(event)
        said, self.sayings = self.sayings, []
        return said


class House:
    """A server in a thread of its own, with all that it uses."""

    def __init__(self, home, planners, inputs=None, script=None):
        self.context, self.script, self.home = zmq.Context(), script or Script(), home
        self.control, self.plane = ControlServer(self.context, "tcp://127.0.0.1:0"), TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
        self.models, self.folders, self.planners = ModelStore(home / "models"), ArtifactFolders(home / "plans"), planners
        self.storage = Storage(StateDatabase(home), self.folders)
        self.stored = self.storage.read(self.models.stored())
        self.audit = AuditLog(home / "audit.jsonl")
        files = inputs or InputFiles(home)
        self.server = Server(self.control, self.plane, self.script, self.models, planners, self.storage, self.audit, files, NoKeys())
        planners.begin(self.models, self.folders, self.server.report)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def say(self, *instructions):
        """Have these carried out: all are when the second of two events is heard."""
        before = len(self.script.heard)
        self.script.sayings = [*instructions]
        for _ in range(2):
            self.server.report(HostLinkBroken("tcp://nowhere:1"))
        until(lambda: len(self.script.heard) >= before + 2)

    def answers(self):
        return [event for event in self.script.heard if isinstance(event, Planned | PlanFailed)]

    def jobs_on_disk(self):
        self.storage.flush()
        return sorted(int(path.name) for path in self.folders.directory.iterdir())

    def close(self):
        self.server.stop()
        self.thread.join()
        self.plane.close()
        self.control.close()
        self.storage.close()
        self.audit.close()
        self.context.term()


def in_house(tmp_path, act, command=None, inputs=None, script=None):
    with PlanningQueues(command) if command else PlanningQueues() as planners:
        house = House(tmp_path, planners, inputs, script)
        try:
            return act(house)
        finally:
            house.close()


def model_in(house):
    content = materialize("tiny").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    (house.models.directory / digest).write_bytes(content)
    return (ModelFile("tiny.onnx", digest, len(content)),)


def test_what_is_saved_is_there_in_the_next_life(tmp_path):
    def first(house):
        files = model_in(house)
        options = PlanOptions()
        house.say(StartStandby(7, files), StartPlanning(8, files, SHAPES, Cluster.even(2), options), StartStandby(9, files))
        until(lambda: len(house.answers()) == 3)
        house.say(SavePlan(plan(7, standby=True)), SavePlan(plan(8, devices=2)), SavePlan(plan(9)), ForgetPlan(9))
        house.say(SaveModel(files[0].digest, files), SaveProfile(NodeProfile("a"), False), SaveProfile(NodeProfile("b"), True))
        house.say(ToAgent(b"nobody", Welcome(1, 0.1, 0.6)))
        assert house.jobs_on_disk() == [7, 8]
        return {event.job: event.variants for event in house.answers()}, files

    made, files = in_house(tmp_path, first)
    stored = in_house(tmp_path, lambda house: house.stored)
    assert [(saved.job, variants) for saved, variants in stored.plans] == [(7, made[7]), (8, made[8])]
    assert stored.models == {files[0].digest: files}
    assert (list(stored.measured), list(stored.given), stored.saw_agents) == (["a"], ["b"], True)


def test_models_of_which_files_made_room_are_kept_no_longer(tmp_path):
    """Their rows went at a start only."""

    def act(house):
        files = model_in(house)
        gone = [ModelFile("gone.onnx", letter * 64, 1) for letter in "abcd"]
        house.say(SaveModel("e" * 64, files), *(SaveModel(file.digest, (*files, file)) for file in gone))
        house.server.report(ChunkWritten(b"client", 1, files[0].digest, 1, True, "", (gone[0].digest,)))
        house.say()
        house.storage.flush()
        with closing(sqlite3.connect(tmp_path / "state.db")) as database:
            return database.execute("SELECT digest FROM models").fetchall()

    assert in_house(tmp_path, act) == [("e" * 64,)]


def test_what_is_cancelled_has_no_answer_and_leaves_nothing(tmp_path):
    def act(house):
        files = model_in(house)
        jobs = [StartPlanning(job, files, SHAPES, Cluster.even(2), PlanOptions("sleeps")) for job in (1, 2, 3)]
        house.say(*jobs)
        until(lambda: (house.folders.path(1) / "weights").exists())
        before = house.planners.plans.pid
        house.say(CancelPlanning(2), CancelPlanning(1), CancelPlanning(77))
        until(lambda: (house.folders.path(3) / "weights").exists())
        assert not psutil.pid_exists(before)
        house.say(CancelPlanning(3))
        until(lambda: house.jobs_on_disk() == [])
        assert house.answers() == []

    in_house(tmp_path, act, STRANGE)


def test_what_is_deployed_is_not_evicted(tmp_path):
    def act(house):
        house.storage._max_plans = 1
        files = model_in(house)
        house.say(StartStandby(1, files))
        until(lambda: len(house.answers()) == 1)
        peers = (Peer(0, "a", house.plane.address), Peer(1, "", house.plane.address))
        house.say(SavePlan(plan(1)), HostDeploy(11, HOST, peers))
        house.say(StartStandby(2, files))
        until(lambda: len(house.answers()) == 2)
        house.say(SavePlan(plan(2)))
        assert house.jobs_on_disk() == [1, 2]
        house.say(HostRelease(11), SavePlan(plan(2)))
        assert house.jobs_on_disk() == [2]

    in_house(tmp_path, act)


def test_a_broken_link_of_the_host_reaches_the_machine(tmp_path):
    def act(house):
        house.say()
        assert house.script.heard == 2 * [HostLinkBroken("tcp://nowhere:1")]

    in_house(tmp_path, act)


def test_what_stays_broken_is_said_once(tmp_path, caplog):
    def act(house):
        for reason in ("closed", "refused", "refused", "refused", "closed"):
            house.plane.on_broken("tcp://nowhere:1", reason)
        until(lambda: len(house.script.heard) == 5)

    in_house(tmp_path, act)
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["closed", "refused", "closed"]


class SlowFiles(InputFiles):
    """A disk that writes when it is told to."""

    def __init__(self, directory):
        super().__init__(directory)
        self.turn = threading.Event()

    def store(self, inputs):
        assert self.turn.wait(WAIT_S)
        return super().store(inputs)


def test_nobody_else_waits_while_large_inputs_of_a_sequence_are_written(tmp_path):
    """Agents took the coordinator for dead, and clients sent a training step's weights again: a gigabyte takes seconds."""
    files = SlowFiles(tmp_path)
    request = RunModel(1, "ab" * 32, 9.0, (), (bytes(LARGE_BYTES),), sequence=1)

    def act(house):
        with ControlClient(house.context, house.control.address) as client:
            for message in (request, Ask((1,))):
                client.send(TO_COORDINATOR.encode(message))
            until(lambda: house.script.heard)
            assert [type(event.message) for event in house.script.heard] == [Ask]
            files.turn.set()
            until(lambda: len(house.script.heard) == 2)
        assert house.script.heard[1].message == request

    in_house(tmp_path, act, inputs=files)


class ForgetfulScript(Script):
    """A machine that knows of no call, and says so when it is asked."""

    def handle(self, event, now):
        said = super().handle(event, now)
        if isinstance(event, FromPeer) and isinstance(event.message, Ask):
            return [*said, ToClient(event.identity, StillWorking(event.message.calls, ()))]
        return said


def test_what_waits_for_the_disk_is_known(tmp_path, monkeypatch):
    """Clients took it for lost, and blamed the network."""
    files, turn = SlowFiles(tmp_path), threading.Event()
    request = RunModel(1, "ab" * 32, 9.0, (), (bytes(LARGE_BYTES),), sequence=1)
    write = ModelStore.write

    def slowly(store, instruction):
        assert turn.wait(WAIT_S)
        return write(store, instruction)

    def act(house):
        def known():
            client.send(TO_COORDINATOR.encode(Ask((1, 2, 3))))
            answers = []
            until(lambda: answers.append(client.receive()) or answers[-1])
            return TO_CLIENT.decode(answers[-1]).known

        with ControlClient(house.context, house.control.address) as client:
            client.send(TO_COORDINATOR.encode(request))
            assert known() == (1,)
            identity = house.script.heard[0].identity
            house.say(WriteChunk(identity, ModelChunk(2, "ab" * 32, 0, (b"piece",)), 10))
            assert known() == (1, 2)
            turn.set()
            files.turn.set()
            until(lambda: {type(event) for event in house.script.heard} >= {ChunkWritten})
            until(lambda: known() == ())

    monkeypatch.setattr(ModelStore, "write", slowly)
    in_house(tmp_path, act, inputs=files, script=ForgetfulScript())


class FullFiles(InputFiles):
    """There is room neither on disk nor in memory, and then there is."""

    full = True

    def store(self, inputs):
        if self.full:
            self.full = False
            raise MemoryError
        return super().store(inputs)


def test_a_request_whose_inputs_find_no_room_is_answered_and_may_be_said_again(tmp_path):
    """It was never answered, nor taken again, and its place stayed taken."""
    request = RunModel(1, "ab" * 32, 9.0, (), (bytes(LARGE_BYTES),), sequence=1)

    def act(house):
        with ControlClient(house.context, house.control.address) as client:
            client.send(TO_COORDINATOR.encode(request))
            frames = []
            until(lambda: frames.append(client.receive()) or frames[-1])
            assert TO_CLIENT.decode(frames[-1]) == Failed(
                1, Fault.BUSY, "coordinator: its inputs cannot be kept: MemoryError; submit again later"
            )
            client.send(TO_COORDINATOR.encode(request))
            until(lambda: house.script.heard)
        assert house.script.heard[0].message == request

    in_house(tmp_path, act, inputs=FullFiles(tmp_path))


class Chain(Script):
    """Begins another request whenever one has ended, so many times."""

    left = 3000

    def handle(self, event, now):
        said = super().handle(event, now)
        if isinstance(event, RequestBroke) and self.left:
            self.left -= 1
            return [*said, StartRequest(77, self.left, (), ())]
        return said


def test_however_many_requests_end_as_they_begin_the_server_goes_on(tmp_path):
    def act(house):
        house.script = house.server._machine = Chain()
        house.say(StartRequest(77, Chain.left, (), ()))
        until(lambda: not house.script.left or not house.thread.is_alive())
        assert house.thread.is_alive()

    in_house(tmp_path, act)


class Slow(Script):
    """Takes longer for a message than its sender, so that one always waits."""

    def handle(self, event, now):
        if isinstance(event, FromPeer):
            time.sleep(0.001)
        return super().handle(event, now)


@pytest.mark.faults
def test_time_goes_on_while_somebody_never_stops_sending(tmp_path):
    def act(house):
        house.script = house.server._machine = Slow()
        question = TO_COORDINATOR.encode(Ask((1,)))
        with ControlClient(house.context, house.control.address) as client:
            deadline = time.monotonic() + 60
            while house.script.ticks < 3 and time.monotonic() < deadline:
                for _ in range(100):
                    client.send(question)
                time.sleep(0.01)
            assert house.script.ticks >= 3

    in_house(tmp_path, act)
