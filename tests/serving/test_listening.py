"""More connections than there are descriptors: who says nothing has to go, and others are answered."""

import resource
import socket
from contextlib import ExitStack

import psutil
import pytest

from bbgrap.serving import listening
from bbgrap.serving.listening import HttpListener
from tests.serving.conftest import serving
from tests.serving.test_connection_threads import GET, answer, connection_to, infer, rows_of

GRANTED = 240


@pytest.fixture
def listener():
    with HttpListener(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind(("127.0.0.1", 0))
        made.listen(64)
        made.setblocking(False)
        yield made


def test_beyond_its_descriptors_somebody_silent_ends_for_each_that_comes(listener, monkeypatch):
    ended = []
    listener.end_silent = lambda: not ended.append(None)
    with ExitStack() as opened:

        def comes():
            opened.enter_context(socket.create_connection(listener.getsockname(), 5))
            listener.setblocking(True)
            return opened.enter_context(listener.accept()[0]).fileno()

        highest = comes()
        assert not ended
        most = highest + 4
        monkeypatch.setattr(listening, "granted_descriptors", lambda: 2 * most)
        while (number := comes()) < most:
            assert not ended
        for count in range(1, 5):
            assert number >= most
            assert len(ended) == count
            with pytest.raises(BlockingIOError):  # the loop has a turn: there the one that has to go is closed
                listener.accept()
            number = comes()


def test_a_low_number_does_not_mean_that_there_are_few(listener):
    """Numbers of connections that have ended are given again while those above are taken."""
    ended = []
    listener.end_silent = lambda: not ended.append(None)
    listener.setblocking(True)
    for count, expected in ((listening.most_descriptors() - 1, 0), (listening.most_descriptors(), 1)):
        listener.count = lambda count=count: count
        with socket.create_connection(listener.getsockname(), 5):
            listener.accept()[0].close()
        assert len(ended) == expected


@pytest.mark.parametrize("somebody_is_silent", [True, False])
def test_without_a_descriptor_it_is_said_once_and_tried_later(listener, monkeypatch, caplog, somebody_is_silent):
    asked = []
    listener.end_silent = lambda: bool(asked.append(None)) or somebody_is_silent
    monkeypatch.setattr(listening, "_WAIT_S", 0.0)
    with socket.create_connection(listener.getsockname(), 5):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        # But for the standard streams no number is allowed: below the listener's some may be free again by now.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            for _ in range(5):
                with pytest.raises(BlockingIOError):
                    listener.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(asked) == 5
        assert [record.getMessage() for record in caplog.records if "Too many open files" in record.getMessage()] == [caplog.messages[0]]
        listener.setblocking(True)
        listener.accept()[0].close()


@pytest.mark.cluster
def test_idle_connections_beyond_all_descriptors_keep_nobody_out(cluster, models, tmp_path):
    with serving(cluster.address, models, tmp_path / "log") as server, ExitStack() as opened:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (GRANTED, GRANTED))
        used, user = opened.enter_context(connection_to(server))
        used.sendall(GET)
        assert answer(user)[0] == 200
        for _ in range(3 * GRANTED):
            opened.enter_context(connection_to(server))
        with connection_to(server) as (connection, stream):
            connection.sendall(infer(3))
            assert rows_of(answer(stream)) == 3
        assert psutil.Process(server.process.pid).num_fds() < GRANTED * 3 // 4
        said = server.log.read_text()
        assert "Traceback" not in said
        assert said.count("descriptors") <= 1


@pytest.mark.cluster
def test_a_server_takes_all_descriptors_that_the_system_grants(served):
    limits = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
    assert limits[0] == limits[1]
