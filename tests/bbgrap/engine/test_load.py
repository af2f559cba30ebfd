import numpy as np
import onnx
import pytest
from onnx import helper

from bbgrap import zoo
from bbgrap.engine.load import load_graph
from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import SEGMENTS_WITHOUT, make_session, open_session, session_options
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import write_graph
from tests.light_models import NAMES, light_model
from tests.onnx_models import model_of, write_model

FEW_BITS = {"K": 128, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
LARGE = ("resnet50", "vgg19", "zfnet512", "bvlc_alexnet", "densenet121", "inception_v2")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def run_graph(graph, feeds, weights):
    written = write_graph(graph, weights=weights)
    arrays = {name: graph.weights[name].array for name in written.detached}
    return make_session(written.data, weights=arrays, threads=1).run(None, feeds)


def save(tmp_path, nodes, inputs, outputs, weights=(), domains=()):
    return write_model(tmp_path / "m.onnx", nodes, inputs, outputs, dict(weights), domains=dict.fromkeys(domains, 1))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in NAMES])
def test_light_models_say_the_same_as_onnxruntime_and_depend_on_their_input(name, cache):
    path = light_model(name, cache)
    reference = Reference(path)
    (item,) = reference.inputs
    x = np.random.default_rng(0).standard_normal(item.shape, np.float32)
    y = x.copy()
    y[:, :, 100] = 0
    (whole,) = reference.run({item.name: x})
    (changed,) = reference.run({item.name: y})
    assert np.isfinite(whole).all()
    assert whole.std() > 1e-2
    assert np.abs(whole - changed).max() > 1e-5 * np.abs(whole).max()
    (got,) = run_graph(load_graph(path, {}), {item.name: x}, "inline")
    np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5 * np.abs(whole).max())


def test_the_batch_of_a_model_that_fixes_it_can_be_changed(cache):
    path = light_model("shufflenet", cache)
    reference = Reference(path)
    (item,) = reference.inputs
    x = np.random.default_rng(0).standard_normal((2, *item.shape[1:]), np.float32)
    (got,) = run_graph(load_graph(path, {item.name: x.shape}), {item.name: x}, "inline")
    for k in range(2):
        (alone,) = reference.run({item.name: x[k : k + 1]})
        np.testing.assert_allclose(got[k : k + 1], alone, rtol=1e-4, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("tiny", "inline"),
        ("mobilenet_v2", "detached"),
        pytest.param("unet", "inline", marks=pytest.mark.broad),
        pytest.param("yolo", "detached", marks=pytest.mark.broad),
        pytest.param("resnet50", "detached", marks=pytest.mark.broad),
    ],
)
def test_zoo_models_come_through_unchanged(name, weights, cache):
    path = zoo.materialize(name, cache)
    reference = Reference(path)
    x = np.random.default_rng(0).standard_normal((1, *reference.inputs[0].shape[1:]), np.float32)
    graph = load_graph(path, {"input": x.shape})
    assert "BatchNormalization" not in {node.op for node in graph.nodes}
    assert graph.opsets == {"": zoo.builder.OPSET}
    (expected,) = reference.run({"input": x})
    (got,) = run_graph(graph, {"input": x}, weights)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg16", "resnet152", "alexnet"])
def test_large_zoo_models_come_through_unchanged(name, cache):
    test_zoo_models_come_through_unchanged(name, "detached", cache)


def test_equal_files_give_equal_graphs(cache):
    path = zoo.materialize("tiny", cache)
    assert load_graph(path, {"input": (2, 3, 32, 32)}) == load_graph(path, {"input": (2, 3, 32, 32)})


def test_operators_nobody_knows_are_refused(tmp_path):
    path = save(tmp_path, [helper.make_node("Secret", ["x"], ["y"], domain="acme")], {"x": [4]}, {"y": [4]}, domains=["acme"])
    with pytest.raises(ModelError, match=r"onnxruntime .* cannot load the model: .*Secret"):
        load_graph(path, {})


