"""Two real agents, on which a program for onnxruntime runs beside onnxruntime itself."""

from collections.abc import Iterator

import pytest

from bbgrap.local import LocalCluster
from tests.known_agents import lasting_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    with lasting_cluster(2, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_default(monkeypatch) -> None:
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
