"""What a session asks of a cluster before it plans; the cluster is played by the test."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ValueInfoProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from bbgrap.cluster.types import NodeProfile, Speed
from bbgrap.errors import ExecutionError, UsageError
from bbgrap.graph.onnx_write import write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import Failed, ModelMissing, ModelPrepared, OfferModel, PrepareModel
from bbgrap.protocol.faults import Fault
from bbgrap.session import remote_model
from bbgrap.session.calls import CallFailedError
from bbgrap.session.inference import InferenceSession
from bbgrap.session.stops import Stops
from bbgrap.zoo.builder import Builder
from tests.sequence_models import counter


class AskedError(Exception):
    """A plan was asked for: measuring is over."""


class FakeConnection:
    """A coordinator with three nodes: not known at all, with a share by hand, and with speeds."""

    is_inherited = False

    def __init__(self):
        numbers = itertools.count(1)
        self.stops = Stops()
        self.number = lambda: next(numbers)
        self.measured, self.asked = [], []
        self.lost = None
        profiles = {"a": None, "b": NodeProfile("b", 0.5), "c": NodeProfile("c", work=(Speed("conv3x3", 1e9),))}
        self.known = {name: SimpleNamespace(name=name, profile=profile) for name, profile in profiles.items()}

    def nodes(self, timeout_s):
        return tuple(self.known.values())

    def measure_unknown(self, on_progress, timeout_s):
        if timeout_s < 0.1:
            raise TimeoutError
        unknown = [node.name for node in self.nodes(timeout_s) if node.profile is None or not node.profile.work]
        self.measured += unknown
        if on_progress is not None:
            on_progress(f"measuring {', '.join(unknown)}")
        for node in unknown:
            self.known[node] = SimpleNamespace(name=node, profile=NodeProfile(node, work=(Speed("conv3x3", 2e9),)))
        if self.lost:
            del self.known[self.lost]
            raise ExecutionError(f"agent '{self.lost}' was lost before it was measured; measured: b")

    def try_call(self, message, expected, on_progress=None, timeout_s=None):
        if isinstance(message, OfferModel):
            return ModelMissing(message.call, ())  # it has the model already
        assert isinstance(message, PrepareModel)
        self.asked.append(message.options.input_values)
        raise AskedError


@pytest.mark.parametrize(("planner", "measured"), [("auto", ["a", "b"]), ("bbgrap", [])])
def test_the_planner_auto_measures_what_nobody_knows_once(planner, measured):
    cluster, progress = FakeConnection(), []
    session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=cluster), planner=planner, on_progress=progress.append)
    for _ in range(2):
        with pytest.raises(AskedError):
            session.prepare({"input": (1, 3, 32, 32)})
        assert cluster.measured == measured
    assert progress == [f"measuring {', '.join(measured)}"] * bool(measured)


def test_a_node_that_goes_while_it_is_measured_does_not_keep_the_others_from_working(caplog):
    cluster = FakeConnection()
    cluster.lost = "a"
    session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=cluster), planner="auto", on_progress=lambda progress: None)
    with pytest.raises(AskedError):
        session.prepare({"input": (1, 3, 32, 32)})
    assert cluster.measured == ["a", "b"]
    assert caplog.messages == ["planning without some measurements: agent 'a' was lost before it was measured; measured: b"]


def test_measuring_ends_at_the_deadline():
    session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=FakeConnection()), planner="auto", deadline_s=0.05)
    with pytest.raises(ExecutionError, match=r"its deadline of 0\.05 s passed while nodes were measured; 'bbgrap profile' measures them"):
        session.prepare({"input": (1, 3, 32, 32)})


@pytest.mark.parametrize("deadline_s", [float("inf"), float("nan")])
def test_a_deadline_is_finite(deadline_s):
    with pytest.raises(UsageError, match="deadline_s: expected a finite number of seconds, got"):
        InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=FakeConnection()), deadline_s=deadline_s)


class PlanningConnection(FakeConnection):
    """A coordinator that plans until it is told that it is done."""

    def __init__(self):
        super().__init__()
        self.begun, self.done = threading.Event(), threading.Event()

    def try_call(self, message, expected, on_progress=None, timeout_s=None):
        if isinstance(message, PrepareModel):
            self.begun.set()
            self.done.wait(3)
        return super().try_call(message, expected, on_progress, timeout_s)


@pytest.mark.parametrize("state", [None, "auto"])
def test_who_waits_for_what_another_thread_has_asked_ends_like_any_other(state):
    cluster = PlanningConnection()
    session = InferenceSession(counter(), cluster=SimpleNamespace(connection=cluster), state=state, deadline_s=0.4)
    asking = session.sequence() if state else session
    feed = {arg.name: np.zeros(arg.shape, np.float32) for arg in session.get_inputs()[: 1 if state else 2]}
    stop = ort.RunOptions()
    stop.terminate = True
    with ThreadPoolExecutor() as pool:
        first = pool.submit(asking.run, None, feed)
        assert cluster.begun.wait(5)
        with pytest.raises(ExecutionError, match=r"its deadline of 0\.4 s passed"):
            asking.run(None, feed)
        with pytest.raises(ort_state.Fail, match="Exiting due to terminate flag being set to true"):
            asking.run(None, feed, stop)
        cluster.done.set()
        with pytest.raises(AskedError):
            first.result(5)


class EveryShapeConnection(FakeConnection):
    """A coordinator that has a plan for everything."""

    def try_call(self, message, expected, on_progress=None, timeout_s=None):
        if isinstance(message, PrepareModel):
            return ModelPrepared(message.call, "0" * 64, 1, (), "{}")
        return super().try_call(message, expected, on_progress, timeout_s)


def test_of_shapes_without_end_the_latest_are_remembered(monkeypatch):
    monkeypatch.setattr(remote_model, "_PLANS", 4)
    session = InferenceSession(counter(), cluster=SimpleNamespace(connection=EveryShapeConnection()))
    for size in range(1, 10):
        session._model.plan_for(((1, size), (1, size)), lambda: 10.0)
    assert [len(known) for known in (session._model._plans, session._model._waited)] == [4, 4]


SHAPE = (1, 3, 64, 64)
FLOATS = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
PICTURE = (np.arange(FLOATS.size).reshape(SHAPE) % 256 / np.float32(255)).astype(np.float32)


@pytest.mark.parametrize(
    ("values", "first", "asked"),
    [("auto", PICTURE, "few"), ("auto", FLOATS, "any"), ("auto", 0 * PICTURE, "any"), ("few", FLOATS, "few"), ("any", PICTURE, "any")],
)
def test_the_first_inputs_of_a_shape_say_what_is_planned_for(values, first, asked):
    net = Builder("net", SHAPE)
    model = write_graph(net.graph(net.conv("input", "a", 8, 3)), weights="inline").data
    for prepare in (True, False):
        cluster = FakeConnection()
        session = InferenceSession(model, cluster=SimpleNamespace(connection=cluster), options=PlanOptions(input_values=values))
        if prepare:
            with pytest.raises(AskedError):
                session.prepare({"input": SHAPE}, {"input": first})
        for feed in (first, FLOATS, PICTURE):
            with pytest.raises(AskedError):
                session.run(None, {"input": feed})
        assert set(cluster.asked) == {asked}


def test_who_prepares_without_inputs_says_nothing_about_them():
    net = Builder("net", SHAPE)
    model, cluster = write_graph(net.graph(net.conv("input", "a", 8, 3)), weights="inline").data, FakeConnection()
    session = InferenceSession(model, cluster=SimpleNamespace(connection=cluster))
    for call in (lambda: session.prepare({"input": SHAPE}), lambda: session.run(None, {"input": PICTURE})):
        with pytest.raises(AskedError):
            call()
    assert cluster.asked == ["any", "any"]


class BusyConnection(FakeConnection):
    """A coordinator that has no room for the first `times` calls of a kind."""

    def __init__(self, kind, times):
        super().__init__()
        self.kind, self.left = kind, times

    def try_call(self, message, expected, on_progress=None, timeout_s=None):
        if isinstance(message, self.kind) and self.left:
            self.left -= 1
            raise CallFailedError(Failed(message.call, Fault.BUSY, "no space left"))
        return super().try_call(message, expected, on_progress, timeout_s)


@pytest.mark.parametrize("kind", [OfferModel, PrepareModel], ids=["a model", "a plan"])
def test_what_there_is_no_room_for_is_brought_and_asked_for_again_until_the_deadline(kind):
    for call in (lambda s: s.prepare({"input": (1, 3, 32, 32)}), lambda s: s.run(None, {"input": np.zeros((1, 3, 32, 32), np.float32)})):
        cluster = BusyConnection(kind, 3)
        session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=cluster))
        with pytest.raises(AskedError):
            call(session)
        assert cluster.left == 0
        began = time.monotonic()
        session = InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=BusyConnection(kind, 10_000)), deadline_s=0.2)
        with pytest.raises(ExecutionError, match="no space left"):
            call(session)
        assert time.monotonic() - began < 2


def test_who_waits_for_room_is_told_why(monkeypatch, caplog):
    """Bringing a model to a coordinator with a full disk: for five minutes nobody said a word."""
    told: list[str] = []
    cluster = SimpleNamespace(connection=BusyConnection(OfferModel, 2))
    with pytest.raises(AskedError):
        InferenceSession("zoo:tiny", cluster=cluster, on_progress=lambda now: told.append(getattr(now, "text", ""))).prepare(
            {"input": (1, 3, 32, 32)}
        )
    assert [text for text in told if "again" in text] == 2 * ["tried again: no space left"]
    assert not caplog.messages
    monkeypatch.setattr(remote_model, "_TOLD_AFTER_S", 0.02)
    with pytest.raises(AskedError):
        InferenceSession("zoo:tiny", cluster=SimpleNamespace(connection=BusyConnection(OfferModel, 6))).prepare({"input": (1, 3, 32, 32)})
    assert caplog.messages == ["model 'tiny-1' is tried again until its deadline of 300 s: no space left"]


def test_functions_that_onnxruntime_never_ends_loading_are_loaded_inlined():
    """A function that calls another one of its name; the checker complains about it, so it was loaded as it stands, for good."""
    loud, soft = helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)
    outer = helper.make_function(
        "loc",
        "S",
        ["a"],
        ["b"],
        [helper.make_node("S", ["a"], ["c"], domain="loc", overload="e"), helper.make_node("Abs", ["c"], ["b"])],
        [loud, soft],
    )
    inner = helper.make_function("loc", "S", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [loud], overload="e")
    node = helper.make_node("S", ["x"], ["y"], domain="loc")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [2])], [ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[loud, soft], functions=[outer, inner], ir_version=10)
    session = InferenceSession(model.SerializeToString(), cluster=SimpleNamespace(connection=FakeConnection()))
    assert [arg.name for arg in session.get_outputs()] == ["y"]
