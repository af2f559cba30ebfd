"""A worker that cannot be started for want of something leaves nothing behind, and another one is started later."""

import queue
import threading
import time

import psutil
import pytest
from bbgrap_agent import nanny as nannies
from bbgrap_agent.nanny import Nanny
from bbgrap_agent.worker_settings import WorkerSettings

from bbgrap.control.agent_events import WorkerReady
from bbgrap.transport import memory_broker
from bbgrap.transport.tcp import listen_at
from tests.bbgrap.transport.locked import LockedCluster
from tests.waiting import until


@pytest.fixture
def said():
    return queue.SimpleQueue()


@pytest.fixture
def nanny(said, tmp_path):
    with listen_at("tcp://127.0.0.1:0") as listener:
        settings = WorkerSettings("a", 1, "127.0.0.1", "127.0.0.1", str(tmp_path), 1, 0)
        nanny = Nanny(listener, settings, said.put, LockedCluster().authority.identity("a"))
        yield nanny
        nanny.stop()


def no_thread(name):
    start = threading.Thread.start

    def refused(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    return refused


def no_pipe(content):
    raise OSError("Too many open files")


def workers():
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "bbgrap_agent.worker" in child.cmdline()]


@pytest.mark.parametrize("missing", ["pipe", "worker", "a descriptor"])
def test_what_is_missing_may_come_back(nanny, said, monkeypatch, missing):
    """The agent ended with its threads' `RuntimeError`, and left memory open with each try."""
    before = psutil.Process().num_fds()
    with monkeypatch.context() as patch:
        if missing == "a descriptor":
            patch.setattr(nannies, "_filled_pipe", no_pipe)
        else:
            patch.setattr(threading.Thread, "start", no_thread(missing))
        nanny.start_if_due(time.monotonic())
        assert workers() == []
    # The broker's thread ends soon; what tests before this one had open may close meanwhile.
    until(lambda: psutil.Process().num_fds() <= before, 5.0)
    nanny.start_if_due(time.monotonic() + 1.0)
    assert isinstance(said.get(timeout=30.0), WorkerReady)


def test_without_a_thread_there_is_no_broker(monkeypatch):
    before = psutil.Process().num_fds()
    monkeypatch.setattr(threading.Thread, "start", no_thread("memory broker"))
    assert memory_broker.start_broker() is None
    assert psutil.Process().num_fds() <= before  # others may give some back meanwhile
