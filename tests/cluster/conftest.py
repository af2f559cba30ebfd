"""Real processes: one cluster of two agents for the tests that leave it as it was, fresh ones for those that break it."""

import pytest

from tests.known_agents import known_cluster

COORDINATOR = ("-m", "tests.cluster.coordinator_process")


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


def local_cluster(agents, cache_dir):
    return known_cluster(agents, cache_dir, COORDINATOR)


@pytest.fixture(scope="session")
def shared(caches):
    with local_cluster(2, caches) as cluster:
        yield cluster


@pytest.fixture
def fresh(caches):
    with local_cluster(2, caches) as cluster:
        yield cluster
