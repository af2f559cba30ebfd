"""The commands that start a cluster of their own, and what they leave of it."""

import json
import os
import signal
import subprocess
import time

import pytest

pytestmark = pytest.mark.cluster


@pytest.mark.broad
def test_demo_starts_its_own_cluster_and_verifies(run):
    result = run("demo", "--model", "zoo:tiny", "--runs", 2)
    assert result.exit_code == 0, result.stderr
    assert "verified against plain onnxruntime" in result.stdout
    assert "What the plan for zoo:tiny over 2 nodes does" in result.stdout
    assert "starting a coordinator and 2 agents" in result.stderr


@pytest.mark.broad
def test_local_runs_until_it_is_interrupted(cache):
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    local = subprocess.Popen(
        ["bbgrap", "local", "--agents", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings
    )
    try:
        address = local.stdout.readline().strip()
        there = subprocess.run(["bbgrap", "nodes", "--coordinator", address, "--json"], capture_output=True, text=True, check=True)
        assert [node["name"] for node in json.loads(there.stdout)] == ["agent0"]
        local.send_signal(signal.SIGINT)
        out, said = local.communicate(timeout=20)
    finally:
        local.kill()
        local.communicate()
    assert local.returncode == 0
    assert out == ""
    assert f"export BBGRAP_COORDINATOR={address}" in said
    assert said.endswith("stopped\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.faults)])
def test_a_command_that_is_ended_leaves_nothing_of_its_own_cluster(tmp_path, cache, number):
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(tmp_path)}
    command = ["bbgrap", "bench", "zoo:tiny", "--agents", "1", "--planner", "single", "--runs", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings) as bench:
        while not list(tmp_path.glob("bbgrap-*/address")):  # as soon as its coordinator listens
            assert bench.poll() is None, bench.stderr.read()
            time.sleep(0.05)
        bench.send_signal(number)
        said = bench.communicate(timeout=20)[1]
    left = [folder for folder in tmp_path.iterdir() if any(folder.iterdir())]  # one where coordinators are noted stays
    assert (bench.returncode, "Traceback" in said, left) == (128 + number, False, [])


@pytest.mark.faults
def test_files_of_the_folder_are_no_modules_of_a_command_and_of_what_it_starts(tmp_path, cache):
    for name in ("msgpack", "onnx", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n")
    command = ["bbgrap", "submit", "zoo:tiny", "--agents", "1", "--verify"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
