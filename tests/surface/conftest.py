"""Two real agents, on which a program for onnxruntime runs beside onnxruntime itself."""

import pytest

from bbgrap.local import LocalCluster


@pytest.fixture
def cluster(pair) -> LocalCluster:
    return pair


@pytest.fixture(autouse=True)
def no_default(monkeypatch) -> None:
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