def test_what_onnxruntime_refuses_is_refused_with_the_words_of_the_checker(tmp_path):
    path = save(tmp_path, [helper.make_node("Nonsense", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    with pytest.raises(ModelError, match=r"onnxruntime .* cannot load the model: .*; the ONNX checker rejects it: .*Nonsense"):
        load_graph(path, {})


def test_operators_of_onnxruntime_have_types(tmp_path):
    nodes = [helper.make_node("FusedMatMul", ["x", "w"], ["a"], domain="com.microsoft", alpha=2.0), helper.make_node("Relu", ["a"], ["y"])]
    path = save(tmp_path, nodes, {"x": [2, 4]}, {"y": [2, 3]}, {"w": np.ones((4, 3), np.float32)}, ["com.microsoft"])
    graph = load_graph(path, {})
    assert str(graph.types["a"]) == "float[2, 3]"
    assert graph.opsets == {"": 17, "com.microsoft": 1}
    (got,) = run_graph(graph, {"x": np.ones((2, 4), np.float32)}, "inline")
    np.testing.assert_array_equal(got, np.full((2, 3), 8, np.float32))


def test_no_operator_of_onnxruntime_is_brought_in(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Div", ["r", "two"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["p"]),
        helper.make_node("Mul", ["r", "p"], ["m"]),
        helper.make_node("Mul", ["m", "half"], ["y"]),
    ]
    scalars = {name: np.array(value, np.float32) for name, value in (("two", 2**0.5), ("one", 1), ("half", 0.5))}
    weights = {"w": np.ones((4, 3, 1, 1), np.float32)} | scalars
    graph = load_graph(save(tmp_path, nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 4, 4, 4]}, weights), {})
    assert {node.domain for node in graph.nodes} == {""}


def test_a_segment_keeps_dequantized_weights_as_the_whole_does(tmp_path):
    """Folded, they would be constants, and a convolution of constants has another kernel."""
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["f"]), helper.make_node("Conv", ["x", "f"], ["y"])]
    stored = {"w": np.ones((16, 16, 1, 1), np.uint8), "scale": np.array(0.5, np.float32), "zero": np.array(3, np.uint8)}
    data = model_of(nodes, {"x": [1, 16, 4, 4]}, {"y": [1, 16, 4, 4]}, stored).SerializeToString()
    options = session_options(threads=1)
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")
    open_session(data, options, {}, SEGMENTS_WITHOUT)
    assert [node.op_type for node in onnx.load(tmp_path / "seen.onnx").graph.node] == ["DequantizeLinear", "Conv"]


