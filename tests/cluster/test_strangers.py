"""Whoever has no key, or a wrong one, gets nothing from a running cluster and changes nothing in it."""

import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil
import pytest
from bbgrap_agent.enrolment import KeyFile, enrol

import bbgrap
from bbgrap.errors import AccessError
from bbgrap.protocol.client_messages import Ask, Cancel, ClientMessage, EndSequence, Failed, ForkSequence, RunModel
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.key_messages import TokenCall
from bbgrap.protocol.messages import Join, Leave, Refused, Rejoin
from bbgrap.protocol.roles import MAY, NODE
from bbgrap.protocol.tokens import Token
from bbgrap.session.connection import Connection
from bbgrap.transport.certificates import Authority
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.locks import ClientLock, KeyPair
from bbgrap.zoo import materialize
from tests.cluster.capture import Capture, Relay, found_in, tensors_of
from tests.cluster.strangers import (
    EVERYTHING,
    NO_ANSWER_BYTES,
    UNIX,
    data_ports,
    frames,
    listener,
    local_sockets,
    mapped,
    memory_of,
    raw_control,
    say_raw,
    say_secretly,
    say_to_coordinator,
    split,
    state_of,
)
from tests.known_agents import known_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster
unchanged = pytest.mark.usefixtures("nothing_changes")
GROWTH = 48 << 20
"""That a process may take for what it has seen: far below what strangers have sent."""


class Known:
    """A client that is known, whose requests must go on."""

    def __init__(self, cluster, connection=None):
        self.model = materialize("tiny")
        self.x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
        (self.y,) = ort.InferenceSession(self.model).run(None, {"input": self.x})
        self.session = bbgrap.InferenceSession(self.model, cluster=connection or cluster.connection, planner="bbgrap")

    def asks(self, times=5):
        for _ in range(times):
            (y,) = self.session.run(None, {"input": self.x})
            np.testing.assert_allclose(y, self.y, rtol=1e-3, atol=1e-4)


class Keys:
    """A token of every role, and those that open nothing any more."""

    def __init__(self, cluster, folder):
        connection = cluster.connection
        self.roles = {role: self.lock(connection.create_token(f"a {role}", role)) for role in ("reader", "client", "agent")}
        self.revoked = self.lock(connection.create_token("gone", "admin"))
        connection.revoke_token("gone")
        self.expired = self.lock(connection.create_token("over", "admin", 0.5))
        file = folder / "token"
        file.write_text(connection.create_token("for spies", "admin"))
        file.chmod(0o600)
        self.spies, self.nodes = [], []
        for name in ("spy", "old spy"):
            key = KeyFile(folder, cluster.address, name)
            self.spies.append(enrol(cluster.address, Credentials(token_file=file), name, key).identity)
            self.nodes.append(key.read())
        self.roles[NODE] = self.nodes[0]
        connection.revoke_token("old spy")
        server = self.revoked.server
        self.strangers = {
            "without a lock": None,
            "with keys of its own": ClientLock(KeyPair.make().public, KeyPair.make(), "a stranger"),
            "with the coordinator's public key": ClientLock(server, KeyPair.make(), "a stranger"),
            "with a revoked token": self.revoked,
            "with the key of a revoked node": self.nodes[1],
            "with an expired token": self.expired,
        }

    @staticmethod
    def lock(text):
        return ClientLock.of(Token.parse(text, "test"), "test")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def cluster(weights):
    with known_cluster(2, weights) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def keys(cluster, tmp_path_factory):
    made = Keys(cluster, tmp_path_factory.mktemp("keys"))
    time.sleep(0.7)  # until one has expired
    return made


@pytest.fixture(scope="module")
def known(cluster):
    client = Known(cluster)
    client.asks()
    settle(cluster)
    return client


def settle(cluster):
    """Wait until nothing is planned and written any more, beside the requests."""
    state = None
    while (now := state_of(cluster)) != state:
        state = now
        time.sleep(0.5)


def lasting(state):
    """Return a state without plans: after a loss, others are made when there is time."""
    files = {path: digest for path, digest in state["files"].items() if not path.startswith("plans")}
    return {**state, "files": files, "rows": {**state["rows"], "plans": []}}


