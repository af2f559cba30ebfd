"""Other people's clients, each from an environment of its own: the whole list of endpoints, answers to the bit, and a minute of load.

`make test-clients` runs it; the environments, in .venv-clients, are made once.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bbgrap.session import InferenceSession
from tests.serving.conftest import serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
ENVIRONMENTS = Path(__file__).parents[3] / ".venv-clients"


def environment(name, *packages, more=()):
    """The folder of an environment with these packages and no others."""
    folder = ENVIRONMENTS / name
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install", *more, *packages], check=True
        )
        done.touch()
    return folder


@pytest.fixture(scope="module")
def answers(cluster, models, tmp_path_factory):
    """A folder with an input, and what a session answers to it."""
    folder = tmp_path_factory.mktemp("answers")
    x = np.random.default_rng(3).random((500, 4), np.float32) * 0.99
    session = InferenceSession(models / "rows.onnx", cluster=cluster.connection, planner="single")
    for name, array in zip("xyz", (x, *session.run(["y", "z"], {"x": x})), strict=True):
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.fixture
def place(served):
    return served.url.removeprefix("http://")


def run(python, program, *arguments):
    done = subprocess.run([python, HERE / program, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tritonclient(served, answers, place):
    python = environment("triton", "tritonclient[http,grpc]==2.73.0") / "bin" / "python"
    run(python, "triton_http.py", place, answers)
    run(python, "triton_grpc.py", served.grpc, answers)


def test_kserve(served, answers, place):
    python = environment("kserve", "kserve==0.21.0") / "bin" / "python"
    run(python, "kserve_both.py", place, served.grpc, answers)


def test_curl(served, tmp_path):
    done = subprocess.run(["sh", HERE / "curl.sh", served.url, tmp_path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def perf_analyzer():
    """The program and its surroundings: tritonclient's last wheel with it, CUDA's runtime, and a library of Debian's."""
    folder = environment("perf", "tritonclient==2.51.0", "nvidia-cuda-runtime-cu12", more=["--no-deps"])
    found = next(folder.rglob("libb64.so.0d"), None)
    if found is None:
        subprocess.run(["apt-get", "-q", "download", "libb64-0d"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["dpkg", "-x", next(folder.glob("libb64-0d*.deb")), folder / "debian"], check=True)
    libraries = [next(folder.rglob(name)).parent for name in ("libcudart.so.12", "libb64.so.0d")]
    return folder / "bin" / "perf_analyzer", {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer(protocol, cluster, models, tmp_path, perf_analyzer):
    """Concurrency 1 to 16, a minute over each protocol; any failed request makes it end with an error."""
    program, surroundings = perf_analyzer
    with serving(cluster.address, models, tmp_path / "log", "--grpc", "127.0.0.1:0") as server:
        place = server.url.removeprefix("http://") if protocol == "http" else server.grpc
        command = [program, "-m", "rows", "-i", protocol, "-u", place, "--shape", "x:8,4", "--input-data", "zero"]
        command += [
            "--concurrency-range",
            "1:16:5",
            "--measurement-interval",
            "5000",  # of which it makes three at each of four levels
            "--max-trials",
            "3",
            "-s",
            "1000000",
            "-v",
        ]  # any window is stable enough
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=300, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert [int(number) for number in re.findall(r"^Concurrency: (\d+), throughput: [1-9]", said, re.MULTILINE)] == [1, 6, 11, 16], said
        assert not re.search(r"error|fail", said, re.IGNORECASE), said
        assert time.monotonic() - began > 60
        with server.http() as http:
            (stats,) = http.json("GET", "/v2/models/rows/stats")[1]["model_stats"]
            assert (stats["inference_stats"]["fail"]["count"], stats["inference_count"] > 100) == (0, True)
