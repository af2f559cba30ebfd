"""What a session asks of a cluster before it plans; the cluster is played by the test."""

import itertools
from types import SimpleNamespace

import pytest

from bbgrap.cluster.speeds import Speed
from bbgrap.cluster.types import NodeProfile
from bbgrap.errors import ExecutionError
from bbgrap.protocol.client_messages import OfferModel
from bbgrap.session.inference import InferenceSession


class OfferedError(Exception):
    """The model was brought: measuring is over."""


class FakeConnection:
    """A coordinator with three nodes: not known at all, with a share by hand, and with speeds."""

    def __init__(self):
        numbers = itertools.count(1)
        self.number = lambda: next(numbers)
        self.measured = []
        self.lost = None
        profiles = {"a": None, "b": NodeProfile("b", 0.5), "c": NodeProfile("c", work=(Speed("conv3x3", 1e9),))}
        self.known = {name: SimpleNamespace(name=name, profile=profile) for name, profile in profiles.items()}

    def nodes(self):
        return tuple(self.known.values())

    def profile(self, node, on_progress):
        self.measured.append(node)
        if node == self.lost:
            del self.known[node]
            raise ExecutionError(f"agent '{node}' was lost while it was measured")
        on_progress(f"measuring {node}")
        self.known[node] = SimpleNamespace(name=node, profile=NodeProfile(node, work=(Speed("conv3x3", 2e9),)))

    def try_call(self, message, expected, on_progress=None):
        assert isinstance(message, OfferModel)
        raise OfferedError


@pytest.mark.parametrize(("planner", "measured"), [("auto", ["a", "b"]), ("bbgrap", [])])
def test_the_planner_auto_measures_what_nobody_knows_once(planner, measured):
    cluster, progress = FakeConnection(), []
    session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=cluster), planner=planner, on_progress=progress.append)
    for _ in range(2):
        with pytest.raises(OfferedError):
            session.prepare({"input": (1, 3, 32, 32)})
        assert cluster.measured == measured
    assert progress == [f"measuring {name}" for name in measured]


def test_a_node_that_goes_while_it_is_measured_does_not_keep_the_others_from_working(caplog):
    cluster = FakeConnection()
    cluster.lost = "a"
    session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=cluster), planner="auto", on_progress=lambda progress: None)
    with pytest.raises(OfferedError):
        session.prepare({"input": (1, 3, 32, 32)})
    assert cluster.measured == ["a", "b"]
    assert caplog.messages == ["planning without a measurement of 'a': agent 'a' was lost while it was measured"]