@pytest.fixture
def nothing_changes(cluster, keys, known):
    """Whatever a test does, the cluster is as before, and a known client is served."""
    before, memory = state_of(cluster), memory_of(cluster)
    yield
    known.asks()
    assert state_of(cluster) == before
    grown = {pid: size - memory[pid] for pid, size in memory_of(cluster).items() if size - memory[pid] > GROWTH}
    assert not grown, [psutil.Process(pid).cmdline() for pid in grown]


@unchanged
def test_strangers_end_at_the_handshake(cluster, keys):
    for who, lock in keys.strangers.items():
        heard, refused = say_to_coordinator(cluster.address, lock, EVERYTHING)
        assert heard == [], who
        assert refused, who


@unchanged
def test_what_is_said_without_a_handshake_is_not_heard(cluster):
    for said in raw_control():
        assert len(say_raw(split(cluster.address), said)) <= NO_ANSWER_BYTES


@unchanged
@pytest.mark.parametrize("role", ["reader", "client", "agent", NODE])
def test_a_key_of_the_wrong_role_hears_refusals(cluster, keys, role):
    wrong = [message for message in EVERYTHING if type(message) not in MAY[role]]
    assert wrong
    heard, _ = say_to_coordinator(cluster.address, keys.roles[role], wrong)
    calls = [m for m in wrong if isinstance(m, ClientMessage | TokenCall) and not isinstance(m, Ask | Cancel | ForkSequence | EndSequence)]
    failed = [answer for answer in heard if isinstance(answer, Failed)]
    assert {answer.fault for answer in failed} <= {Fault.ACCESS}
    assert len(failed) == len(calls)
    assert all(isinstance(answer, Failed | Refused) for answer in heard)


@unchanged
def test_a_node_speaks_for_itself_only(cluster, keys):
    """Its key may say all that agents say; as long as it has not joined, that means nothing, and it cannot join as another."""
    said = [message for message in EVERYTHING if type(message) in MAY[NODE] and not isinstance(message, Join)]
    said += [Join("agent0", *list(vars_of(EVERYTHING[0]))[1:]), Leave("as agent0")]
    heard, _ = say_to_coordinator(cluster.address, keys.nodes[0], said)
    assert all(isinstance(answer, Refused | Rejoin) for answer in heard)
    assert any(isinstance(answer, Refused) and "agent0" in answer.reason for answer in heard)


def vars_of(message):
    return (getattr(message, name) for name in message.__slots__)


@pytest.mark.faults
@pytest.mark.slow
@unchanged
def test_strangers_may_go_on_for_long(cluster, keys, known):
    for _ in range(40):
        for lock in [*keys.strangers.values(), *keys.roles.values()]:
            wrong = [
                message
                for message in EVERYTHING
                if lock not in keys.roles.values() or type(message) not in MAY["agent"] | MAY[NODE] | MAY["client"]
            ]
            say_to_coordinator(cluster.address, lock, wrong * 20)
        for said in raw_control():
            say_raw(split(cluster.address), said, 0.1)
        for port in data_ports(cluster):
            say_secretly(port, keys.spies[0], frames([1 << 32], "tcp://127.0.0.1:9"))
        known.asks(1)


@pytest.mark.faults
@unchanged
def test_a_valid_key_does_not_become_another_by_its_session(cluster, keys, known):
    victim = cluster.connection._control._session
    ahead = cluster.connection.number()
    run = next(message for message in EVERYTHING if isinstance(message, RunModel))
    cancels = [Cancel(number) for number in range(ahead, ahead + 200)]
    heard, _ = say_to_coordinator(cluster.address, keys.roles["client"], [*cancels, run, Ask((ahead,))], session=victim)
    assert not any(isinstance(answer, Failed) and answer.call != run.call for answer in heard)
    known.asks()


@pytest.mark.faults
def test_a_key_that_is_taken_back_loses_its_connection(cluster):
    connection = Connection(cluster.address, credentials=Credentials(token=cluster.connection.create_token("guest", "client")))
    with connection:
        assert connection.nodes()
        began = time.monotonic()
        cluster.connection.revoke_token("guest")
        with pytest.raises(AccessError):
            connection.nodes()
        assert time.monotonic() - began < 5


@unchanged
def test_strangers_on_the_data_plane_get_nothing(cluster, keys):
    epochs = [(1 << 32) + number for number in range(6)]
    foreign = Authority.make().identity("agent0")
    with listener() as (address, knocked):
        said = frames(epochs, address)
        for port in data_ports(cluster):
            assert set(say_raw(port, said)[:1]) <= {0x15}, "an alert of TLS at most"
            for identity in (None, foreign, *keys.spies):
                assert say_secretly(port, identity, said) == b""
        with pytest.raises(BlockingIOError):
            knocked.accept()


