"""A whole model on one device answers as plain onnxruntime does, bit for bit, whatever the shapes."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bbgrap.compiler.memory import LEAST_STANDBY_BYTES
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.session_call import packed_names, unpacked_results
from bbgrap.engine.sessions import declared_type, make_session
from bbgrap.engine.standby import standby_of
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import free_batch, read_model, save_graph
from bbgrap.graph.types import DType
from bbgrap.protocol.message_layout import layouts_received, layouts_sent, pack, unpack
from bbgrap.protocol.values import Numbers
from bbgrap.runtime.execution import Execution
from bbgrap.runtime.schedule import LocalReceive, LocalSend, check_schedule
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import pairs_of
from bbgrap.zoo import materialize
from tests.conformance.test_odd_models import MODELS as ODD
from tests.examples import examples
from tests.light_control_flow import node, normal, speech_like, untyped
from tests.light_models import light_model
from tests.quantized_models import FORMATS, converted, of_four_bits
from tests.quantized_models import networks as quantized_networks
from tests.random_models import networks, random_feeds
from tests.sequence_models import listener
from tests.value_models import CASES, plain_answers

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def answers(standby: PlannedVariant, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """Run a request, host and device in turns; every message goes through its form on the wire."""
    (device,), host = standby.artifacts.devices, standby.artifacts.host
    assert not check_schedule(device.schedule)
    assert not check_schedule(host)
    runs = [Execution(device.schedule), Execution(host, feeds)]
    sent = [layouts_sent(schedule) for schedule in (device.schedule, host)]
    received = [layouts_received(schedule) for schedule in (device.schedule, host)]

    def sender(number: int) -> Any:
        def send(step: LocalSend, arrays: Mapping[int, np.ndarray]) -> None:
            layout = sent[number][step.message]
            payload = b"".join(bytes(piece) for piece in pack(layout, runs[number].slices.sent(step, arrays)))
            runs[step.destination].deliver(step.message, unpack(received[step.destination][step.message], payload))

        return send

    (kernel,) = local_kernels(standby.artifacts)
    for number in (1, 0, 1):
        runs[number].advance(kernel, sender(number))
    return runs[1].results()


def identical(got: Any, want: Any) -> bool:
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(identical, got, want))
    if isinstance(got, bytes):
        return got == want.tobytes()
    if isinstance(want, np.ndarray) and want.dtype != object:
        return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
    if isinstance(want, np.ndarray):
        return got.shape == want.shape and got.tolist() == want.tolist()
    return bool(got == want)


def check(path, *feeds: dict[str, np.ndarray]) -> PlannedVariant:
    standby = standby_of(path)
    plain = make_session(path, threads=1)
    names = [standby.artifacts.host.buffers[b].name for b in standby.artifacts.host.feeds]
    assert names == [item.name for item in plain.get_inputs()]
    for feed in feeds:
        got, want = answers(standby, [feed[name] for name in names]), plain.run(None, feed)
        assert identical(got, want), f"{path.name} for {[array.shape for array in feed.values()]}"
    return standby


def written(path, nodes, inputs, outputs, weights=(), **more):
    graph = helper.make_graph(nodes, "whole", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in dict(weights).items()], **more)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def of(name, shape, kind=F):
    return helper.make_tensor_value_info(name, kind, shape)


CONV = node("Conv", "x w", "a", pads=[1, 1, 1, 1])
WEIGHT = normal(0, 8, 4, 3, 3)
FREE = ["N", 4, "H", "W"]
SHAPES = [(1, 4, 8, 8), (3, 4, 5, 11), (2, 4, 1, 1), (1, 4, 32, 7), (0, 4, 8, 8)]


def images(name="x"):
    return [{name: normal(n, *shape)} for n, shape in enumerate(SHAPES)]


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", pytest.param("resnet50", marks=pytest.mark.slow), "inception_v1"])
def test_light_models(name, tmp_path_factory):
    path = light_model(name, tmp_path_factory.getbasetemp() / "light")
    (declared,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
    check(path, {declared.name: normal(1, *declared.shape)})


@pytest.mark.parametrize("name", ["tiny"])
def test_zoo(name):
    check(materialize(name), {"input": normal(2, 1, 3, 32, 32)})


@given(graph=networks(), seed=st.integers(0, 9))
@settings(max_examples=examples(25))
def test_random_networks_of_any_batch(tmp_path_factory, graph, seed):
    path = tmp_path_factory.mktemp("random") / "model.onnx"
    save_graph(graph, path, free=free_batch(graph))
    (feed,) = random_feeds(graph, seed)
    check(path, {"input": feed}, {"input": np.concatenate([feed, feed + 1, feed - 1])})


@pytest.fixture(scope="module")
def small_networks(tmp_path_factory):
    return quantized_networks(tmp_path_factory.mktemp("quantized"))


@pytest.mark.parametrize(("network", "form"), list(product(("tiny", "attention"), FORMATS)))
def test_quantized_models(small_networks, network, form):
    path, x = converted(form, *small_networks[network])
    check(path, {"input": x}, {"input": x[:, ::-1].copy()})


@pytest.mark.parametrize("pairs", [False, True])
def test_weights_of_four_bits(tmp_path, pairs):
    path, x = of_four_bits(tmp_path, accuracy=1, pairs=pairs)
    check(path, {"input": x})


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_odd_models(make, tmp_path):
    path = tmp_path / "odd.onnx"
    onnx.save(make(), path)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(5)
    feed = {
        item.name: random.standard_normal([d if isinstance(d, int) else 1 for d in item.shape]).astype(declared_type(item).dtype.numpy)
        for item in session.get_inputs()
    }
    check(path, feed)


def test_control_flow_of_any_length(tmp_path):
    path = tmp_path / "speech.onnx"
    onnx.save(speech_like(), path)
    cases = product((16000, 8000), (1, 5))
    check(path, *({"sound": normal(0, n, rate // 250), "state": normal(3, 2, n, 8), "rate": np.array(rate)} for rate, n in cases))


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_values_that_are_no_arrays(make, tmp_path):
    proto, feed = make()
    path = tmp_path / "values.onnx"
    onnx.save(proto, path)
    want = plain_answers(path, dict(feed))
    standby, plain = standby_of(path), make_session(path, threads=1)
    host, packed = standby.artifacts.host, packed_names(plain.get_inputs())
    for buffer in host.feeds:
        assert host.buffers[buffer].name not in packed or host.buffers[buffer].dtype is DType.UINT8
    feeds = Signature.of(read_model(path)).check_feed(feed)
    got = unpacked_results([declared_type(item) for item in plain.get_outputs()], answers(standby, feeds))
    assert identical([item.content if isinstance(item, Numbers) else item for item in got], want)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_of_an_output_it_answers_the_largest_elements(tmp_path, count):
    nodes = [node("Sign", "x", "y"), node("Neg", "x", "z")]
    path = written(tmp_path / "m.onnx", nodes, [of("x", ["N", "M"])], [of("y", None), of("z", None)], {})
    standby, plain = standby_of(path, top=[("z", count)]), make_session(path, threads=1)
    for x in (normal(1, 4, 9), normal(2, 1, 250)):
        signs, numbers = plain.run(None, {"x": x})
        places = np.argsort(-numbers, axis=-1, kind="stable")[:, :count]
        assert identical(answers(standby, [x]), [signs, np.take_along_axis(numbers, places, -1), places])


def test_free_dimensions_stay_free(tmp_path):
    nodes = [CONV, node("Relu", "a", "b"), node("GlobalAveragePool", "b", "y")]
    path = written(tmp_path / "m.onnx", nodes, [of("x", FREE)], [of("y", None)], {"w": WEIGHT})
    standby = check(path, *images())
    (spec,) = (standby.artifacts.host.buffers[b] for b in standby.artifacts.host.feeds)
    assert spec.shape is None


def test_declared_shapes_of_inputs_are_kept_and_those_of_outputs_not_believed(tmp_path):
    """onnxruntime says nothing against a wrong shape of an output, and answers."""
    path = written(tmp_path / "m.onnx", [CONV], [of("x", [1, 4, 8, 8])], [of("a", [1, 8, "H", 99])], {"w": WEIGHT})
    host = check(path, images()[0]).artifacts.host
    assert host.buffers[host.feeds[0]].shape == (1, 4, 8, 8)
    assert host.buffers[host.results[0]].shape is None


def test_weights_are_known_by_content_and_stay_outside_whatever_form_they_have(tmp_path):
    big = normal(7, 64, 64)
    nodes = [
        node("Constant", "", "c", value=numpy_helper.from_array(big)),
        node("MatMul", "x c", "a"),
        node("MatMul", "a w", "b"),
        node("Add", "b small", "y"),
    ]
    path = written(tmp_path / "m.onnx", nodes, [of("x", ["N", 64])], [of("y", None)], {"w": big, "small": normal(1, 64), "unread": big})
    standby = check(path, {"x": normal(2, 3, 64)})
    (segment,) = standby.artifacts.devices[0].segments
    assert set(segment.weights) == {"c", "w"}
    assert len(standby.artifacts.weights) == 1
    assert len(segment.skeleton) < big.nbytes
    assert standby.report["weight_bytes"] == big.nbytes
    assert standby.report["memory_bytes"] == 2 * big.nbytes + LEAST_STANDBY_BYTES
    assert standby.report["planner"] == "standby"
    assert segment.whole


def test_weights_of_16_bits_are_counted_as_they_are_while_they_are_loaded(tmp_path):
    big = normal(7, 64, 64).astype(np.float16)
    nodes = [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("MatMul", "h w", "a"), node("Cast", "a", "y", to=TensorProto.FLOAT)]
    path = written(tmp_path / "m.onnx", nodes, [of("x", ["N", 64])], [of("y", None)], {"w": big})
    report = standby_of(path).report
    assert report["weight_bytes"] == big.nbytes
    assert report["memory_bytes"] == 3 * big.nbytes + LEAST_STANDBY_BYTES, "it is there beside what becomes float32"


def test_weights_in_files_beside_the_model(tmp_path):
    path = written(tmp_path / "m.onnx", [CONV], [of("x", FREE)], [of("a", None)], {"w": normal(0, 16, 4, 3, 3)})
    onnx.save(onnx.load(path), tmp_path / "outside.onnx", save_as_external_data=True, location="outside.bin", size_threshold=0)
    check(tmp_path / "outside.onnx", *images())


def test_an_output_that_is_an_input_or_a_weight_or_is_listed_twice(tmp_path):
    sides = [of("x", FREE)], [of("x", FREE), of("w", [16, 4, 3, 3]), of("a", None)]
    path = written(tmp_path / "m.onnx", [CONV], *sides, {"w": normal(0, 16, 4, 3, 3)})
    check(path, *images())


def test_a_model_without_inputs(tmp_path):
    path = written(tmp_path / "m.onnx", [node("Neg", "w", "y")], [], [of("y", None)], {"w": normal(0, 30, 30)})
    check(path, {})


def test_weights_that_are_listed_as_inputs_too_are_weights(tmp_path):
    """Plain onnxruntime takes them as they come with each request, and so cannot pack them: what it says without the list counts."""
    weights = {"w": WEIGHT}
    without = written(tmp_path / "without.onnx", [CONV], [of("x", FREE)], [of("a", None)], weights)
    with_it = written(tmp_path / "with.onnx", [CONV], [of("x", FREE), of("w", [8, 4, 3, 3])], [of("a", None)], weights)
    standby = check(without, *images())
    listed = standby_of(with_it)
    assert [listed.artifacts.host.buffers[b].name for b in listed.artifacts.host.feeds] == ["x"]
    for feed in images():
        assert identical(answers(listed, [feed["x"]]), answers(standby, [feed["x"]]))


def test_outputs_without_a_type_and_texts(tmp_path):
    nodes = [CONV, node("Shape", "x", "s"), node("Cast", "s", "t", to=TensorProto.STRING), node("Relu", "a", "y")]
    outputs = [of("t", None, TensorProto.STRING), onnx.ValueInfoProto(name="y"), untyped("a")]
    path = written(tmp_path / "m.onnx", nodes, [of("x", FREE)], outputs, {"w": WEIGHT})
    host = check(path, *images()).artifacts.host
    assert [host.buffers[b].dtype for b in host.results] == [DType.STRING, DType.FLOAT, DType.FLOAT]


def test_what_only_the_checker_refuses(tmp_path):
    path = written(tmp_path / "m.onnx", [CONV, node("Relu", "a", "y", surplus=1)], [of("x", FREE)], [of("y", None)], {"w": WEIGHT})
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(path)


def test_what_onnxruntime_refuses_is_refused_here(tmp_path):
    strange = helper.make_node("Strange", ["x"], ["y"], domain="nobody.knows")
    graph = helper.make_graph([strange], "g", [of("x", FREE)], [of("y", FREE)])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("nobody.knows", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"onnxruntime .* cannot load the model"):
        standby_of(tmp_path / "m.onnx")


@pytest.mark.parametrize("merged", [False, True])
def test_a_later_request_brings_nothing_that_an_encoder_made(tmp_path, merged):
    (tmp_path / "listener.onnx").write_bytes(listener(merged=merged))
    signature = Signature.of(read_model(tmp_path / "listener.onnx"))
    shipped = standby_of(tmp_path / "listener.onnx", pairs_of("auto", signature, "listener")).artifacts.devices[0]
    further = shipped.further
    (receive,) = (step for step in further.steps if isinstance(step, LocalReceive))
    brought = {further.buffers[number].name for number in receive.buffers}
    assert brought == ({"input_ids", "use_cache_branch"} if merged else {"input_ids"})
    assert not check_schedule(further)


def test_what_a_model_takes_and_answers_counts_where_its_file_says_how_large_it_is(tmp_path):
    sizes = {name: helper.make_tensor_value_info(name, F, [1, 3, 3000, 3000]) for name in "xy"}
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "large", [sizes["x"]], [sizes["y"]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "large.onnx")
    assert standby_of(tmp_path / "large.onnx").report["memory_bytes"] == 2 * 4 * 3 * 3000 * 3000
