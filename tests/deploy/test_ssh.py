"""`bbgrap up` over the real ssh: two sshd at two addresses of this machine are two hosts, each with a home of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from tests.deploy.conftest import BIN, CODE, ROOT, USER, Client, free_port, needs
from tests.waiting import until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]
ADDRESSES = {"left": "127.0.0.2", "right": "127.0.0.3"}


@pytest.fixture
def hosts(short, processes):
    """The ssh configuration by which `left` and `right` are reached; `nowhere` refuses, and `silent` says nothing."""
    sshd = needs(sshd="openssh-server", ssh="openssh-client")["sshd"]
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", short / key], check=True)
    (short / "authorized").write_text((short / "user_key.pub").read_text())
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # noqa: PTH103 - where sshd gives up its powers
    port = free_port("127.0.0.2")
    known, config = [], []
    for name, address in ADDRESSES.items():
        home = short / name
        home.mkdir()
        (short / f"sshd_{name}").write_text(
            f"ListenAddress {address}:{port}\nHostKey {short}/host_key\nAuthorizedKeysFile {short}/authorized\nPidFile none\n"
            f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
            f"SetEnv HOME={home} PYTHONPATH={CODE} XDG_CACHE_HOME={home}/cache XDG_CONFIG_HOME={home}/config XDG_STATE_HOME={home}/state\n"
        )
        with (short / f"sshd_{name}.log").open("wb") as log:
            processes.append(subprocess.Popen([sshd, "-D", "-e", "-f", short / f"sshd_{name}"], stderr=log))
        known.append(f"[{address}]:{port} {(short / 'host_key.pub').read_text()}")
        config.append(f"Host {name}\n  HostName {address}\n  Port {port}\n")
    (short / "known").write_text("".join(known))
    (short / "ssh_config").write_text(
        "".join(config) + f"Host nowhere\n  HostName 127.0.0.4\n  Port {port}\n"
        "Host silent*\n  HostName 127.0.0.5\n  ProxyCommand sleep 600\n"
        f"Host *\n  User {USER}\n  IdentityFile {short}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {short}/known\n"
    )
    return short / "ssh_config"


@pytest.fixture
def up(hosts, short):
    """Run `bbgrap up` with a file about `left` and `right`, whose coordinator is at `left`; what it started is stopped in the end."""
    address = f"tcp://127.0.0.2:{free_port('127.0.0.2')}"
    file = short / "hosts.yaml"
    document = {
        "ssh_config": str(hosts),
        "coordinator": {"address": address, "ssh": "left"},
        "defaults": {"bin": str(BIN), "options": ["--threads", "1"]},
        "hosts": [{"name": name, "advertise": where, "memory": "2GiB"} for name, where in ADDRESSES.items()],
    }
    file.write_text(yaml.safe_dump(document))

    def run(*args, status=0, hosts=(), **changed):
        file.write_text(yaml.safe_dump({**document, **changed, "hosts": [*document["hosts"], *hosts]}))
        environment = {**os.environ, "PYTHONPATH": CODE, "HOME": str(short)}  # nothing of this user's own
        command = [BIN / "bbgrap", "up", file, *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return {one["name"]: one for one in json.loads(done.stdout)} if "--json" in args else done.stdout + done.stderr

    run.address = address
    yield run
    run("stop")


def of_cluster(short):
    """The processes that belong to this cluster: whose environment has one of its homes."""
    homes = {str(short / name) for name in ADDRESSES}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") in homes and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_cluster_is_started_serves_loses_an_agent_gets_it_again_and_ends(up, short, processes):
    assert {state["process"] for state in up("--check", "--json").values()} == {"tried"}
    started = up("--json")
    assert {name: state["process"] for name, state in started.items()} == dict.fromkeys(("coordinator", "left", "right"), "started")
    assert started["left"]["cluster"] == started["right"]["cluster"] == "alive"

    folder = short / "client"
    folder.mkdir()
    token = (short / "left/state/bbgrap/hosts/coordinator.state/keys/local.token").read_text()
    environment = {**os.environ, "PYTHONPATH": CODE, "BBGRAP_COORDINATOR": up.address, "BBGRAP_TOKEN": token.strip()}
    command = [sys.executable, "-m", "tests.deploy.client", folder]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
    processes.append(process)
    client = Client(folder)
    client.wait_for_answers()

    assert {state["process"] for state in up("--json").values()} == {"runs"}  # nothing is started twice
    os.killpg(started["right"]["pid"], signal.SIGKILL)
    client.wait_for_answers()
    lost = until(lambda: (seen := up("status", "--json", status=1))["right"]["cluster"] == "" and seen)
    assert (lost["right"]["process"], lost["left"]["process"], lost["left"]["cluster"]) == ("ended", "runs", "alive")
    assert "data plane" in "\n".join(lost["right"]["log"])
    assert "its process ended" in up("status", status=1)
    again = up("--json")
    assert {name: state["process"] for name, state in again.items()} == {"coordinator": "runs", "left": "runs", "right": "started"}
    faults = {
        name: state["fault"] for name, state in up("--json", status=1, defaults={"bin": str(BIN), "options": ["--threads", "2"]}).items()
    }
    assert [name for name, fault in faults.items() if "stop and start it for the changes" in fault] == ["left", "right"]
    client.wait_for_answers()
    client.stop()
    assert process.wait(120) == 0, (folder / "log").read_text()
    verdict = client.verdict()
    assert (verdict["failures"], verdict["verified"], verdict["nodes"]) == ([], True, 2), verdict

    assert "joins tcp://" in up("logs", "right", "--lines", "100")
    up("stop")
    assert of_cluster(short) == []
    assert {state["process"] for state in up("status", "--json", status=1).values()} == {"stopped"}


def test_the_token_is_in_nobodys_arguments(up, short):
    up()
    secret = (short / "left/state/bbgrap/hosts/coordinator.state/keys/join.token").read_text().strip()
    assert any(process.environ().get("BBGRAP_TOKEN") == secret for process in of_cluster(short))  # so there was something to hide
    everybody = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert any("--name" in arguments for arguments in everybody)
    assert not any(secret in " ".join(arguments) for arguments in everybody)


def test_hosts_that_fail_are_named_with_what_they_say_and_the_others_run(up):
    bad = [
        {"name": "nowhere"},
        {"name": "bare", "ssh": "right", "bin": "/nowhere/bin"},
        {"name": "odd", "ssh": "right", "options": ["--cores", "none"]},
    ]
    states = up("--json", "--timeout", "60", status=1, hosts=bad)
    assert states["left"]["cluster"] == states["right"]["cluster"] == "alive"
    assert "Connection refused" in states["nowhere"]["fault"]
    assert "no 'bbgrap-agent' in /nowhere/bin" in states["bare"]["fault"]
    assert states["odd"]["process"] == "ended"
    assert "cores: expected a list" in "\n".join(states["odd"]["log"])
    shown = up("--check", status=1, hosts=bad)
    assert "Connection refused" in shown
    assert "no 'bbgrap-agent'" in shown


def test_hosts_that_say_nothing_cost_a_command_some_seconds_and_not_each_its_own(up):
    """They cost half a minute, and with `logs` ten seconds each."""
    up()
    silent = [{"name": f"silent{number}"} for number in range(4)]
    for action in ("status", "logs", "start"):
        began = time.monotonic()
        said = up(action, status=1, hosts=silent)
        assert 4 < time.monotonic() - began < 20, said
        assert all(f"silent{number}" in said for number in range(4))
        assert "timed out" in said
    assert "joins tcp://" in up("logs", status=1, hosts=silent)


def test_a_log_is_followed_until_whoever_looks_goes_away(up, short):
    up()
    command = [BIN / "bbgrap", "up", short / "hosts.yaml", "logs", "left", "-f"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": CODE}, stdout=subprocess.PIPE, text=True) as watcher:
        assert any("joins tcp://" in line for line in watcher.stdout)
        assert [process for process in of_cluster(short) if process.name() == "tail"]
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=30)
    until(lambda: not [process for process in of_cluster(short) if process.name() == "tail"])


def test_agents_join_a_coordinator_that_runs_already(up, short, hosts):
    up("start", "left")
    keys = short / "left/state/bbgrap/hosts/coordinator.state/keys"
    document = {
        "ssh_config": str(hosts),
        "coordinator": {"address": up.address, "join_token": str(keys / "join.token")},
        "hosts": [{"name": "guest", "ssh": "right", "bin": str(BIN)}],
    }
    (short / "guests.yaml").write_text(yaml.safe_dump(document))

    def run(*args):
        command = [BIN / "bbgrap", "up", short / "guests.yaml", *args, "--json", "--token-file", keys / "local.token"]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": CODE}, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, [(one["name"], one["process"], one["cluster"]) for one in json.loads(done.stdout)]

    assert run() == (0, [("guest", "started", "alive")])
    assert run("status") == (0, [("guest", "runs", "alive")])
    assert run("stop") == (0, [("guest", "ended", "")])
    assert {name: state["process"] for name, state in up("status", "--json", status=1).items()} == {
        "coordinator": "runs",
        "left": "runs",
        "right": "stopped",
    }
