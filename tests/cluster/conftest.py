"""Real processes: one cluster of two agents for the tests that leave it as it was, and one for those that break it."""

import pytest

from tests.known_agents import known_cluster, lasting_cluster, make_whole

COORDINATOR = ("-m", "tests.cluster.coordinator_process")


@pytest.fixture(scope="package")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="package")
def pair(tmp_path_factory):
    """Two agents, for tests that leave them and what is known of them as they were."""
    with lasting_cluster(2, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def three(tmp_path_factory):
    with lasting_cluster(3, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


def local_cluster(agents, cache_dir):
    return known_cluster(agents, cache_dir, COORDINATOR)


@pytest.fixture(scope="package")
def shared(caches):
    with lasting_cluster(2, caches, COORDINATOR, pin=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
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
