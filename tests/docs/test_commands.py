"""Every shell command of the documents runs: here on small models and one local cluster.

What is heavy is made light by `LIGHTER`, which keeps command and options; what cannot run here is in `NOT_RUN`, each with its reason.
"""

import re
import shlex
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bbgrap.cli.main import app
from tests.docs.conftest import AGENTS, COORDINATOR, HEAD
from tests.docs.documents import ROOT, commands

pytestmark = pytest.mark.cluster

LIGHTER = (
    (r"zoo:(resnet50|vgg16)", "zoo:tiny"),
    (r"^(bbgrap (?:submit|bench|trace) .*) --agents 2", r"\1"),  # on the cluster that is there
    (r" --coordinator tcp://head:7070", ""),
    (r" --runs \d+", ""),
    (r"^(bbgrap (?:bench|trace) (?!.*--stream).*)", r"\1 --runs 2"),
    (r" --stream 200", " --stream 8"),
    (r"inspect model.onnx", "inspect text.onnx"),
    (r"^(bbgrap (?:plan|simulate) .*?)(?:zoo:tiny|model\.onnx)", r"\1small.onnx"),
    (r"^(bbgrap (?:local|serve) .*)--agents 2", r"\1--agents 1"),
    (r"^(bbgrap (?:demo|profile(?! add)).*)", r"\1 --help"),  # they measure nodes, 7 seconds each; tests/bbgrap/cli runs both
    (r"^(bbgrap .*--planner auto.*)", r"\1 --search-seconds 1"),
    (r"^bbgrap (up|down) .*", r"bbgrap \1 --help"),  # tests/deploy runs it on hosts
    (r"^bbgrap exec .*", "bbgrap exec --agents 1 program.py"),
    (r"^(bbgrap serve .*?)(?: --http \S+)?$", r"\1 --http 127.0.0.1:0"),
    (r"--grpc \S+", "--grpc 127.0.0.1:0"),
)
"""What is replaced, in this order; equal commands run once."""

STARTED = {COORDINATOR, *AGENTS.values(), f"{AGENTS['left']} --threads 4", f"export BBGRAP_COORDINATOR={HEAD}"}
"""What the cluster of these tests is started and found with, at an address of this machine and with one thread for each agent."""

NOT_RUN = {
    "useradd --system --home-dir /var/lib/bbgrap --shell /usr/sbin/nologin bbgrap": "it makes a user of the machine",
    "cp bbgrap-coordinator.service bbgrap-agent@.service /etc/systemd/system/": "tests/deploy has systemd judge the units",
    "systemctl daemon-reload": "it needs systemd as the machine's first process",
    "systemctl enable --now bbgrap-coordinator": "the same",
    "install -m 600 /var/lib/bbgrap/coordinator/keys/join.token /etc/bbgrap/join.token": "it needs what the units keep",
    "systemctl enable --now bbgrap-agent@left": "the same",
    "docker build --file deploy/docker/Dockerfile --tag bbgrap .": "tests/deploy builds the image",
    "MODELS=~/models docker compose --file deploy/docker/compose.yaml up": "it needs an engine",
    "kubectl apply --kustomize deploy/kubernetes/base": "it needs a cluster; tests/deploy has the manifests judged",
    "deploy/kubernetes/tokens.sh": "the same",
    "sbatch --nodes 4 --cpus-per-task 8 deploy/slurm/bbgrap.sbatch bbgrap submit zoo:resnet50 --verify": "tests/deploy runs the job",
    "make demo": "it installs into .venv; `bbgrap demo` runs",
    "make dev": "it installs into .venv",
    "make test": "it would run this test",
    "make check": "it installs into .venv",
    "make fuzz-readers": "it installs atheris and runs for minutes; tests/fuzzing/readers runs in small",
    "make fuzz-readers FUZZ_READERS_ARGS='--reader read_model --seconds 3600'": "an hour",
    "make fuzz": "it installs and runs for minutes; `python -m tests.fuzzing --help` runs",
    "make fuzz FUZZ_ARGS='--models 5000 --seed 1 --minutes 60'": "an hour",
    "python -m tests.hostile --seeds 0..1000": "minutes; tests/hostile runs it in small",
    "python tools/commands_page.py": "it writes into the tree; test_generated.py runs what it calls",
    "python tools/operators_page.py": "it writes into the tree; test_coverage.py runs what it calls",
    "python tools/protocol_page.py": "it writes into the tree; test_generated.py runs what it calls",
    "pip install 'bbgrap[serve,grpc]'": "it installs; the extras are those of the tests",
    "curl http://127.0.0.1:8000/v2/models/resnet50": "no server is there; tests/serving/judges asks all there is",
    "python -m benchmarks.network --models resnet50,vgg16,unet,vit_b16,yolo,resnet50@10 --planners auto --save": "root, and half an hour",
    "python -m benchmarks.peers": "root, and an hour; tests/benchmarks runs it in small",
    "python -m benchmarks.peers --models vgg16 --links 1gbit --peers replicas,ray --rounds 3": "root, and minutes",
    "pip install openvino ray distributed torch": "it installs",
}

SERVERS = {
    "bbgrap local --agents 2",
    "bbgrap serve zoo:resnet50 detector=yolo.onnx --agents 2",
    "bbgrap serve --models models --grpc 127.0.0.1:8001",
    "bbgrap serve --models models --http 0.0.0.0:8000 --grpc 0.0.0.0:8001 --coordinator tcp://head:7070",
}
"""What runs until it is interrupted."""


def lighter(command: str) -> str:
    for pattern, replacement in LIGHTER:
        command = re.sub(pattern, replacement, command)
    return command


COMMANDS = commands(tutorials=False)
TUTORIALS = [command for command in commands(tutorials=True) if not command.startswith("bbgrap serve")]
"""test_tutorials.py runs all of them in their order, with servers and programs; here each is tried by itself."""
RUN_HERE = list(dict.fromkeys(lighter(line) for line in [*COMMANDS, *TUTORIALS] if line.startswith("bbgrap ") and line not in SERVERS))
OTHERS = {command for command in COMMANDS if not command.startswith("bbgrap ")}


def test_what_cannot_run_here_is_exactly_what_is_listed():
    assert OTHERS - STARTED - {"python -m tests.fuzzing --help"} == NOT_RUN.keys()
    assert set(COMMANDS) >= STARTED | SERVERS


IN_README = [lighter(command) for command in commands(tutorials=False, only="README.md")]
PARAMETERS = [pytest.param(command, marks=() if command in IN_README else pytest.mark.broad) for command in RUN_HERE]


@pytest.mark.parametrize("command", PARAMETERS)
def test_a_command_runs(command, address, folder, monkeypatch, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("BBGRAP_COORDINATOR", address)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert result.output


@pytest.mark.broad
@pytest.mark.parametrize("command", sorted(SERVERS))
def test_a_server_runs_until_it_is_interrupted(command, address, folder, environment):
    words, surroundings = shlex.split(lighter(command)), {**environment, "BBGRAP_COORDINATOR": address}
    process = subprocess.Popen(words, cwd=folder, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = next(line for line in iter(process.stdout.readline, "") if re.search("^(tcp|http)://", line))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said


def test_the_command_of_fuzzing_says_what_it_takes():
    done = subprocess.run([sys.executable, "-m", "tests.fuzzing", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--models" in done.stdout
