import sys

import numpy as np
import pytest
from PIL import Image

from bbgrap.cli.inputs import random_inputs, read_inputs, read_tensor
from bbgrap.errors import InputError, UsageError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import ModelInput

X = ModelInput("x", DType.FLOAT, ("N", 3, 8, 10))
TOKENS = ModelInput("tokens", DType.INT64, ("N", 5))


def test_files_by_name_in_the_order_of_the_model(tmp_path):
    x, tokens = np.ones((2, 3, 8, 10), np.float32), np.arange(10).reshape(2, 5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "t.npy", tokens)
    feeds = read_inputs((X, TOKENS), [f"tokens={tmp_path / 't.npy'}", f"x={tmp_path / 'x.npy'}"])
    assert list(feeds) == ["x", "tokens"]
    np.testing.assert_array_equal(feeds["tokens"], tokens)


def test_a_single_input_needs_no_name(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros((1, 5), np.int64))
    assert read_inputs((TOKENS,), [str(tmp_path / "t.npy")])["tokens"].shape == (1, 5)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (["y=a.npy"], InputError, "input 'y': the model has no such input, it has x, tokens"),
        (["x=there.npy"], InputError, "input 'tokens': it is missing; add --input tokens=FILE.npy"),
        (["a.npy"], UsageError, "input 'a.npy': expected NAME=..., the inputs are x, tokens"),
        (["x=a.npy", "x=b.npy"], UsageError, "input 'x': it is given twice"),
    ],
)
def test_names(given, error, said):
    with pytest.raises(error) as caught:
        read_inputs((X, TOKENS), given)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((1, 5), np.int32), "expected int64, got int32; convert it with .astype('int64')"),
        (np.zeros((1, 6), np.int64), "expected shape [N, 5], got [1, 6]"),
        (np.zeros((5,), np.int64), "expected shape [N, 5], got [5]"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, array, said):
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(InputError) as caught:
        read_tensor(TOKENS, tmp_path / "t.npy")
    assert str(caught.value) == f"input 'tokens': {said}"


def test_files_that_hold_no_tensor(tmp_path):
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    for name, said in (("text", "is not a .npy file"), ("empty", "is not a .npy file"), ("objects", "is not a .npy file")):
        with pytest.raises(InputError, match=said):
            read_tensor(TOKENS, tmp_path / f"{name}.npy")
    with pytest.raises(InputError, match=r"is an \.npz archive"):
        read_tensor(TOKENS, tmp_path / "several.npz")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_tensor(TOKENS, tmp_path / "nothing.npy")


def test_pictures_are_resized_and_normalised(tmp_path, capsys):
    Image.new("RGB", (20, 16), (255, 0, 128)).save(tmp_path / "p.png")
    array = read_tensor(X, tmp_path / "p.png")
    assert array.shape == (1, 3, 8, 10)
    assert array.dtype == np.float32
    np.testing.assert_allclose(array[0, :, 0, 0], [(1 - 0.485) / 0.229, -0.456 / 0.224, (128 / 255 - 0.406) / 0.225], rtol=1e-6)
    assert "p.png: resized to 8 x 10, RGB, ImageNet's mean and deviation" in capsys.readouterr().err


def test_pictures_keep_their_size_where_the_model_is_free(tmp_path):
    Image.new("L", (20, 16), 51).save(tmp_path / "p.jpg")
    array = read_tensor(ModelInput("x", DType.FLOAT, (1, 1, "H", None)), tmp_path / "p.jpg")
    assert array.shape == (1, 1, 16, 20)
    np.testing.assert_allclose(array, 0.2, atol=1e-6)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (TOKENS, "pictures fit inputs float [N, 3 or 1, H, W] only, this one is int64 [N, 5]; give a .npy file"),
        (ModelInput("x", DType.FLOAT, (2, 3, 8, 10)), "it is one picture, but the model's batch is 2"),
    ],
)
def test_pictures_for_other_inputs(tmp_path, item, said):
    with pytest.raises(InputError) as caught:
        read_tensor(item, tmp_path / "p.png")
    assert said in str(caught.value)


def test_pictures_that_are_none(tmp_path):
    (tmp_path / "p.png").write_text("hello")
    with pytest.raises(InputError, match="it is no picture that Pillow can read"):
        read_tensor(X, tmp_path / "p.png")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_tensor(X, tmp_path / "q.png")


def test_pictures_without_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # Python's way of saying that a package is not there
    with pytest.raises(InputError, match=r"reading pictures needs Pillow: pip install 'bbgrap\[images\]'"):
        read_tensor(X, tmp_path / "p.png")


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.STRING, DType.OTHER, DType.BFLOAT16)])
def test_random_inputs_of_every_type(dtype):
    item = ModelInput("x", dtype, (None, 4))
    first, again, other = (random_inputs([item], {"x": (50, 4)}, seed)["x"] for seed in (1, 1, 2))
    assert first.dtype == dtype.numpy
    assert first.shape == (50, 4)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_strings_cannot_be_drawn():
    with pytest.raises(InputError, match="tensors of string cannot be drawn at random; give --input x=FILE"):
        random_inputs([ModelInput("x", DType.STRING, (1,))], {"x": (1,)})
