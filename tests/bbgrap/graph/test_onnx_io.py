from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.errors import InputError, ModelError
from bbgrap.graph import DType, Subgraph, TensorType, check_graph
from bbgrap.graph.onnx_io import normalize_opset, read_model, save_graph, to_graph, with_input_shapes, write_graph
from bbgrap.graph.onnx_read import checker_fault, structure_fault
from bbgrap.graph.onnx_types import text_of
from bbgrap.graph.weights import make_weight
from tests.onnx_models import model_of, write_model


@pytest.fixture
def load(tmp_path):
    def save_and_read(*args, **kwargs):
        path = tmp_path / "model.onnx"
        return read_model(write_model(path, *args, **kwargs))

    return save_and_read


@pytest.fixture
def external(tmp_path):
    """A model of one weight in a file beside it; called with the location to write into the model."""

    def save(location="weights.bin", length=4096):
        weight = TensorProto(name="w", dims=[1024], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
            weight.external_data.add(key=key, value=value)
        model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1024]}, {"y": [1024]})
        model.graph.initializer.append(weight)
        path = tmp_path / "models" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(model.SerializeToString())
        return path

    return save


RELU = helper.make_node("Relu", ["x"], ["y"])


# --- reading ---


def test_interface_without_weights_that_old_files_list_as_inputs(load):
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = load([add], {"x": ["N", 4], "w": [4]}, {"y": ["N", 4]}, {"w": np.ones(4, np.float32)}, opset=9, ir_version=3)
    assert [(i.name, i.dtype, i.shape) for i in model.inputs] == [("x", DType.FLOAT, ("N", 4))]
    assert [o.name for o in model.outputs] == ["y"]
    assert model.opsets == {"": 9}


def test_a_weight_that_is_listed_as_an_input_can_be_overridden(load):
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = load([add], {"x": ["N", 4], "w": [4]}, {"y": ["N", 4]}, {"w": np.ones(4, np.float32)}, opset=13)
    assert [(item.name, item.shape) for item in model.overridable] == [("w", (4,))]
    given = with_input_shapes(model, {"x": (2, 4), "w": (4,)})
    assert [(item.name, item.shape) for item in given.inputs] == [("x", (2, 4)), ("w", (4,))]
    graph = to_graph(given)
    assert graph.inputs == ("x", "w")
    assert not graph.weights
    with pytest.raises(InputError, match=r"input 'w': expected \[4\], got \[4, 1\]; the ranks differ"):
        with_input_shapes(model, {"x": (2, 4), "w": (4, 1)})


def test_outputs_without_a_shape_have_the_one_that_follows(load, tmp_path):
    proto = model_of([RELU], {"x": ["N", 4]}, {"y": ["N", 4]})
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "shapeless.onnx")
    assert read_model(tmp_path / "shapeless.onnx").outputs[0].shape == ("N", 4)
    proto.graph.output[0].ClearField("type")
    onnx.save(proto, tmp_path / "typeless.onnx")
    (output,) = read_model(tmp_path / "typeless.onnx").outputs
    assert (output.dtype, output.shape) == (DType.FLOAT, ("N", 4))


def test_outputs_behind_a_group_normalization_have_a_rank(load):
    """It is that of what it reads, as for onnxruntime."""
    nodes = [
        helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["normal"], num_groups=2),
        helper.make_node("Relu", ["normal"], ["y"]),
    ]
    weights = {name: np.ones(4, np.float32) for name in ("scale", "bias")}
    model = load(nodes, {"x": ["N", 4, 8, 8]}, {"y": None}, weights, opset=21)
    assert model.outputs[0].shape == ("N", 4, 8, 8)
    assert [node.op_type for node in model.proto.graph.node] == ["GroupNormalization", "Relu"]


@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage" * 50, bytes(range(256)), b"not a model"])
def test_other_bytes_are_refused(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX file"):
        read_model(path)


def test_a_truncated_file_is_refused(tmp_path):
    data = model_of([RELU], {"x": [4]}, {"y": [4]}, {"w": np.ones(999, np.float32)}).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="model '"):
        read_model(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere.onnx': cannot be read: No such file"):
        read_model(tmp_path / "nowhere.onnx")


def test_a_path_that_is_no_text_is_refused_in_words(tmp_path):
    path = tmp_path / "m\udcff.onnx"
    path.write_bytes(model_of([RELU], {"x": [4]}, {"y": [4]}).SerializeToString())
    with pytest.raises(ModelError, match="its path is no text in UTF-8"):
        read_model(path)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_path_that_the_locale_does_not_read_is_not_only_to_be_renamed(monkeypatch, encoding):
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: encoding)
    with pytest.raises(ModelError, match=r"rename it, or set PYTHONUTF8=1 if its name is right$" if encoding == "ascii" else "rename it$"):
        read_model(Path("gr\udcc3\udcbcn.onnx"))


