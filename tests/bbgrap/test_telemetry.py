"""No process of ours reports to onnxruntime's makers, unless its user says so."""

import os
import subprocess
import sys

import pytest

IMPORTS = "import {package}, onnxruntime, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
# onnxruntime reports nothing in a continuous integration, and its own switch is what is tested
SILENCERS = {"CI", "TF_BUILD", "GITHUB_ACTIONS", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS"}


def choice(package, home, **given):
    """Import a package and then onnxruntime in a process whose files go to `home`; returns the switch as onnxruntime saw it."""
    environment = {name: value for name, value in os.environ.items() if name not in SILENCERS}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), **given}
    command = [sys.executable, "-c", IMPORTS.format(package=package)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("package", ["bbgrap", "bbgrap_agent.main", "bbgrap_coordinator.main"])
def test_telemetry_is_off(package, tmp_path):
    assert choice(package, tmp_path) == "1"
    assert not [file for file in tmp_path.rglob("*") if "onnxruntime" in str(file).lower()], "an identity was made for this machine"


def test_a_user_may_have_it(tmp_path):
    assert choice("bbgrap", tmp_path, ORT_DISABLE_TELEMETRY="0") == "0"
