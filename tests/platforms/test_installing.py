"""What is built from this tree installs and runs elsewhere; it takes the tools from the package index, and minutes.

The packages themselves are built without a network: hatchling and this tree are enough.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.platforms, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROGRAMS = ("bbgrap", "bbgrap-agent", "bbgrap-coordinator")
EXTRAS = {"serve", "grpc", "otel", "mdns", "ray", "dask", "images"}


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The folder of the programs that build and install."""
    made = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "venv", made)
    run(made / "bin" / "pip", "install", "-q", "build", "hatchling", "uv", "pipx")
    return made / "bin"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """This tree, without what is not of it."""
    copied = tmp_path_factory.mktemp("source")
    for name in run("git", "-C", ROOT, "ls-files").splitlines():
        if (ROOT / name).exists():
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copied / name)
    return copied


@pytest.fixture(scope="module")
def built(tools, source, tmp_path_factory):
    """The folder with the source package, and with the wheel that is built from that."""
    made = tmp_path_factory.mktemp("built")
    run(tools / "python", "-m", "build", "--no-isolation", "-o", made, source, PIP_NO_INDEX="1")
    return made


def wheel_of(built):
    return next(built.glob("*.whl"))


def test_the_source_package_is_all_that_make_needs(built, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert run("make", "-C", unpacked, "--no-print-directory", "help") == run("make", "-C", ROOT, "--no-print-directory", "help")
    run("make", "-C", unpacked, "sizes")
    for target in ("check", "test", "demo"):
        run("make", "-C", unpacked, "-n", target)
    folders = re.search(r"CODE := \$\(wildcard (.*)\)", (unpacked / "Makefile").read_text())[1].split()
    assert [name for name in (*folders, "deploy", "docs", "constraints.txt") if not (unpacked / name).exists()] == []


def test_the_wheel_names_its_extras(built):
    with zipfile.ZipFile(wheel_of(built)) as wheel:
        said = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    assert set(re.findall(r"^Provides-Extra: (.*)$", said, re.MULTILINE)) >= EXTRAS


def check(folder, tmp_path):
    for program in PROGRAMS:
        assert run(folder / program, "--version").startswith(f"{program} ")
    said = run(folder / "bbgrap", "submit", "zoo:tiny", "--agents", "1", "--verify", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "verified against plain onnxruntime" in said


def test_uv_installs_all_three_programs(built, tools, tmp_path):
    run(tools / "uv", "tool", "install", wheel_of(built), UV_TOOL_DIR=str(tmp_path / "tools"), UV_TOOL_BIN_DIR=str(tmp_path / "bin"))
    check(tmp_path / "bin", tmp_path)


def test_pipx_installs_all_three_programs(built, tools, tmp_path):
    run(tools / "pipx", "install", wheel_of(built), PIPX_HOME=str(tmp_path / "home"), PIPX_BIN_DIR=str(tmp_path / "bin"))
    check(tmp_path / "bin", tmp_path)


@pytest.mark.timeout(2400)
def test_the_oldest_packages_that_are_promised_are_enough(source, built, tools, tmp_path):
    """All direct dependencies as old as `pyproject.toml` allows: what reads, plans, computes and serves does as with today's."""
    python = tmp_path / "oldest" / "bin" / "python"
    run(tools / "uv", "venv", "--python", sys.executable, tmp_path / "oldest")
    install = (tools / "uv", "pip", "install", "--python", python, "--requirements", ROOT / "pyproject.toml")
    run(*install, "--resolution", "lowest-direct", *(f"--extra={name}" for name in ("serve", "grpc", "otel", "mdns", "images")))
    run(*install, "--extra", "test")  # what only tests need may be newer
    run(tools / "uv", "pip", "install", "--python", python, "--no-deps", wheel_of(built))
    parts = ("agents", "bbgrap/engine", "bbgrap/graph", "bbgrap/session", "coordinator", "serving")
    tests = [source / "tests" / part for part in parts]
    said = run(python, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "--rootdir", source, "-c", source / "pyproject.toml", *tests)
    assert re.search(r"\d{3,} passed", said), said
