import sys

import numpy as np
import pytest
from PIL import Image

from bbgrap.cli.input_options import GivenInputs, PictureOptions
from bbgrap.cli.inputs import inputs_from
from bbgrap.errors import InputError, UsageError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import ModelInput

COLOUR = (255, 0, 128)
UNIT = np.array(COLOUR, np.float32) / np.float32(255)
X = ModelInput("x", DType.FLOAT, ("N", 3, 8, 10))
FREE = ModelInput("x", DType.FLOAT, ("N", 3, "H", "W"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 16), COLOUR).save("p.png")
    Image.new("RGB", (20, 16), (0, 0, 0)).save("black.png")
    Image.new("RGB", (30, 16)).save("wide.png")
    Image.new("L", (20, 16), 51).save("grey.png")
    noise = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    Image.fromarray(noise).save("noise.png")
    return noise


def read(item, *texts, batch=None, **options):
    return inputs_from([item], GivenInputs(texts, batch, PictureOptions(**options))).tensors["x"]


def declared(*shape, dtype=DType.FLOAT):
    return ModelInput("x", dtype, shape)


@pytest.mark.parametrize(
    ("options", "expected", "said"),
    [
        ({}, (UNIT - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225], "over 0.229,0.224,0.225 (default: --normalize imagenet), NCHW"),
        ({"normalize": "imagenet"}, (UNIT - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225], "less 0.485,0.456,0.406, over 0.229,"),
        ({"normalize": "0..1"}, UNIT, "p.png: 10 x 8 pixels, RGB, values 0 to 1, NCHW"),
        ({"normalize": "0..255"}, COLOUR, "values 0 to 255, NCHW"),
        ({"mean": (0.5,)}, UNIT - 0.5, "values 0 to 1, less 0.5 (default: --normalize 0..1), NCHW"),
        ({"mean": (1, 2, 3), "std": (0.5,)}, (UNIT - [1, 2, 3]) / 0.5, "less 1,2,3, over 0.5"),
        ({"normalize": "0..255", "mean": (127.5,), "std": (127.5,)}, (np.array(COLOUR) - 127.5) / 127.5, "less 127.5, over 127.5, NCHW"),
    ],
)
def test_values(folder, capsys, options, expected, said):
    array = read(X, "p.png", **options)
    assert (array.shape, array.dtype) == ((1, 3, 8, 10), np.float32)
    np.testing.assert_allclose(array[0, :, 3, 4], expected, rtol=1e-6)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("item", "options", "shape"),
    [
        (X, {}, (1, 3, 8, 10)),
        (X, {"size": (10, 8)}, (1, 3, 8, 10)),
        (FREE, {}, (1, 3, 16, 20)),
        (FREE, {"size": (32, 48)}, (1, 3, 48, 32)),
        (declared(1, 3, 8, None), {}, (1, 3, 8, 20)),
        (declared("N", "H", "W", 3), {"size": (32, 48)}, (1, 48, 32, 3)),
        (declared(None, 16, 20, 1), {}, (1, 16, 20, 1)),
        (declared(None, None, None, None), {"layout": "nhwc"}, (1, 16, 20, 3)),
        (ModelInput("x", DType.FLOAT, None), {"layout": "nchw"}, (1, 3, 16, 20)),
        (declared("N", 3, "H", 3), {"layout": "nhwc"}, (1, 3, 20, 3)),
        (declared("N", "H", "W", 3, dtype=DType.FLOAT16), {}, (1, 16, 20, 3)),
    ],
)
def test_sizes_and_layouts(folder, item, options, shape):
    array = read(item, "p.png", **options)
    assert array.shape == shape
    assert array.dtype == item.dtype.numpy


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT32])
def test_integers_get_the_bytes_of_the_picture(folder, dtype):
    np.testing.assert_array_equal(read(declared(1, None, None, 3, dtype=dtype), "noise.png")[0], folder)
    np.testing.assert_array_equal(read(declared(1, 3, None, None, dtype=dtype), "noise.png")[0], folder.transpose(2, 0, 1))
    with pytest.raises(InputError, match=r"so pixels stay 0 to 255; leave out --normalize, --mean and --std"):
        read(declared(1, None, None, 3, dtype=dtype), "noise.png", normalize="0..1")


