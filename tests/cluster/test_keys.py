"""Keys between real processes: enrolled, taken back, replaced, and what is said when one does not fit."""

import json
import secrets
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import numpy as np
import pytest
import zmq

import bbgrap
from bbgrap.errors import AccessError
from bbgrap.protocol.directions import TO_AGENT, TO_COORDINATOR
from bbgrap.protocol.key_messages import Enrol, ListTokens
from bbgrap.protocol.messages import PROTOCOL_VERSION
from bbgrap.protocol.tokens import Token
from bbgrap.transport.certificates import make_request
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.locks import ClientLock
from tests.cluster import tiny
from tests.known_agents import known_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster
X = np.ones((8, 4), np.float32)
WITHIN_S = 30
GRACE_S = 5.0
"""How long a replaced token goes on: enough for a slow disk to take the keys, and for a busy machine to write its user's file."""


@pytest.fixture(scope="module")
def cluster():
    with known_cluster(3, pin=False) as cluster:
        yield cluster


def token(cluster, name, role="client"):
    return cluster.connection.create_token(name, role)


def requests(session):
    (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, tiny.expected(X))


def requests_for(seconds, session):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        requests(session)


def test_a_node_that_is_taken_back_ends_and_its_requests_run_elsewhere(cluster):
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=cluster, planner="bbgrap")
    requests(session)
    stop = threading.Event()

    def ask():
        done = 0
        while not stop.is_set():
            requests(session)
            done += 1
        return done

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        time.sleep(0.2)
        began = time.monotonic()
        keys = cluster.connection.revoke_token("agent2")
        until(lambda: {node.name for node in cluster.connection.nodes()} == {"agent0", "agent1"}, 1.0)
        taken = time.monotonic() - began
        assert cluster.processes["agent2"].wait(WITHIN_S) == 1
        time.sleep(0.5)
        stop.set()
        assert all(each.result() > 0 for each in asking)
    assert taken < 1.0
    assert next(key.revoked for key in keys if key.name == "agent2") > 0
    assert "agent2" in cluster.processes
    assert "was revoked" in cluster.log("agent2")
    cluster.processes.pop("agent2").stdin.close()


@pytest.mark.faults
def test_a_token_that_is_replaced_in_its_file_loses_no_request(cluster, tmp_path):
    file = tmp_path / "laptop.token"
    file.write_text(token(cluster, "laptop"))
    with bbgrap.connect(cluster.address, token_file=file) as connection:
        session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=connection, planner="bbgrap")
        requests(session)
        for _ in range(3):
            new = cluster.connection.rotate_token("laptop", GRACE_S)
            requests(session)
            file.write_text(new)
            requests_for(0.5, session)
        requests_for(GRACE_S, session)  # until the last of the old ones is over


def test_a_token_that_is_taken_back_fails_within_a_second_and_says_why(cluster):
    with bbgrap.connect(cluster.address, token=token(cluster, "guest")) as connection:
        session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=connection, planner="bbgrap")
        requests(session)
        cluster.connection.revoke_token("guest")
        began = time.monotonic()
        with pytest.raises(AccessError, match="was revoked"):
            requests_for(WITHIN_S, session)
        assert time.monotonic() - began < 1.0
    requests(bbgrap.InferenceSession(tiny.model_bytes(), cluster=cluster, planner="bbgrap"))


@pytest.mark.parametrize("role", ["reader", "agent"])
def test_a_role_may_do_what_it_is_for_and_is_told_what_it_may_not(cluster, role):
    text = token(cluster, f"a {role}", role)
    if role == "agent":
        with pytest.raises(AccessError, match="agent 'a agent' may not say Hello: that takes a key of 'reader' or 'client' or 'admin'"):
            bbgrap.connect(cluster.address, token=text)
        return
    with bbgrap.connect(cluster.address, token=text) as connection:
        assert connection.nodes()
        for forbidden in (connection.profile, connection.tokens):
            with pytest.raises(AccessError, match="reader 'a reader' may not say"):
                forbidden()
        with pytest.raises(AccessError, match="may not say OfferModel"):
            requests(bbgrap.InferenceSession(tiny.model_bytes(), cluster=connection))


