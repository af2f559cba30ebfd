"""The image is built from its Dockerfile without an engine, by buildah, on a base of Debian's packages; its commands run in it."""

import os
import platform
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.deploy.conftest import ROOT, needs

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]
COMPOSE = ROOT / "deploy/docker/compose.yaml"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Run a command in a container of the image."""
    needs(buildah="buildah", debootstrap="debootstrap")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and buildah's chroot must run as root")
    folder = tmp_path_factory.mktemp("image")
    wheels, base = folder / "wheels", folder / "base"
    storage = ("--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "vfs")

    def buildah(*command):
        done = subprocess.run(["buildah", *storage, *command], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"buildah {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    # Of the packages that this Python's pip finds: what the image installs does not depend on how this machine reaches a registry.
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "--constraint", ROOT / "constraints.txt")
    subprocess.run([*pip, f"{ROOT}[serve,grpc]", "hatchling"], check=True, timeout=600)
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    include = "--include=python3,python3-venv"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", include, release, base], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    try:
        made = buildah("from", "scratch").strip()
        buildah("copy", made, base, "/")
        buildah("copy", made, wheels, "/wheels")
        buildah("config", "--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels", made)
        buildah("commit", made, "localhost/base")
        buildah("rm", made)
        buildah(
            *("build", "--isolation", "chroot", "--build-arg", "BASE=localhost/base", "--file", ROOT / "deploy/docker/Dockerfile"),
            *("--tag", "bbgrap", ROOT),
        )
        container = buildah("from", "bbgrap").strip()
        yield lambda *command: buildah("run", "--isolation", "chroot", container, "--", *command)
    finally:
        subprocess.run(["buildah", *storage, "rm", "--all"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def test_the_commands_run_in_the_image(image):
    assert image("bbgrap", "--version").startswith("bbgrap ")
    for command in ("bbgrap-coordinator", "bbgrap-agent"):
        assert "--verbose" in image(command, "--help")
    assert "::bbgrap" in image("sh", "-c", "cat /opt/bbgrap/lib/python3*/site-packages/bbgrap/launching/on_host.sh")
    assert image("id", "-u").strip() == "10001"


def test_two_agents_in_it_answer_as_onnxruntime_does(image):
    assert "verified" in image("bbgrap", "submit", "zoo:tiny", "--agents", "2", "--verify")


def test_services_of_the_compose_file_run_commands_that_the_image_has(image):
    document = yaml.safe_load(COMPOSE.read_text())
    for name, service in document["services"].items():
        assert image("sh", "-c", f"command -v {service['command'][0]}"), name
