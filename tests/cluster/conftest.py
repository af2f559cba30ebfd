"""Real processes: one cluster of two agents for the tests that leave it as it was, and one for those that break it."""

import pytest

from tests.known_agents import known_cluster, lasting_cluster, make_whole

COORDINATOR = ("-m", "tests.cluster.coordinator_process")


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


def local_cluster(agents, cache_dir):
    return known_cluster(agents, cache_dir, COORDINATOR)


@pytest.fixture(scope="session")
def shared(caches):
    with lasting_cluster(2, caches, COORDINATOR, pin=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def breakable(caches):
    with lasting_cluster(2, caches, COORDINATOR, pin=True) as cluster:
        yield cluster


@pytest.fixture
def fresh(breakable):
    """Two agents and a coordinator, whatever the test before has done to them."""
    return make_whole(breakable, 2)


@pytest.fixture
def own(caches):
    """A cluster without a history: what it plans, nobody has asked for before."""
    with local_cluster(2, caches) as cluster:
        yield cluster
