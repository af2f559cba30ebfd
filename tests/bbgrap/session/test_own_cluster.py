"""What clusters of a program's own have in common."""

import pytest

from bbgrap.session.own_cluster import OwnCluster


class BrokenConnection:
    """Cannot be closed."""

    is_inherited = False

    def close(self):
        raise OSError("the connection is broken")


class PlayedCluster(OwnCluster):
    """A cluster of nothing."""

    def __init__(self):
        self._connection, self.ended = BrokenConnection(), False

    def kill(self, name):
        raise NotImplementedError

    def log(self, name, lines=20):
        raise NotImplementedError

    def end(self):
        self.ended = True


def test_what_was_started_ends_even_if_its_connection_cannot_be_closed():
    cluster = PlayedCluster()
    with pytest.raises(OSError, match="is broken"), cluster:
        pass
    assert cluster.ended


def test_a_fork_child_ends_nothing_however_often_it_closes():
    cluster = PlayedCluster()
    cluster._connection.is_inherited = True
    for _ in range(2):
        cluster.close()
    assert not cluster.ended
