"""Settings that every test shares.

Hypothesis runs under one of three profiles: `default` is short and the same on every run; `ample` is the same with twice as many
examples, for all properties (`make test-slow`); `thorough` looks at many new ones each time, in the tests marked slow (the same).
"""

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pluggy import PluggyTeardownRaisedWarning

from bbgrap.local import LocalCluster
from tests.examples import AMPLE

# tests start the installed commands by name, whether or not the environment is activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

os.environ["BBGRAP_CONFIG"] = os.devnull  # whatever the user of this machine has set

settings.register_profile("default", max_examples=AMPLE // 2, deadline=None, derandomize=True)
settings.register_profile("ample", max_examples=AMPLE, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, derandomize=False)
settings.load_profile("default")

SHOWN_LINES = 60
"""Of each log, when a test fails."""

TOGETHER = ("tests/cluster/", "tests/docs/", "tests/serving/", "tests/surface/")
"""Folders of which the files share clusters: packages, so that these end with the last test of a folder. Idle ones take processor time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and all files of such a folder to one: then no cluster or other costly fixture is made twice."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show with a failure what the processes of the clusters that several tests share have said last."""
    try:
        report = yield
    except (TypeError, PluggyTeardownRaisedWarning):
        # A signal may raise between two lines, as that of a timeout does: pytest 9.2 cannot show that, and would end this process.
        if call.excinfo is None:
            raise
        told = "".join(traceback.format_exception(call.excinfo.value))
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", told, call.when, duration=call.duration)
    shared = {name: value for name, value in getattr(item, "funcargs", {}).items() if isinstance(value, LocalCluster)}
    if report.failed:
        for name, cluster in shared.items():
            for process in cluster.processes:
                report.sections.append((f"{process} of {name}, at {call.stop:.3f}", cluster.log(process, SHOWN_LINES)))
    return report


@pytest.fixture
def without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches of this process end when they have looked at as much as they may, not when time is up: a busy machine finds the same."""
    monkeypatch.setattr("bbgrap.engine.prepare._after", lambda seconds: lambda: False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests while there are more and more of them: a twelfth of the time that collecting takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have full collections of garbage pass over modules and tests, which stay: half the processor time of tests with many examples."""
    gc.collect()
    gc.freeze()