def test_what_the_checker_says_refuses_no_file(load, tmp_path):
    load([helper.make_node("Nonsense", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    assert "Nonsense" in checker_fault(tmp_path / "model.onnx")
    load([RELU], {"x": [4]}, {"y": [4]})
    assert checker_fault(tmp_path / "model.onnx") == ""


@pytest.mark.parametrize("elements", [4, 9999])
@pytest.mark.parametrize("kind", ["Add", "Nonsense"])
def test_the_checker_says_the_same_without_the_weights(load, tmp_path, kind, elements):
    weights = {"w": np.ones(elements, np.float32)}
    model = load([helper.make_node(kind, ["x", "w"], ["y"])], {"x": [elements]}, {"y": [elements]}, weights)
    fault = checker_fault(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").unlink()
    assert structure_fault(model) == fault
    assert bool(fault) == (kind == "Nonsense")


def test_too_new_a_model_is_refused(load):
    with pytest.raises(ModelError, match="opset 999"):
        load([RELU], {"x": [4]}, {"y": [4]}, opset=999)
    with pytest.raises(ModelError, match="IR version 99"):
        load([RELU], {"x": [4]}, {"y": [4]}, ir_version=99)


def test_weights_beside_the_model_are_read(external):
    path = external()
    values = np.arange(1024, dtype=np.float32)
    (path.parent / "weights.bin").write_bytes(values.tobytes())
    graph = to_graph(read_model(path))
    np.testing.assert_array_equal(graph.weights["w"].array, values)
    assert graph.weights["w"].digest == make_weight("other", values.copy()).digest


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_weights_beside_the_model_take_no_descriptors(external):
    """Systems mostly grant a program 1,024; a model with more weights was called broken."""
    path = external()
    (path.parent / "weights.bin").write_bytes(bytes(4096))
    before = len(list(Path("/proc/self/fd").iterdir()))
    model = read_model(path)
    assert to_graph(model).weights["w"].array.nbytes == 4096
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_missing_and_short_weight_files_are_named(external):
    path = external()
    with pytest.raises(ModelError, match=r"weight 'w': its file 'weights.bin' is missing"):
        read_model(path)
    (path.parent / "weights.bin").write_bytes(bytes(100))
    with pytest.raises(ModelError, match="cut short"):
        read_model(path)


@pytest.mark.parametrize("location", ["w/parts/weights.bin", "./w//parts/./weights.bin"])
def test_weights_in_folders_are_read(external, location):
    path = external(location)
    (path.parent / "w" / "parts").mkdir(parents=True)
    (path.parent / "w" / "parts" / "weights.bin").write_bytes(np.arange(1024, dtype=np.float32).tobytes())
    model = read_model(path)
    assert (model.files, to_graph(model).weights["w"].array[-1]) == (("w/parts/weights.bin",), 1023)


@pytest.mark.parametrize("location", ["../secret", "a/../../secret", "/etc/hostname", ""])
def test_weights_elsewhere_are_never_opened(external, tmp_path, location):
    (tmp_path / "secret").write_bytes(bytes(4096))
    with pytest.raises(ModelError, match="refused"):
        read_model(external(location))


def test_links_out_of_the_directory_are_refused(external, tmp_path):
    path = external()
    (tmp_path / "secret").write_bytes(bytes(4096))
    (path.parent / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="link that leads out"):
        read_model(path)


def test_folders_that_are_links_out_of_the_directory_are_refused(external, tmp_path):
    path = external("w/secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(bytes(4096))
    (path.parent / "w").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="link that leads out"):
        read_model(path)


def test_links_may_lead_where_the_models_own_does(external, tmp_path):
    """As in the caches of Hugging Face; onnxruntime takes them, too."""
    path, blobs = external(), tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "a").write_bytes(np.arange(1024, dtype=np.float32).tobytes())
    path.rename(blobs / "b")
    path.symlink_to(blobs / "b")
    (path.parent / "weights.bin").symlink_to(blobs / "a")
    model = read_model(path)
    assert (model.files, to_graph(model).weights["w"].array[-1]) == (("weights.bin",), 1023)


# --- input shapes and opset ---


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0)], ids=str)
def test_what_a_file_calls_a_scalar_may_be_of_any_shape(load, shape):
    model = with_input_shapes(load([RELU], {"x": []}, {"y": []}), {"x": shape})
    assert to_graph(model).types["y"] == TensorType(DType.FLOAT, shape)


