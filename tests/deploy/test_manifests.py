"""The manifests, put together by kustomize and judged by Kubernetes' own schemas; there is no cluster here that runs them."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from tests.deploy.conftest import BIN, ROOT, needs

pytestmark = pytest.mark.deploy
FOLDER = ROOT / "deploy/kubernetes"


@pytest.fixture(scope="module", params=["base", "daemonset"])
def manifests(request):
    needs(kubectl="kubernetes-client, or kubectl of Kubernetes' own packages")
    done = subprocess.run(["kubectl", "kustomize", FOLDER / request.param], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def validate(tmp_path):
    if find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed; run 'make test-deploy'")

    def run(text):
        (tmp_path / "all.yaml").write_text(text)
        command = [sys.executable, "-m", "kubernetes_validate", "--strict", tmp_path / "all.yaml"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_they_are_what_kubernetes_knows(manifests, validate):
    done = validate(manifests)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"passed for resource (\w+)/(\w+)", done.stdout + done.stderr)
    assert len(passed) == len(list(yaml.safe_load_all(manifests)))


def test_a_misspelt_field_would_be_found(manifests, validate):
    assert validate(manifests.replace("readinessProbe:", "readynessProbe:")).returncode != 0


def test_names_that_one_manifest_has_of_another_are_there(manifests):
    documents = list(yaml.safe_load_all(manifests))
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in documents if "template" in one.get("spec", {})}
    assert {one["kind"] for one in documents if one["metadata"]["name"] == "agent" and "template" in one.get("spec", {})} <= {
        "StatefulSet",
        "DaemonSet",
    }
    labels = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods.values()]
    ports = {port["name"] for pod in pods.values() for box in pod["spec"]["containers"] for port in box["ports"]}
    services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
    assert all(spec["selector"]["app.kubernetes.io/name"] in labels for spec in services.values())
    assert {port["targetPort"] for spec in services.values() for port in spec["ports"]} <= ports
    for policy in (one["spec"] for one in documents if one["kind"] == "NetworkPolicy"):
        assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"] in labels
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= ports
    said = " ".join(str(box.get("args", "")) for pod in pods.values() for box in pod["spec"]["containers"])
    assert set(re.findall(r"tcp://(\w+):", said)) <= services.keys()
    mounted = {volume["secret"]["secretName"] for pod in pods.values() for volume in pod["spec"]["volumes"] if "secret" in volume}
    assert mounted == set(re.findall(r"secret generic (\w+)", (FOLDER / "tokens.sh").read_text()))


def test_options_are_those_of_the_commands(manifests):
    for document in yaml.safe_load_all(manifests):
        for box in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            command = [*box["command"], "--help"]
            done = subprocess.run(
                command,
                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"},
                capture_output=True,
                text=True,
                check=False,
            )
            if command[1] == "serve" and done.returncode == 2:
                pytest.skip("there is no 'bbgrap serve' here")
            assert all(option in done.stdout for option in box["args"] if option.startswith("--")), done.stdout
