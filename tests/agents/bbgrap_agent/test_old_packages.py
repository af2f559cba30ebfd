"""A real agent whose environment has an older package than bbgrap needs, as after somebody installed that by hand."""

import os

import pytest

from tests.agents.bare import bare_coordinator


@pytest.mark.cluster
def test_an_agent_says_which_packages_do_not_fit(tmp_path, monkeypatch):
    installed = tmp_path / "bbgrap-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bbgrap\nVersion: 9\nRequires-Dist: onnxruntime>=99\nRequires-Dist: numpy\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    with bare_coordinator(tmp_path) as coordinator:
        coordinator.start("--name", "a")
        coordinator.join()
        warned = [line.partition("WARNING bbgrap.agent ")[2] for line in coordinator.log().splitlines() if "needs" in line]
        assert len(warned) == 1
        assert warned[0].startswith("bbgrap needs onnxruntime >=99, here is ")
        assert warned[0].endswith(": install it again")