def test_free_dimensions_become_concrete(load):
    model = with_input_shapes(load([RELU], {"x": ["N", 4]}, {"y": ["N", 4]}), {"x": (3, 4)})
    assert to_graph(model).types["y"] == TensorType(DType.FLOAT, (3, 4))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"input 'x': its shape \[N, 4\] has free dimensions"),
        ({"z": (1, 4)}, "input"),
        ({"x": (1, 4), "z": (1,)}, "input 'z': the model has no such input, it has x"),
        ({"x": (4,)}, r"expected \[N, 4\], got \[4\]; the ranks differ"),
        ({"x": (1, 5)}, r"expected \[N, 4\], got \[1, 5\]; dimension 1 is fixed"),
        ({"x": (-1, 4)}, "negative"),
    ],
)
def test_shapes_that_do_not_fit(load, shapes, message):
    with pytest.raises(InputError, match=message):
        with_input_shapes(load([RELU], {"x": ["N", 4]}, {"y": ["N", 4]}), shapes)


def test_a_batch_written_into_the_file_is_replaced(load):
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Reshape", ["r", "s"], ["y"])]
    info = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 2, 2])]
    model = load(nodes, {"x": [1, 2, 2]}, {"y": [1, 4]}, {"s": np.array([1, 4])}, value_info=info)
    graph = to_graph(with_input_shapes(model, {"x": (3, 2, 2)}))
    assert graph.types["r"].shape == (3, 2, 2)
    assert graph.types["y"].shape == (3, 4)
    assert to_graph(with_input_shapes(model, {})).types["y"].shape == (1, 4)


def test_a_reshaped_parameter_keeps_its_shape(load):
    nodes = [helper.make_node("Reshape", ["w", "s"], ["v"]), helper.make_node("Add", ["x", "v"], ["y"])]
    model = load(nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"s": np.array([1, 4]), "w": np.ones(4, np.float32)})
    assert to_graph(with_input_shapes(model, {"x": (3, 4)})).types["v"].shape == (1, 4)


def test_old_models_become_current_and_others_stay(load):
    model = load([helper.make_node("Squeeze", ["x"], ["y"], axes=[0])], {"x": [1, 4]}, {"y": [4]}, opset=9)
    graph = to_graph(normalize_opset(model))
    assert graph.opsets == {"": 17}
    assert graph.nodes[0].inputs[1:] != ()
    current = load([RELU], {"x": [4]}, {"y": [4]}, opset=13)
    assert normalize_opset(current) is current


# --- to Graph ---


def test_nodes_without_names_get_readable_unique_ones(load):
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["b"], name="Relu_a")]
    graph = to_graph(load([*nodes, helper.make_node("Abs", ["b"], ["y"], name="Relu_a")], {"x": [4]}, {"y": [4]}))
    assert [node.name for node in graph.nodes] == ["Relu_a", "Relu_a_2", "Relu_a_3"]


def test_constants_become_weights_and_dead_nodes_go(load):
    constant = helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0])
    dead = helper.make_node("Abs", ["x"], ["unused"])
    graph = to_graph(load([constant, dead, helper.make_node("Add", ["x", "c"], ["y"])], {"x": [2]}, {"y": [2]}))
    assert [node.op for node in graph.nodes] == ["Add"]
    assert graph.weights["c"].array.tolist() == [1.0, 2.0]
    assert set(graph.types) == {"x", "c", "y"}


def test_split_becomes_slices(load):
    split = helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=-1, name="cut")
    graph = to_graph(load([split], {"x": [2, 5]}, {"a": [2, 3], "b": [2, 2]}, {"sizes": np.array([3, 2])}))
    assert [(node.name, node.op, node.outputs) for node in graph.nodes] == [("cut.0", "Slice", ("a",)), ("cut.1", "Slice", ("b",))]
    parameters = [[graph.weights[name].array.item() for name in node.inputs[1:]] for node in graph.nodes]
    assert parameters == [[0, 3, 1, 1], [3, 5, 1, 1]]


