"""Links between executors on the in-process data plane."""

import threading
from contextlib import contextmanager

from bbgrap_agent.executor import Executor
from bbgrap_agent.links import measure_link

from bbgrap.protocol.messages import Peer
from bbgrap.transport.inproc import InprocNetwork


@contextmanager
def running(network):
    """Run an executor in a thread of its own."""
    executor = Executor(network.plane(), lambda *failure: None, lambda *record: None)
    thread = threading.Thread(target=executor.run)
    thread.start()
    try:
        yield executor
    finally:
        executor.stop()
        thread.join()


def test_a_link_is_measured_if_the_peer_may_answer(monkeypatch):
    monkeypatch.setattr("bbgrap_agent.links._PING_WAIT_S", 0.05)
    network = InprocNetwork()
    with running(network) as one, running(network) as other:
        here, there = (Peer(device, name, executor.plane.address) for device, name, executor in ((0, "a", one), (1, "b", other)))
        assert measure_link(there, one) is None
        other.post(lambda: other.allow_pings((here,)))
        link = measure_link(there, one)
        other.post(lambda: other.allow_pings(()))
        assert measure_link(there, one) is None
    assert link.peer == "b"
    assert link.round_trip_s > 0
    assert link.bandwidth_bytes_per_s > 0
