import numpy as np
import pytest
from onnx import TensorProto, helper

from bbgrap.cli.input_options import ArrayFile, GivenInputs
from bbgrap.cli.inputs import ModelInputs, inputs_from, read_tensor
from bbgrap.errors import InputError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import ModelInput

X = ModelInput("x", DType.FLOAT, ("N", 3, 8, 10))
TOKENS = ModelInput("tokens", DType.INT64, ("N", 5))


def read(declared, *texts, batch=None, seed=0):
    return inputs_from(declared, GivenInputs(texts, batch)).feeds(seed)


def test_files_by_name_in_the_order_of_the_model(tmp_path, capsys):
    x, tokens = np.ones((2, 3, 8, 10), np.float32), np.arange(10).reshape(2, 5)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", t=tokens, u=x)
    feeds = read((X, TOKENS), f"tokens={tmp_path / 'all.npz'}:t", f"x={tmp_path / 'x.npy'}")
    assert list(feeds) == ["x", "tokens"]
    np.testing.assert_array_equal(feeds["tokens"], tokens)
    np.testing.assert_array_equal(feeds["x"], x)
    assert capsys.readouterr().err == ""


def test_inputs_without_a_file_are_drawn_in_the_shape_of_the_others(tmp_path, capsys):
    np.save(tmp_path / "t.npy", np.zeros((2, 5), np.int64))
    feeds = read((X, TOKENS), f"tokens={tmp_path / 't.npy'}", seed=3)
    assert feeds["x"].shape == (2, 3, 8, 10)
    assert capsys.readouterr().err == "inputs x: random, seed 3\n"
    read((X, TOKENS))
    assert capsys.readouterr().err == "inputs: random, seed 0\n"


@pytest.mark.parametrize(("texts", "batch"), [(["2x3x8x10"], None), ([], 2), (["1x3x8"], None)])
def test_shapes_that_the_model_does_not_run_with(texts, batch):
    with pytest.raises(InputError, match=r"input 'x': expected shape \[1, 3, 8, 10\], got"):
        read([ModelInput("x", DType.FLOAT, (1, 3, 8, 10))], *texts, batch=batch)


def test_arrays_of_an_archive(tmp_path):
    path = tmp_path / "several.npz"
    np.savez(path, tokens=np.zeros((1, 5), np.int64), other=np.ones((1, 5), np.int64))
    np.savez(tmp_path / "one.npz", other=np.ones((1, 5), np.int64))
    assert read([TOKENS], str(path))["tokens"].sum() == 0
    assert read([TOKENS], f"{path}:other")["tokens"].sum() == 5
    assert read([TOKENS], str(tmp_path / "one.npz"))["tokens"].sum() == 5
    with pytest.raises(InputError, match=r"holds tokens, other; give --input tokens=FILE.npz:KEY"):
        read([TOKENS], f"{path}:third")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((1, 5), np.int32), "expected int64, got int32; convert it with .astype('int64')"),
        (np.zeros((1, 6), np.int64), "expected shape [N, 5], got [1, 6]"),
        (np.zeros((5,), np.int64), "expected shape [N, 5], got [5]; [np.newaxis] adds the first axis"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, array, said):
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(InputError) as caught:
        read_tensor(TOKENS, ArrayFile(tmp_path / "t.npy"))
    assert str(caught.value) == f"input 'tokens': {said}"


def test_a_batch_that_contradicts_a_file(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros((5, 5), np.int64))
    assert read([TOKENS], str(tmp_path / "t.npy"), batch=5)["tokens"].shape == (5, 5)
    with pytest.raises(InputError) as caught:
        read([TOKENS], str(tmp_path / "t.npy"), batch=3)
    said = "input 'tokens': expected a batch of 3 (--batch), got [5, 5]; give as many items, or no --batch"
    assert str(caught.value) == said


def test_files_that_hold_no_tensor(tmp_path):
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "cut.npz", tokens=np.zeros((1, 5), np.int64))
    whole = (tmp_path / "cut.npz").read_bytes()
    for end in (20, 100, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"is not a \.npy or \.npz file"):
            read_tensor(TOKENS, ArrayFile(tmp_path / "cut.npz"))
    for name in ("text", "empty", "objects"):
        with pytest.raises(InputError, match=r"is not a \.npy or \.npz file"):
            read_tensor(TOKENS, ArrayFile(tmp_path / f"{name}.npy"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_tensor(TOKENS, ArrayFile(tmp_path / "nothing.npy"))


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.STRING, DType.OTHER, DType.BFLOAT16)])
def test_random_inputs_of_every_type(dtype):
    item = ModelInput("x", dtype, (None, 4))
    first, again, other = (ModelInputs((item,), {"x": (50, 4)}, {}).feeds(seed)["x"] for seed in (1, 1, 2))
    assert first.dtype == dtype.numpy
    assert first.shape == (50, 4)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_strings_cannot_be_drawn():
    with pytest.raises(InputError, match="tensors of string cannot be drawn at random; give --input x=FILE"):
        ModelInputs((ModelInput("x", DType.STRING, (1,)),), {"x": (1,)}, {}).feeds(0)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])),
            r"map\(int64,tensor\(float\)\)",
        ),
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)), r"seq\(tensor\(float\)\)"),
        (helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FN, [1]), r"tensor\(float8e4m3fn\)"),
    ],
    ids=["map", "sequence", "8-bit floats"],
)
def test_of_what_no_file_holds_none_is_asked_for(kind, text, tmp_path):
    item = ModelInput("x", DType.OTHER, None, kind.SerializeToString())
    said = f"input 'x': no command can give a {text}; run the model from Python"
    with pytest.raises(InputError, match=f"^{said}$"):
        ModelInputs((item,), {"x": ()}, {}).feeds(0)
    np.save(tmp_path / "x.npy", np.zeros(1))
    with pytest.raises(InputError, match=f"^{said}$"):
        read_tensor(item, ArrayFile(tmp_path / "x.npy"))


def test_text_among_pickled_objects_is_refused_with_how_to_write_it(tmp_path):
    words, item = np.array(["a", "bc"], object), ModelInput("x", DType.STRING, (2,))
    stored = ArrayFile(tmp_path / "x.npy")
    np.save(stored.path, words, allow_pickle=True)
    with pytest.raises(InputError, match=r"is not a \.npy or \.npz file of text; write it with numpy\.save\(FILE, array\.astype\(str\)\)"):
        read_tensor(item, stored)
    np.save(stored.path, words.astype(str))
    assert read_tensor(item, stored).tolist() == ["a", "bc"]


def test_tensors_that_no_memory_holds():
    with pytest.raises(InputError, match=r"input 'x': a tensor of shape .* cannot be made"):
        ModelInputs((X,), {"x": (10**12, 10**12)}, {}).feeds(0)
