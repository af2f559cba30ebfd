"""Settings that every test shares.

Hypothesis runs under one of two profiles: `default` is short and the same on every run; `thorough`
(`make test-slow`, or `--hypothesis-profile=thorough`) is long and looks at new examples each time.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# tests start the installed commands by name, whether or not the environment is activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

os.environ["BBGRAP_CONFIG"] = os.devnull  # whatever the user of this machine has set

settings.register_profile("default", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, derandomize=False)
settings.load_profile("default")

MADE_ONCE = ("shared", "served", "address", "backend_tests")
"""Fixtures that take long to make and serve several files."""


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Run the users of such a fixture first and one after the other: then one process of several makes it."""
    items.sort(key=lambda item: next((n for n, name in enumerate(MADE_ONCE) if name in item.fixturenames), len(MADE_ONCE)))


def pytest_collection_finish() -> None:
    """Have full collections of garbage pass over modules and tests, which stay: half the processor time of tests with many examples."""
    gc.collect()
    gc.freeze()
