"""The units of systemd, judged by systemd itself; it exits with 0 on what it cannot parse, so it must be silent, too."""

import re
import shutil
import subprocess

import pytest

from tests.deploy.conftest import BIN, ROOT, needs

pytestmark = pytest.mark.deploy
UNITS = sorted((ROOT / "deploy/systemd").rglob("*.service"))
MOST_EXPOSED = 2.5
"""Of 10, as systemd counts: what runs models and listens to a network."""


@pytest.fixture(params=UNITS, ids=lambda path: f"{path.parent.name}/{path.name}")
def unit(request, tmp_path):
    """A unit as it would be started, templates by a name."""
    needs(**{"systemd-analyze": "systemd"})
    return shutil.copy(request.param, tmp_path / request.param.name.replace("@", "@left"))


def verified(path, tmp_path):
    manager = "--user" if "%h" in path.read_text() else "--system"
    environment = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    return subprocess.run(["systemd-analyze", "verify", manager, path], env=environment, capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_in_a_unit(unit, tmp_path):
    done = verified(unit, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_misspelt_setting_would_be_found(unit, tmp_path):
    unit.write_text(unit.read_text().replace("RestartSec", "RestartSecs"))
    assert "RestartSecs" in verified(unit, tmp_path).stderr


def test_units_of_the_machine_are_hardened(unit, tmp_path):
    if "%h" in unit.read_text():
        pytest.skip("a user's manager may confine little")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=False)
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert level, done.stderr
    assert float(level[1]) <= MOST_EXPOSED


def test_there_are_units_for_the_machine_and_for_a_user():
    assert {path.relative_to(ROOT / "deploy/systemd").as_posix() for path in UNITS} == {
        f"{where}/{name}" for where in ("system", "user") for name in ("bbgrap-agent@.service", "bbgrap-coordinator.service")
    }


def allowed(name):
    """The calls that a group of systemd's has, those of the groups in it among them."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=False).stdout.splitlines()
    found = {line.strip() for line in listed[1:]}
    return found.union(*(allowed(inner) for inner in found if inner.startswith("@")))


@pytest.mark.timeout(400)
def test_units_allow_every_call_that_a_cluster_makes(tmp_path):
    needs(**{"systemd-analyze": "systemd", "strace": "strace"})
    command = ["strace", "-f", "-qq", "-o", tmp_path / "calls", BIN / "bbgrap", "submit", "zoo:tiny", "--agents", "2", "--verify"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = set(re.findall(r"^\d+ +([a-z]\w+)\(", (tmp_path / "calls").read_text(errors="replace"), re.MULTILINE))
    assert len(made) > 50
    for path in (ROOT / "deploy/systemd/system").iterdir():
        given = re.findall(r"^SystemCallFilter=(.*)", path.read_text(), re.MULTILINE)
        assert given
        assert made - set().union(*(allowed(one) if one.startswith("@") else {one} for one in " ".join(given).split())) == set()
