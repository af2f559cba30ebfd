"""Two real agents, on which a program for onnxruntime runs beside onnxruntime itself."""

from collections.abc import Iterator

import pytest

from bbgrap.local import LocalCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    started = LocalCluster(2, pin=False, cache_dir=tmp_path_factory.mktemp("weights"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def no_default(monkeypatch) -> None:
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
