"""Programs do to a session on a cluster what they do to onnxruntime's; what comes of it is the same: a value, or a class of error."""

import threading

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

import bbgrap
import bbgrap.onnxruntime
from bbgrap.session import own_cluster
from tests.surface import models

pytestmark = pytest.mark.cluster

MANY = 1_000_000
"""Rounds of a loop that take a second or two."""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def both(cluster, monkeypatch):
    """Two ways to make a session, for what shall come out the same."""
    monkeypatch.setenv("BBGRAP_COORDINATOR", cluster.address)
    return ort.InferenceSession, bbgrap.onnxruntime.InferenceSession


def outcome(call):
    """Return the value of a call, or the class of its error, as `except` sees it."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001, RUF100 - whatever it is, it is compared
        return error


def same(call, both):
    """Do it with both, and return what came out, ours last."""
    theirs, ours = (outcome(lambda make=make: call(make)) for make in both)
    if isinstance(theirs, BaseException):
        assert isinstance(ours, type(theirs)), f"onnxruntime: {theirs!r}, here: {ours!r}"
    else:
        assert not isinstance(ours, BaseException), ours
        np.testing.assert_equal(ours, theirs)
    return theirs, ours


PROVIDERS = {
    "all": (ort.get_available_providers(),),
    "with options": ([("CPUExecutionProvider", {"arena": 1})],),
    "options beside": (["CPUExecutionProvider"], [{"arena": "1"}]),
    "none": ([],),
}
ODD_PROVIDERS = {
    "known, not here": (["CUDAExecutionProvider", "CPUExecutionProvider"],),
    "twice": (["CPUExecutionProvider"] * 2,),
    "unknown": (["FooExecutionProvider"],),
    "no list": ({"CPUExecutionProvider": 1},),
    "lengths": (["CPUExecutionProvider"], [{}, {}]),
    "both kinds of options": ([("CPUExecutionProvider", {})], [{}]),
}


@pytest.mark.parametrize("given", PROVIDERS.values(), ids=PROVIDERS)
def test_providers_and_their_options(both, given):
    same(lambda make: make(models.add(), None, *given).run(None, {"a": X, "b": X}), both)
    same(lambda make: "CPUExecutionProvider" in make(models.add(), None, *given).get_providers(), both)


@pytest.mark.parametrize("given", ODD_PROVIDERS.values(), ids=ODD_PROVIDERS)
def test_odd_providers_are_a_warning_or_without_fallback_an_error(both, given):
    with pytest.warns(UserWarning, match="provider|EP"):
        session = both[1](models.add(), None, *given)
    np.testing.assert_equal(session.run(None, {"a": X, "b": X}), [X + X])


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning", "ignore:Duplicate provider:UserWarning")
@pytest.mark.parametrize("given", ODD_PROVIDERS.values(), ids=ODD_PROVIDERS)
def test_odd_providers_without_fallback(both, given):
    same(lambda make: make(models.add(), None, *given, enable_fallback=0).get_inputs()[0].name, both)


def test_without_a_cluster_said_it_is_that_of_the_surroundings(cluster, monkeypatch):
    # Other tests of this process may be inside of clusters, and have one in their environment.
    monkeypatch.setattr(own_cluster, "_enclosing", [])
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
    with pytest.raises(bbgrap.UsageError, match=r"which cluster\? give cluster=, or set BBGRAP_COORDINATOR"):
        bbgrap.InferenceSession(models.add())
    monkeypatch.setenv("BBGRAP_COORDINATOR", "http://x:1")
    cluster.__enter__()
    try:
        assert bbgrap.InferenceSession(models.add()).run(None, {"a": X, "b": X})[0].tolist() == (X + X).tolist()
    finally:
        own_cluster._enclosing.remove(cluster.connection)  # as the end of the block does
    with pytest.raises(bbgrap.UsageError, match="http://x:1"):
        bbgrap.InferenceSession(models.add())


def about(session):
    meta = session.get_modelmeta()
    return {name: getattr(meta, name) for name in dir(ort.ModelMetadata) if not name.startswith("_")}


@pytest.mark.parametrize("make", [models.add, models.described])
def test_metadata(both, make):
    theirs, _ = same(lambda session: about(session(make())), both)
    assert len(theirs) == 7


FEEDS = {
    "lists": {"a": [[1, 2, 3]], "b": [[1, 2, 3.5]]},
    "list of texts": {"a": [["x", 2, 3]], "b": X},
    "ragged list": {"a": [[1, 2], [3]], "b": X},
    "a transposed view": {"a": np.ones((3, 2), np.float32).T, "b": X},
    "sizes that differ and fit": {"a": X[:1], "b": X},
    "sizes that differ and do not fit": {"a": np.ones((3, 3), np.float32), "b": X},
    "one missing": {"a": X},
    "one missing and one unknown": {"a": X, "c": X},
    "one unknown": {"a": X, "b": X, "c": X},
    "another type": {"a": X.astype(np.float64), "b": X},
    "another rank": {"a": X[0], "b": X},
    "another size": {"a": X[:, :2], "b": X},
    "no feed": None,
    "a list for a feed": [X, X],
}


@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
def test_feeds(both, feed):
    same(lambda make: make(models.add()).run(None, feed), both)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(TensorProto.STRING, []), (TensorProto.STRING, ["a", "b"]), (TensorProto.UINT8, [300]), (TensorProto.INT64, [2**63])],
    ids=str,
)
def test_lists(both, kind, given):
    same_thing = models.model([models.node("Identity", "a", "y")], [models.declared("a", ["n"], kind)], [models.declared("y", ["n"], kind)])
    same(lambda make: make(same_thing).run(None, {"a": given}), both)


@pytest.mark.parametrize("rate", [np.array(16000), np.array([16000]), np.array([[16000]]), [16000]], ids=repr)
def test_one_number_is_a_scalar_whatever_its_rank(both, rate):
    """As the sampling rate of a network for voices."""
    nodes = [models.node("Cast", "rate", "r", to=TensorProto.FLOAT), models.node("Mul", "a r", "y")]
    inputs = [models.declared("a", ["n", 3]), models.declared("rate", [], TensorProto.INT64)]
    same(lambda make: make(models.model(nodes, inputs, [models.declared("y", ["n", 3])])).run(None, {"a": X, "rate": rate}), both)


@pytest.mark.parametrize("place", [np.array(1), np.array([1]), np.array([[1]]), np.array([1, 0, 1]), np.zeros((2, 0), int)], ids=repr)
def test_answers_have_the_shape_of_what_is_given_for_a_scalar(both, place):
    """What exporters called a scalar, their users give as a list: onnxruntime computes with the shape that comes."""
    nodes = [models.node("Gather", "table place", "row"), models.node("Relu", "row", "y")]
    inputs = [models.declared("table", ["n", 3]), models.declared("place", [], TensorProto.INT64)]
    same(lambda make: make(models.model(nodes, inputs, [models.declared("y", None)])).run(None, {"table": X, "place": place}), both)


@pytest.mark.parametrize("names", [["y"], [], None, ["y", "y"], ["q"], ["a"], "y"], ids=str)
def test_names_of_outputs(both, names):
    same(lambda make: make(models.add()).run(names, {"a": X, "b": X}), both)


def test_a_big_endian_feed_is_taken(both):
    """onnxruntime takes it, too, and computes with its bytes as they lie: the numbers are compared with those of a native feed."""
    (got,) = both[1](models.add()).run(None, {"a": X.astype(">f4"), "b": X})
    np.testing.assert_equal(got, both[0](models.add()).run(None, {"a": X, "b": X})[0])


@pytest.mark.parametrize("dims", [(-1, 3), ("?", "?"), ("n", "n"), (None, None), None], ids=str)
def test_dimensions_that_are_free_or_named_alike(both, dims):
    def work(make):
        session = make(models.add(dims, dims, None))
        return [[(str(a), a.name, a.type, a.shape) for a in session.get_inputs()], session.run(None, {"a": X, "b": X})]

    same(work, both)


@pytest.mark.parametrize(
    "feed", [{"a": X}, {"a": X, "w": np.ones(3, np.float32)}, {"w": X[0]}, {"a": X, "w": X}], ids=lambda f: "+".join(f)
)
def test_an_initializer_is_overridden(both, feed):
    same(lambda make: [a.name for a in make(models.overridable()).get_overridable_initializers()], both)
    same(lambda make: make(models.overridable()).run(None, feed), both)


def test_outputs_without_shape_or_type_are_inferred(both):
    same(lambda make: [(str(a), a.type, a.shape) for a in make(models.undeclared()).get_outputs()], both)


BROKEN = {
    "no such file": "/nowhere.onnx",
    "a folder": "/",
    "garbage": b"garbage",
    "an unknown operator": models.model([models.node("Blub", "a", "y")], [models.declared("a", [3])], [models.declared("y", [3])]),
    "a custom operator": models.model(
        [models.node("Blub", "a", "y", domain="mine")], [models.declared("a", [3])], [models.declared("y", [3])]
    ),
    "an operator of builds for training": models.model(
        [models.node("SGDOptimizerV2", "a", "y", domain="com.microsoft")], [models.declared("a", [3])], [models.declared("y", [3])]
    ),
    "two nodes of one name": models.model(
        [models.node("Relu", "a", "b", name="same"), models.node("Relu", "b", "y", name="same")],
        [models.declared("a", [3])],
        [models.declared("y", [3])],
    ),
    "a value from nowhere": models.model([models.node("Add", "a q", "y")], [models.declared("a", [3])], [models.declared("y", [3])]),
    "a number": 3,
    "a bytearray": bytearray(models.add()),
}


@pytest.mark.parametrize("model", BROKEN.values(), ids=BROKEN)
def test_models_that_cannot_be_loaded(both, model):
    _, error = same(lambda make: make(model), both)
    assert isinstance(error, bbgrap.ModelError | TypeError)


@pytest.mark.parametrize(
    "argument",
    [{"sess_options": 3}, {"sess_options": ort.SessionOptions()}, {"disabled_optimizers": ["x"]}],
    ids=["no options", "options", "optimizers"],
)
def test_options(both, argument):
    same(lambda make: make(models.add(), **argument).run(None, {"a": X, "b": X}), both)


def test_what_a_cluster_cannot_do_is_refused_with_a_reason(both):
    options = ort.SessionOptions()
    options.enable_profiling = True
    with pytest.raises(bbgrap.errors.UnsupportedError, match=r"enable_profiling .* take a trace") as caught:
        both[1](models.add(), options)
    assert isinstance(caught.value, ort_state.NotImplemented)
    for model in ("model.ort", b"\0\0\0\0ORTM\0"):
        with pytest.raises(bbgrap.errors.UnsupportedError, match=r"give the \.onnx file"):
            both[1](model)
    with pytest.raises(TypeError, match="unknown arguments planer"):
        both[1](models.add(), planer="single")


def test_the_optimized_model_is_written(both, tmp_path):
    for make in both:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{make.__module__}.onnx")
        make(models.add(), options)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_kernel_that_fails(both):
    gather = models.model(
        [models.node("Gather", "a i", "y")],
        [models.declared("a", [3]), models.declared("i", ["n"], TensorProto.INT64)],
        [models.declared("y", ["n"])],
    )
    same(lambda make: make(gather).run(None, {"a": X[0], "i": np.array([7])}), both)


def test_terminate(both):
    stop = ort.RunOptions()
    stop.terminate = True
    same(lambda make: make(models.add()).run(None, {"a": X, "b": X}, stop), both)
    same(lambda make: make(models.add()).run(None, {"a": X, "b": X}, ort.RunOptions()), both)
    same(lambda make: make(models.add()).run(None, {"a": X, "b": X}, 3), both)


def test_terminate_ends_a_request_that_runs_and_the_session_goes_on(both):
    session, options = both[1](models.counting()), ort.RunOptions()
    assert session.run(None, {"n": np.array(3)})[0] == 3
    threading.Timer(0.2, lambda: setattr(options, "terminate", True)).start()
    with pytest.raises(bbgrap.ExecutionError, match="Exiting due to terminate flag being set to true") as caught:
        session.run(None, {"n": np.array(MANY)}, options)
    assert isinstance(caught.value, ort_state.Fail)
    assert session.run(None, {"n": np.array(5)})[0] == 5
