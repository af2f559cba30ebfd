"""What a model takes and gives; what does not fit is named."""

import re

import numpy as np
import onnx
import pytest

from bbgrap.engine.sessions import make_session
from bbgrap.errors import InputError
from bbgrap.graph.onnx_read import ModelInput, read_model
from bbgrap.graph.types import DType
from bbgrap.session.signature import NodeArg, Signature
from tests.onnx_models import model_of


def signature(*inputs):
    return Signature(tuple(NodeArg.of(ModelInput(*given)) for given in inputs), (NodeArg.of(ModelInput("y", DType.INT64, ())),))


IMAGE = ("image", DType.FLOAT, ("N", 3, None))
LABEL = ("label", DType.STRING, ("N",))


def of_map(key, item):
    kind = onnx.helper.make_map_type_proto(key, onnx.helper.make_tensor_type_proto(item, []))
    return signature(("m", DType.OTHER, None, kind.SerializeToString()))


@pytest.mark.parametrize(
    ("key", "item", "wrong", "said"),
    [
        ("INT64", "FLOAT", {"a": 1.0}, "'a': 1.0"),
        ("INT64", "FLOAT", {1: 1.0, "3": 1.0}, "'3': 1.0"),
        ("INT64", "FLOAT", {3.7: 1.0}, "3.7: 1.0"),
        ("INT64", "FLOAT", {3: "1.5"}, "3: '1.5'"),
        ("INT64", "FLOAT", {3: None}, "3: None"),
        ("STRING", "FLOAT", {3: 1.0}, "3: 1.0"),
        ("STRING", "INT64", {"a": 1.5}, "'a': 1.5"),
        ("INT64", "STRING", {3: 4}, "3: 4"),
    ],
)
def test_a_map_is_not_converted_and_the_entry_that_does_not_fit_is_named(key, item, wrong, said):
    given = of_map(getattr(onnx.TensorProto, key), getattr(onnx.TensorProto, item))
    with pytest.raises(
        InputError, match=rf"^input 'm': expected map\({key.lower()},tensor\({item.lower()}\)\), got a dictionary with {said}$"
    ):
        given.check_feed({"m": wrong})


def test_numbers_of_numpy_fit_into_maps():
    of_map(onnx.TensorProto.INT64, onnx.TensorProto.FLOAT).check_feed({"m": {np.int64(3): np.float32(2), 4: 1, 5: True}})
    of_map(onnx.TensorProto.STRING, onnx.TensorProto.INT64).check_feed({"m": {np.str_("a"): np.int32(2)}})


def test_a_feed_that_fits_comes_back_in_the_models_order():
    image, label = np.zeros((2, 3, 7), np.float32), np.array(["a", "b"])
    first, second = signature(IMAGE, LABEL).check_feed({"label": label, "image": image})
    assert first is image
    assert second is label


def test_lists_become_arrays():
    (array,) = signature(("n", DType.INT64, (2,))).check_feed({"n": [1, 2]})
    assert array.dtype == np.int64


def test_nothing_is_no_number():
    with pytest.raises(InputError, match=r"^input 'x': expected float\[\], got None$"):
        signature(("x", DType.FLOAT, ())).check_feed({"x": None})  # numpy makes a NaN of it


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this numpy has no texts of any length")
def test_numpys_texts_of_any_length_are_texts():
    texts = np.array(["a", "longer"], np.dtypes.StringDType())
    (array,) = signature(("s", DType.STRING, ("N",))).check_feed({"s": texts})
    assert array.tolist() == ["a", "longer"]
    with pytest.raises(InputError, match=r"expected float\[2\], got StringDType\(\)\[2\]"):
        signature(("x", DType.FLOAT, (2,))).check_feed({"x": texts})


def test_names_of_outputs_may_be_read_only_once():
    model = signature(IMAGE)
    model = Signature(model.inputs, (NodeArg("y", DType.FLOAT, [], True), NodeArg("z", DType.FLOAT, [], True)))
    assert model.choose_outputs(name for name in ("z", "y", "z")) == [1, 0, 1]


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"image": np.zeros((2, 4, 7), np.float32), "label": ["a", "b"]}, r"input 'image': expected float\[N, 3, \?\] with N = 2, got"),
        ({"image": np.zeros((2, 3, 7), np.float32), "label": "a"}, r"input 'label': expected string\[N\] with N = 2, got <U1\[\]"),
        ({"image": np.zeros((2, 3, 7)), "label": ["a", "b"]}, r"got float64\[2, 3, 7\]; convert it with \.astype\(np\.float32\)"),
        (
            {"image": np.zeros(1)},
            r"inputs: expected 'image' float\[N, 3, \?\], 'label' string\[N\], got 'image'; for example {'label': np\.zeros",
        ),
        ({"image": np.zeros((3, 7), np.float32), "label": ["a"]}, r"got float32\[3, 7\]; \[np\.newaxis\] adds the first axis"),
    ],
)
def test_a_feed_that_does_not_fit(feed, message):
    with pytest.raises(InputError, match=message):
        signature(IMAGE, LABEL).check_feed(feed)


