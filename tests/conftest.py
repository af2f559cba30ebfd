"""Settings that every test shares.

Hypothesis runs under one of three profiles: `default` is short and the same on every run; `ample` is the same with twice as many
examples, for all properties (`make test-slow`); `thorough` looks at many new ones each time, in the tests marked slow (the same).
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import AMPLE
from tests.known_agents import lasting_cluster

# tests start the installed commands by name, whether or not the environment is activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

os.environ["BBGRAP_CONFIG"] = os.devnull  # whatever the user of this machine has set

settings.register_profile("default", max_examples=AMPLE // 2, deadline=None, derandomize=True)
settings.register_profile("ample", max_examples=AMPLE, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, derandomize=False)
settings.load_profile("default")

MADE_ONCE = ("shared", "breakable", "pair", "three", "served", "address", "backend_tests")
"""Fixtures that take long to make and serve several files."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Keep the users of such a fixture, or of one for a file, together: then one process of several makes it.

    pytest-xdist sends the largest groups first, then the tests that are alone, each to who is free.
    """
    for item in items:
        if (group := next((name for name in MADE_ONCE if name in item.fixturenames), None)) is None and _shares_in_its_file(item):
            group = item.path.relative_to(item.config.rootpath).as_posix()
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _shares_in_its_file(item: pytest.Function) -> bool:
    return any(fixture.scope == "module" for found in item._fixtureinfo.name2fixturedefs.values() for fixture in found)


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two agents, for tests that leave them and what is known of them as they were."""
    with lasting_cluster(2, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    with lasting_cluster(3, tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


def pytest_collection_finish() -> None:
    """Have full collections of garbage pass over modules and tests, which stay: half the processor time of tests with many examples."""
    gc.collect()
    gc.freeze()