@pytest.mark.faults
@unchanged
@pytest.mark.skipif(not UNIX.exists(), reason="this system has no such sockets")
def test_strangers_at_the_local_sockets_get_nothing(cluster):
    names = local_sockets(cluster)
    assert names
    for name in names:
        for said in (b"", bytes(16), os.urandom(16), b"x" * 17, os.urandom(4096)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.settimeout(10 if said else 1)  # who says nothing is left waiting
                stranger.connect(f"\0{name}")
                try:
                    socket.send_fds(stranger, [said], [os.memfd_create("x")] if said else [])
                    assert stranger.recv(100) == b""
                except ConnectionError:
                    pass
                except TimeoutError:
                    assert said == b""


@pytest.mark.faults
@unchanged
def test_a_recorded_session_is_of_no_use(cluster, keys, tmp_path, monkeypatch):
    monkeypatch.setattr("bbgrap.transport.control_client.open_channel", lambda _: None)  # tensors go over the network
    token = tmp_path / "token"
    token.write_text((cluster.logs / "state" / "keys" / "local.token").read_text())
    with Relay(split(cluster.address)) as relay:
        with Connection(relay.address, credentials=Credentials(token_file=token)) as connection:
            client = Known(cluster, connection)
            client.asks(2)
        recorded = relay.recorded
    tensors = tensors_of(client.model, client.x)
    assert sum(len(said) + len(heard) for said, heard in recorded) > 2 * client.x.nbytes
    assert not any(found_in(part, tensors) for both in recorded for part in both)
    for said, _ in recorded:
        assert len(say_raw(split(cluster.address), said)) <= NO_ANSWER_BYTES


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """A cluster on one machine whose processes share no memory: all tensors go over the network."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent / "without_memory"), os.environ.get("PYTHONPATH", "")]))
    with known_cluster(2, tmp_path / "weights") as cluster:
        yield cluster
        assert mapped(cluster, "bbgrap-payloads") == mapped(cluster, "bbgrap-channel") == {}


@pytest.mark.faults
@pytest.mark.skipif(not hasattr(socket, "AF_PACKET") or os.geteuid() != 0, reason="needs root, to capture packets")
@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_traffic_of_an_inference_is_secret_and_cannot_be_repeated(apart, tmp_path, anew):
    """Also that of an agent that comes anew, and gets its weights over the network."""
    cluster, weights, known = apart, tmp_path / "weights", Known(apart)
    known.asks()
    settle(cluster)
    tensors = tensors_of(known.model, known.x)
    ports = {port for _, port in [*data_ports(cluster), split(cluster.address)]}
    with Capture() as capture:
        known.asks(3)
        if anew:
            cluster.kill("agent1")
            until(lambda: len(cluster.connection.nodes()) == 1)
            shutil.rmtree(weights)
            cluster.add_agent("agent1")
            settle(cluster)
            assert known.session.prepare({"input": known.x.shape}).report["nodes_used"] == ["agent0", "agent1"]
            known.asks(3)
    settle(cluster)
    before = lasting(state_of(cluster))
    ports |= {port for _, port in data_ports(cluster)}
    streams = capture.streams(ports)
    assert sum(map(len, streams.values())) > 3 * known.x.nbytes
    assert not any(found_in(stream, tensors) for stream in streams.values())
    for (_, port), stream in streams.items():
        if ("127.0.0.1", port) in data_ports(cluster):
            heard = say_raw(("127.0.0.1", port), stream)
            assert heard[:1] in {b"", b"\x15", b"\x16"}, "the beginning of a handshake at most"
        elif port == split(cluster.address)[1]:
            assert len(say_raw(split(cluster.address), stream)) <= NO_ANSWER_BYTES
    known.asks()
    assert lasting(state_of(cluster)) == before


@pytest.mark.faults
def test_what_is_looked_for_would_be_found(known):
    tensors = tensors_of(known.model, known.x)
    for tensor in tensors[:3]:
        for start in (0, 3, 17):
            assert found_in(bytes(start) + tensor[40:80] + bytes(5), tensors)
    assert not found_in(os.urandom(1 << 20), tensors)