def skipping(shape):
    """A sum with what was skipped, its normalisation, and a product that reads in 8 bits."""
    nodes = [
        helper.make_node("Add", ["x", "skip"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale", "bias"], ["normed"], axis=-1),
        helper.make_node("MatMulNBits", ["normed", "w", "steps"], ["y"], domain="com.microsoft", **FEW_BITS),
    ]
    random = np.random.default_rng(1)
    stored = {"w": random.integers(0, 256, (32, 4, 16)).astype(np.uint8), "steps": random.uniform(0.01, 0.02, (32, 4)).astype(np.float32)}
    stored |= {name: random.standard_normal(128).astype(np.float32) for name in ("scale", "bias")}
    return model_of(nodes, dict.fromkeys(("x", "skip"), shape), {"y": None}, stored, domains={"com.microsoft": 1})


def skipped(number):
    random = np.random.default_rng(number)
    return {name: random.standard_normal((1, 40, 128)).astype(np.float32) for name in ("x", "skip")}


def test_a_segment_that_reads_in_8_bits_adds_and_normalises_as_the_whole_does():
    """Of a whole with free sizes onnxruntime makes no operator of both; of a segment it would, and what reads in 8 bits would differ."""
    whole = make_session(skipping([None, None, 128]).SerializeToString(), threads=1)
    segment = make_session(skipping([1, 40, 128]).SerializeToString(), threads=1, segment=True)
    for number in range(10):
        feeds = skipped(number)
        np.testing.assert_array_equal(segment.run(None, feeds)[0], whole.run(None, feeds)[0])


@pytest.mark.parametrize(("shape", "joined"), [([None, None, 128], False), ([1, 40, 128], True), (["b", "s", 128], True)])
def test_sums_and_normalisations_are_one_operator_where_onnxruntime_makes_one_of_the_file(shape, joined, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(skipping(shape).SerializeToString())
    graph = load_graph(path, dict.fromkeys(("x", "skip"), (1, 40, 128)))
    assert ("SkipLayerNormalization" in {node.op for node in graph.nodes}) == joined
    whole, segment = make_session(path, threads=1), make_session(write_graph(graph, weights="inline").data, threads=1, segment=True)
    for number in range(10):
        feeds = skipped(number)
        np.testing.assert_array_equal(segment.run(None, feeds)[0], whole.run(None, feeds)[0])


def test_a_segment_does_not_quantize_what_it_hands_on():
    """Optimised as a whole, onnxruntime 1.31 does, if only a transpose before a quantizer reads it there."""
    nodes = [
        helper.make_node("Neg", ["x"], ["handed"]),
        helper.make_node("Transpose", ["handed"], ["turned"], perm=[1, 0]),
        helper.make_node("QuantizeLinear", ["turned", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    stored = {"scale": np.array(0.25, np.float32), "zero": np.array(128, np.uint8)}
    data = model_of(nodes, {"x": [3, 4]}, ["handed", "y"], stored).SerializeToString()
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (handed,) = make_session(data, threads=1, segment=True).run(["handed"], {"x": x})
    np.testing.assert_array_equal(handed, -x)


def biased(shape):
    """Twice a product of bytes, plus a bias, in bytes again: of all axes, and of the mean over the second."""
    nodes = [helper.make_node("DequantizeLinear", ["w_q", "w_step", "w_zero"], ["w"])]
    nodes.append(helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=0))
    for x, y in (("x", "y"), ("mean", "z")):
        nodes += [
            helper.make_node("QuantizeLinear", [x, "step", "zero"], [f"{y}_read"]),
            helper.make_node("DequantizeLinear", [f"{y}_read", "step", "zero"], [f"{y}_rounded"]),
            helper.make_node("MatMul", [f"{y}_rounded", "w"], [f"{y}_product"]),
            helper.make_node("Add", [f"{y}_product", "bias"], [f"{y}_sum"]),
            helper.make_node("QuantizeLinear", [f"{y}_sum", "step", "zero"], [f"{y}_bytes"]),
            helper.make_node("DequantizeLinear", [f"{y}_bytes", "step", "zero"], [y]),
        ]
    random = np.random.default_rng(1)
    stored = {"w_q": random.integers(0, 256, (128, 32)).astype(np.uint8), "bias": random.standard_normal(32).astype(np.float32)}
    stored |= {"w_step": np.array(0.003, np.float32), "step": np.array(0.04, np.float32)}
    stored |= {"w_zero": np.array(128, np.uint8), "zero": np.array(128, np.uint8)}
    return model_of(nodes, {"x": shape}, ["y", "z"], stored)


@pytest.mark.parametrize("shape", [[None, None, 128], ["b", "s", 128], [1, 40, 128]], ids=["free", "named", "fixed"])
def test_a_bias_is_part_of_a_quantized_product_where_onnxruntime_makes_it_one_of_the_file(shape, tmp_path):
    """That is a sum of integers, rounded once; with free sizes onnxruntime makes it so of two axes, and not of three."""
    path = tmp_path / "m.onnx"
    path.write_bytes(biased(shape).SerializeToString())
    graph = load_graph(path, {"x": (1, 40, 128)})
    whole, segment = make_session(path, threads=1), make_session(write_graph(graph, weights="inline").data, threads=1, segment=True)
    for number in range(20):
        feeds = {"x": skipped(number)["x"]}
        for found, expected in zip(segment.run(None, feeds), whole.run(None, feeds), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_onnxruntime_makes_of_a_function_is_folded_too(tmp_path):
    """It has no kernel of `CenterCropPad`, and writes out its function when constants have been folded."""
    nodes = [helper.make_node("CenterCropPad", ["x", "sizes"], ["cut"], axes=[2, 3]), helper.make_node("Conv", ["cut", "w"], ["y"])]
    stored = {"sizes": np.array([20, 30]), "w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)}
    path = write_model(tmp_path / "m.onnx", nodes, {"x": ["b", 3, "h", "w"]}, {"y": None}, stored, opset=18)
    graph = load_graph(path, {"x": (1, 3, 40, 24)})
    assert {node.op for node in graph.nodes} <= {"Pad", "Slice", "Conv"}
    assert graph.types["cut"].shape == (1, 3, 20, 30)


def deciding(condition):
    """A model of these nodes, and an `If` of what the last of them makes: a `Relu`, else a `Sigmoid`."""
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, 1, None)])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Sigmoid"))
    }
    return [*condition, helper.make_node("If", [condition[-1].output[0]], ["y"], **branches)]


def test_a_condition_that_follows_from_constants_decides_if_its_constants_are_cast(tmp_path):
    """As what is written in onnxscript casts all of its numbers: `mode == 0`."""
    condition = [helper.make_node("CastLike", ["zero", "mode"], ["same"]), helper.make_node("Equal", ["mode", "same"], ["is zero"])]
    stored = {"zero": np.array(0, np.int32), "mode": np.array(1)}
    path = write_model(tmp_path / "m.onnx", deciding(condition), {"x": [3, 4]}, {"y": None}, stored)
    assert [node.op for node in load_graph(path, {}).nodes] == ["Sigmoid"]


@pytest.mark.parametrize(("shape", "op"), [((3, 4), "Sigmoid"), ((3, 0), "Relu"), ((), "Sigmoid")])
def test_a_condition_that_follows_from_a_size_decides(shape, op, tmp_path):
    """As ndonnx writes one around each product of matrices: whether there is anything to add up."""
    condition = [helper.make_node("Size", ["x"], ["count"]), helper.make_node("Equal", ["count", "zero"], ["is empty"])]
    path = write_model(tmp_path / "m.onnx", deciding(condition), {"x": [None] * len(shape)}, {"y": None}, {"zero": np.array(0)})
    assert [node.op for node in load_graph(path, {"x": shape}).nodes] == [op]
