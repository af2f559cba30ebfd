"""Real processes: one cluster of two agents for the tests that leave it as it was, fresh ones for those that break it."""

import contextlib

import pytest

from bbgrap.local import LocalCluster

COORDINATOR = ("-m", "tests.cluster.coordinator_process")


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@contextlib.contextmanager
def local_cluster(agents, cache_dir):
    with LocalCluster(agents, cache_dir=cache_dir, coordinator_command=COORDINATOR) as cluster:
        try:
            yield cluster
        except BaseException:
            for name in ("coordinator", *(f"agent{i}" for i in range(4))):
                print(f"--- {name}\n{cluster.log(name)}")  # noqa: T201 - pytest shows it with the failure
            raise


@pytest.fixture(scope="session")
def shared(caches):
    with local_cluster(2, caches) as cluster:
        yield cluster


@pytest.fixture
def fresh(caches):
    with local_cluster(2, caches) as cluster:
        yield cluster