@pytest.mark.faults
def test_a_node_needs_its_token_once(cluster, tmp_path):
    (tmp_path / "token").write_text(token(cluster, "hall", "agent"))
    command = ["bbgrap-agent", "--join", cluster.address, "--name", "fourth", "--threads", "1", "--until-eof"]
    command += ["--keys-dir", str(tmp_path / "keys"), "--cache-dir", str(tmp_path / "cache")]

    def joined(*options):
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            until(lambda: "fourth" in {node.name for node in cluster.connection.nodes()}, why=(tmp_path / "log").read_text)
        finally:
            process.stdin.close()
            process.wait(WITHIN_S)
        until(lambda: "fourth" not in {node.name for node in cluster.connection.nodes()})

    joined("--token-file", str(tmp_path / "token"))
    cluster.connection.revoke_token("hall")
    joined("--token-file", str(tmp_path / "nowhere"))
    (key,) = (tmp_path / "keys").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert [k.by for k in cluster.connection.tokens() if k.name == "fourth" and not k.revoked] == ["hall"]
    cluster.connection.revoke_token("fourth")
    command.remove("--until-eof")
    refused = subprocess.run([*command, "--token-file", str(tmp_path / "token")], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 4
    assert "does not know the key" in refused.stderr.splitlines()[-1]


@pytest.mark.faults
def test_of_two_machines_with_one_name_that_start_together_one_joins_and_the_other_is_told(cluster, tmp_path):
    """The second took the first one's key, and the first ended with the words that its key had been revoked."""
    (tmp_path / "token").write_text(token(cluster, "yard", "agent"))
    command = ["bbgrap-agent", "--join", cluster.address, "--name", "twin", "--threads", "1", "--until-eof"]
    command += ["--token-file", str(tmp_path / "token")]
    twins, logs = [], [tmp_path / "first.log", tmp_path / "second.log"]
    for log in logs:
        own = ["--keys-dir", str(tmp_path / f"{log.stem}-keys"), "--cache-dir", str(tmp_path / f"{log.stem}-cache")]
        with log.open("wb") as stream:
            twins.append(subprocess.Popen([*command, *own], stdin=subprocess.PIPE, stdout=stream, stderr=stream))
    try:
        until(lambda: any(twin.poll() is not None for twin in twins), 2 * WITHIN_S, lambda: "\n".join(log.read_text() for log in logs))
        (ended,) = (log.read_text() for log, twin in zip(logs, twins, strict=True) if twin.poll() is not None)
        assert "the name 'twin' is taken by" in ended.splitlines()[-1]
        assert "choose another with --name" in ended.splitlines()[-1]
        until(lambda: "twin" in {node.name for node in cluster.connection.nodes()}, why=lambda: "\n".join(log.read_text() for log in logs))
        assert [key.revoked for key in cluster.connection.tokens() if key.name == "twin"] == [0.0]
    finally:
        for twin in twins:
            twin.stdin.close()
        for twin in twins:
            twin.wait(WITHIN_S)
    until(lambda: "twin" not in {node.name for node in cluster.connection.nodes()})
    assert "enrolled: 'twin', with another key" not in cluster.log("coordinator")
    own = ["--keys-dir", str(tmp_path / "third-keys"), "--cache-dir", str(tmp_path / "third-cache")]
    with subprocess.Popen([*command, *own], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as third:
        until(lambda: "enrolled: 'twin', with another key than before; if these are two machines" in cluster.log("coordinator"))
        third.stdin.close()


@pytest.mark.faults
def test_another_version_is_told_so(cluster):
    control = ControlClient(zmq.Context.instance(), cluster.address, lambda: Credentials().lock(cluster.address))
    header = msgpack.packb([PROTOCOL_VERSION + 1, "Hello", [1]])
    control.send([header])
    frames = until(control.receive)
    assert f"speaks protocol {PROTOCOL_VERSION}, the other {PROTOCOL_VERSION + 1}" in TO_AGENT.decode(frames).reason
    control.send(TO_COORDINATOR.encode(ListTokens(2)))
    assert until(control.receive)
    control.close()


@pytest.mark.faults
def test_commands_manage_tokens_and_secrets_are_nowhere(cluster, tmp_path):
    def run(*words):
        command = ["bbgrap", *words, "--coordinator", cluster.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    text = run("token", "create", "desk", "--role", "reader", "--lasts", "1h").stdout.strip()
    (tmp_path / "token").write_text(text)
    assert len(json.loads(run("nodes", "--json", "--token-file", str(tmp_path / "token")).stdout)) >= 2
    listed = json.loads(run("token", "list", "--json").stdout)
    assert {key["name"]: key["kind"] for key in listed}["desk"] == "reader"
    assert "until" in next(line for line in run("token", "list").stdout.splitlines() if "desk" in line)
    assert run("token", "rotate", "desk", "--grace", "1s").stdout.strip() != text
    assert "is taken back" in run("token", "revoke", "desk").stderr
    body = text[-20:]  # of the secret: what comes after the last dash may be a letter or two, for a secret may have dashes itself
    for path in cluster.logs.rglob("*"):
        if path.is_file() and path.suffix != ".token":
            assert body.encode() not in path.read_bytes(), path
    for path in (cluster.logs / "state").rglob("*"):
        assert not path.stat().st_mode & 0o077, path


@pytest.mark.faults
def test_who_enrols_many_nodes_keeps_nobody_waiting(cluster):
    """Each enrolment waits for the disk, and requests waited with them."""
    join = Token.parse((cluster.logs / "state" / "keys" / "join.token").read_text(), "a test")
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=cluster, planner="bbgrap")
    requests(session)
    _, request = make_request("x")
    with zmq.Context() as context, ControlClient(context, cluster.address, lambda: ClientLock.of(join, "a test")) as client:
        for number in range(1000):
            client.send(TO_COORDINATOR.encode(Enrol(f"n{number}", secrets.token_hex(32), request)))
        answers, until_s = 0, time.monotonic() + 5
        while time.monotonic() < until_s:
            requests(session)
            while client.receive() is not None:
                answers += 1
        assert 0 < answers < 100
