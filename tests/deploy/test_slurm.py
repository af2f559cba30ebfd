"""The job script on a real Slurm: munged, slurmctld, and two slurmd on one machine, each of which is a node."""

import os
import subprocess
import sys

import pytest

from tests.deploy.conftest import BIN, CODE, ROOT, Client, free_port, needs
from tests.waiting import until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]


@pytest.fixture
def slurm(short, processes):
    """Run a command of Slurm, with two nodes `n1` and `n2`; what they log is in the folder."""
    found = needs(munged="munge", slurmctld="slurmctld", slurmd="slurmd", sbatch="slurm-client")
    if os.geteuid() != 0:
        pytest.skip("slurmd must run as root")
    (short / "munge").mkdir(mode=0o700)
    key = short / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    munge = [found["munged"], "--foreground", "--force", f"--key-file={key}", f"--socket={short}/munge/socket"]
    munge += [f"--{kind}-file={short}/munge/{kind}" for kind in ("log", "pid", "seed")]
    hostname = os.uname().nodename.partition(".")[0]
    ports = [free_port() for _ in range(3)]
    (short / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={hostname}(127.0.0.1)\nSlurmctldPort={ports[0]}\nAuthType=auth/munge\n"
        f"AuthInfo=socket={short}/munge/socket\nSlurmUser=root\nSlurmdUser=root\nStateSaveLocation={short}/state\n"
        f"SlurmdSpoolDir={short}/%n\nSlurmctldPidFile={short}/ctld.pid\nSlurmdPidFile={short}/%n.pid\nMpiDefault=none\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n"
        "ReturnToService=2\nSwitchType=switch/none\n"
        f"NodeName=n1 NodeHostname={hostname} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={os.cpu_count()}\n"
        f"NodeName=n2 NodeHostname={hostname} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={os.cpu_count()}\n"
        "PartitionName=all Nodes=n1,n2 Default=YES State=UP\n"
    )
    (short / "slurm.conf").chmod(0o644)
    for folder in ("state", "n1", "n2"):
        (short / folder).mkdir()
    environment = {**os.environ, "SLURM_CONF": str(short / "slurm.conf")}

    def start(name, *command):
        with (short / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    start("munged", *munge)
    until(lambda: (short / "munge" / "socket").exists(), why=(short / "munged.log").read_text)
    start("ctld", found["slurmctld"], "-D", "-f", short / "slurm.conf")
    for name in ("n1", "n2"):
        start(name, found["slurmd"], "-D", "-N", name, "-f", short / "slurm.conf")

    def run(*command):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return (done.stdout + done.stderr).strip()

    logs = lambda: run("sinfo", "-N") + "".join((short / f"{name}.log").read_text()[-2000:] for name in ("ctld", "n1", "n2"))  # noqa: E731
    until(lambda: run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split() == ["n1", "n2"], why=logs)
    yield run
    run("scancel", "--user", "root")
    until(lambda: not run("squeue", "-h"), why=lambda: run("squeue"))


def test_a_job_serves_loses_a_node_without_a_failed_request_and_leaves_nothing(slurm, short):
    folder = short / "client"
    folder.mkdir()
    (short / "tmp").mkdir()
    exported = {
        "PREPARE": f"export PATH={BIN}:$PATH PYTHONPATH={CODE} XDG_CACHE_HOME={short}/cache TMPDIR={short}/tmp",  # noqa: S108 - in a folder of this test
        "BBGRAP_HOST": "127.0.0.1",
    }
    submitted = slurm(
        *(
            "env",
            *(f"{name}={value}" for name, value in exported.items()),
            "sbatch",
            "--parsable",
            "--nodes=2",
            f"--output={short}/job.log",
        ),
        *(f"--chdir={ROOT}", ROOT / "deploy/slurm/bbgrap.sbatch", sys.executable, "-m", "tests.deploy.client", folder),
    )
    assert submitted.isdigit(), submitted

    def log():
        return slurm("squeue", "--steps") + (short / "job.log").read_text()[-6000:]

    client = Client(folder)
    client.wait_for_answers(within_s=180, why=log)
    assert "2 of 2 agents have joined" in log()
    steps = slurm("squeue", "-h", "--steps", "-o", "%i %j").splitlines()
    (lost,) = (line.split()[0] for line in steps if line.endswith("agent-n2"))
    slurm("scancel", "--signal=KILL", lost)
    until(lambda: "agent on n2 ended; it is started again" in log(), why=log)
    client.wait_for_answers(20, why=log)
    until(lambda: any(line.endswith("agent-n2") for line in slurm("squeue", "-h", "--steps", "-o", "%i %j").splitlines()), why=log)
    client.stop()
    until(lambda: not slurm("squeue", "-h"), 120, log)
    verdict = client.verdict()
    assert (verdict["failures"], verdict["verified"], verdict["nodes"]) == ([], True, 2), verdict
    assert [path for path in (short / "tmp").rglob("*") if path.is_file()] == []