def test_grey_pictures_and_grey_inputs(folder):
    np.testing.assert_allclose(read(declared(1, 1, "H", None), "grey.png"), 0.2, atol=1e-6)
    assert read(X, "grey.png", normalize="0..255")[0, :, 0, 0].tolist() == [51, 51, 51]
    with pytest.raises(InputError, match="--normalize imagenet has 3 numbers, the input 1 colour"):
        read(declared(1, 1, "H", None), "grey.png", normalize="imagenet")


def test_several_pictures_are_a_batch(folder):
    array = read(FREE, "p.png", "x=black.png", batch=2, normalize="0..255")
    assert array[:, 0, 0, 0].tolist() == [255, 0]
    assert read(FREE, "p.png", "wide.png", size=(8, 8)).shape == (2, 3, 8, 8)
    assert read(declared(2, 3, 8, 10), "p.png", "black.png").shape == (2, 3, 8, 10)


@pytest.mark.parametrize(
    ("item", "texts", "options", "said"),
    [
        (FREE, ["p.png", "wide.png"], {}, r"its pictures have several sizes \(20x16, 30x16\); give --size WxH"),
        (FREE, ["p.png"], {"batch": 3}, r"expected a batch of 3 \(--batch\), got \[1, 3, 16, 20\]"),
        (declared(2, 3, 8, 10), ["p.png"], {}, "the model's batch is 2, got 1 picture"),
        (X, ["p.png"], {"size": (8, 10)}, r"the model takes pictures of 10x8 \(width x height\), not --size 8x10"),
        (X, ["p.png"], {"layout": "nhwc"}, r"\[N, 3, 8, 10\] does not fit --layout nhwc"),
        (X, ["p.png"], {"mean": (1, 2)}, "--mean has 2 numbers, the input 3 colours"),
        (declared("N", "C", "H", "W"), ["p.png"], {}, "does not say where colours are; give --layout nchw or --layout nhwc"),
        (declared("N", 4, "H", 4), ["p.png"], {}, r"\[N, 4, H, 4\] does not fit pictures of 1 or 3 colours"),
        (declared("N", 5, dtype=DType.INT64), ["p.png"], {}, r"this is int64 \[N, 5\]; give a .npy file"),
        (declared("N", 3, 8, 10, dtype=DType.INT8), ["p.png"], {}, r"this is int8 \[N, 3, 8, 10\]"),
        (declared("N", 3, 8, 10, dtype=DType.STRING), ["p.png"], {}, r"this is string \[N, 3, 8, 10\]"),
        (X, ["q.png"], {}, "picture 'q.png': cannot be read: No such file"),
    ],
)
def test_pictures_that_do_not_fit(folder, item, texts, options, said):
    with pytest.raises(InputError, match=said):
        read(item, *texts, **options)


@pytest.mark.parametrize("kept", [0, 5, 40])
def test_pictures_that_are_none(folder, tmp_path, kept):
    whole = (tmp_path / "noise.png").read_bytes()
    (tmp_path / "broken.png").write_bytes(whole[:kept] + bytes(8) * 40)
    with pytest.raises(InputError, match=r"it is no picture that Pillow can read|cannot be read"):
        read(X, "broken.png")


def test_pictures_without_pillow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # Python's way of saying that a package is not there
    with pytest.raises(InputError, match=r"reading pictures needs Pillow: pip install 'bbgrap\[images\]'"):
        read(X, "p.png")


def test_options_of_pictures_without_one(folder):
    with pytest.raises(UsageError, match="--size, --mean: for pictures only, and none is given"):
        inputs_from([X], GivenInputs(("1x3x8x10",), None, PictureOptions(size=(8, 8), mean=(1,))))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_pictures_of_more_than_8_bits_are_refused(folder, tmp_path, dtype):
    Image.fromarray(np.full((20, 16), 300, dtype)).save(tmp_path / "deep.tif")
    with pytest.raises(InputError, match="more than 8 bits a colour; give it as bytes"):
        read(X, "deep.tif")