def test_colours_at_the_other_end_are_noticed():
    with pytest.raises(InputError, match=r"\.transpose\(0, 3, 1, 2\) moves the colours"):
        signature(("x", DType.FLOAT, ("N", 3, None, None))).check_feed({"x": np.zeros((1, 20, 30, 3), np.float32)})
    with pytest.raises(InputError, match=r"got float32\[1, 20, 30, 5\]$"):
        signature(("x", DType.FLOAT, ("N", 3, None, None))).check_feed({"x": np.zeros((1, 20, 30, 5), np.float32)})


def test_a_symbol_may_stand_for_two_sizes_as_in_onnxruntime():
    image, label = signature(IMAGE, LABEL).check_feed({"image": np.zeros((2, 3, 7), np.float32), "label": ["a"]})
    assert (image.shape, label.shape) == ((2, 3, 7), (1,))


def test_lists_get_the_declared_type_and_foreign_bytes_are_turned():
    (array,) = signature(("x", DType.FLOAT, (2,))).check_feed({"x": [1, 2]})
    assert array.dtype == np.float32
    (array,) = signature(("x", DType.FLOAT, (2,))).check_feed({"x": np.array([1, 2], ">f4")})
    assert array.dtype == np.float32
    assert array.tolist() == [1, 2]
    (array,) = signature(("x", DType.STRING, (2,))).check_feed({"x": ["a\0", "b"]})
    assert array.tolist() == ["a\0", "b"]  # numpy's own texts end before their last NULs


def test_types_are_written_as_onnxruntime_does():
    assert [arg.type for arg in signature(IMAGE, LABEL).inputs] == ["tensor(float)", "tensor(string)"]
    assert signature(IMAGE).outputs[0].shape == []


def test_shapes_that_fit():
    rate = ("rate", DType.INT64, ())
    given = {"image": [2, 3, np.int64(7)], "rate": (), "other": ()}
    assert signature(IMAGE, rate).check_shapes(given) == ((2, 3, 7), ())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0)], ids=str)
def test_for_a_scalar_any_shape_fits_and_stays(shape):
    """onnxruntime computes with the shape that comes, and its answers have it."""
    rate = signature(("rate", DType.INT64, ()))
    assert rate.check_shapes({"rate": shape}) == (shape,)
    assert rate.check_feed({"rate": np.zeros(shape, np.int64)})[0].shape == shape


@pytest.mark.parametrize("shape", [None, (2, 3), (2, 4, 7), (-1, 3, 7), (2.0, 3, 7), ("a", 3, 7), 5], ids=str)
def test_shapes_that_do_not_fit(shape):
    with pytest.raises(InputError, match=rf"input 'image': expected a shape of float\[N, 3, \?\], got {re.escape(str(shape))}"):
        signature(IMAGE).check_shapes({} if shape is None else {"image": shape})


def test_an_array_in_place_of_its_shape_is_not_printed():
    with pytest.raises(InputError, match=r"got an array of \(1, 3, 50, 50\)$"):
        signature(IMAGE).check_shapes({"image": np.zeros((1, 3, 50, 50), np.float32)})


@pytest.mark.parametrize("shape", [["N", 4], [3, None], [], None])
def test_shapes_are_onnxruntimes_also_of_numbers_that_numpy_lacks(shape, tmp_path):
    node, kinds = onnx.helper.make_node("Identity", ["x"], ["y"]), dict.fromkeys("xy", onnx.TensorProto.BFLOAT16)
    onnx.save(model_of([node], {"x": shape}, {"y": shape}, kinds=kinds, opset=19), tmp_path / "m.onnx")
    ours, plain = Signature.of(read_model(tmp_path / "m.onnx")), make_session(tmp_path / "m.onnx", threads=1)
    assert [arg.shape for arg in ours.inputs] == [arg.shape for arg in plain.get_inputs()]
    assert [arg.shape for arg in ours.outputs] == [arg.shape for arg in plain.get_outputs()]
    assert ours.inputs[0].has_rank == (shape is not None)


def test_declared_shapes_must_be_concrete():
    assert signature(("x", DType.FLOAT, (1, 3))).declared_shapes() == {"x": (1, 3)}
    with pytest.raises(InputError, match="is not concrete"):
        signature(IMAGE).declared_shapes()
    with pytest.raises(InputError, match=r"float\[\.\.\.\] is not concrete"):
        signature(("x", DType.FLOAT, None)).declared_shapes()