def test_wires_go(load):
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Dropout", ["b"], ["c"]),
        helper.make_node("Identity", ["c"], ["y"]),
    ]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [4]}))
    assert [(node.op, node.inputs, node.outputs) for node in graph.nodes] == [("Relu", ("x",), ("y",))]


def test_wires_between_input_and_output_stay(load):
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Identity", ["z"], ["u"])]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [4], "z": [4], "u": [4]}))
    assert [node.op for node in graph.nodes] == ["Identity", "Relu", "Identity"]


def test_bodies_of_control_flow_tell_what_they_capture(load):
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [4])
    bodies = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, inputs, ["v"])], name, [], [value])
        for name, op, inputs in (("then", "Relu", ["a"]), ("else", "Add", ["a", "w"]))
    }
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], **bodies),
    ]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [4]}, {"w": np.ones(4, np.float32)}))
    branch = graph.node_by_name["If_y"]
    assert branch.captured == ("a", "w")
    assert isinstance(branch.attributes["then_branch"], Subgraph)
    assert [node.op for node in graph.nodes] == ["Identity", "ReduceMax", "Cast", "If"]  # the body reads 'a' by name


def test_shapes_that_only_the_run_tells_are_none(load):
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [1, "k"]}))
    assert graph.types["n"] == TensorType(DType.INT64, None)


def test_sequences_keep_their_type(load):
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"]), helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [8]}))
    assert (graph.types["s"].dtype, graph.types["s"].shape) == (DType.OTHER, None)
    assert text_of(graph.types["s"].onnx) == "seq(tensor(float))"


def test_every_kind_of_attribute_survives(tmp_path, load):
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [4])
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["v"])], "b", [], [value])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("ReduceMean", ["i"], ["m"], axes=[0], keepdims=1),
        helper.make_node("ConstantOfShape", ["k"], ["f"], value=helper.make_tensor("t", TensorProto.FLOAT, [1], [2.0])),
        helper.make_node("LeakyRelu", ["f"], ["l"], alpha=0.5),
        helper.make_node("Optional", ["m"], ["o"]),
        helper.make_node("OptionalGetElement", ["o"], ["g"]),
        helper.make_node("Add", ["l", "g"], ["y"]),
    ]
    graph = to_graph(load(nodes, {"x": [4]}, {"y": [4]}, {"k": np.array([4])}))
    save_graph(graph, tmp_path / "again.onnx")
    again = to_graph(read_model(tmp_path / "again.onnx"))
    assert [(n.name, n.op) for n in again.nodes] == [(n.name, n.op) for n in graph.nodes]
    for before, after in zip(graph.nodes, again.nodes, strict=True):
        assert {k: np.asarray(v).tolist() for k, v in before.attributes.items()} == {
            k: np.asarray(v).tolist() for k, v in after.attributes.items()
        }


@pytest.mark.parametrize("code", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4])
def test_weights_of_types_that_numpy_lacks_are_kept_inline(tmp_path, code):
    cast = helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)
    model = model_of([cast, helper.make_node("Add", ["x", "f"], ["y"])], {"x": [2048]}, {"y": [2048]}, opset=21)
    model.graph.initializer.append(helper.make_tensor("w", code, [2048], [1.0] * 2048))
    onnx.save(model, tmp_path / "m.onnx")
    graph = to_graph(read_model(tmp_path / "m.onnx"))
    assert check_graph(graph) == ()
    written = write_graph(graph, weights="detached")
    assert written.detached == ()
    tensor = onnx.load_from_string(written.data).graph.initializer[0]
    assert tensor.data_type == code
    assert tensor.raw_data == numpy_helper.from_array(numpy_helper.to_array(model.graph.initializer[0])).raw_data


def test_outputs_of_an_lstm_that_nobody_reads_are_left_out(tmp_path):
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=2)
    weights = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    path = write_model(tmp_path / "lstm.onnx", [node], {"x": [4, 5, 3]}, {"h": [1, 5, 2]}, weights)
    assert to_graph(read_model(path)).nodes[0].outputs == ("", "h")


def test_the_places_of_maxima_that_nobody_reads_are_left_out(tmp_path):
    node = onnx.helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])
    path = write_model(tmp_path / "pool.onnx", [node], {"x": [1, 3, 8, 8]}, {"y": None})
    assert to_graph(read_model(path)).nodes[0].outputs == ("y",)
