from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cli.input_options import PICTURES, ArrayFile, Picture, PictureOptions, parse_numbers, parse_size, parse_value, values_by_name
from bbgrap.errors import InputError, UsageError

SHAPES = st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=6).map(tuple)
WORDS = st.text("abcdefg-_/ =:", min_size=1, max_size=8)


@given(SHAPES, st.sampled_from(["x", "X", ",", " x ", ", "]))
def test_shapes_are_read_as_they_are_written(shape, between):
    assert parse_value("x", between.join(map(str, shape))) == shape


@given(WORDS, st.sampled_from(PICTURES))
def test_pictures_are_known_by_their_ends(stem, end):
    assert parse_value("x", stem + end) == parse_value("x", stem + end.upper().lower()) == Picture(Path(stem + end))


@given(WORDS, WORDS)
def test_a_key_of_an_archive_is_what_follows_its_name(stem, key):
    assert parse_value("x", f"{stem}.npz:{key}") == ArrayFile(Path(f"{stem}.npz"), key)
    assert parse_value("x", f"{stem}.npz") == ArrayFile(Path(f"{stem}.npz"))


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_wrong_usage(text):
    try:
        value = parse_value("x", text)
    except UsageError:
        assert "." not in text
        assert "/" not in text
    else:
        assert isinstance(value, tuple | ArrayFile | Picture)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a=b", "n:0"]), SHAPES), unique_by=lambda pair: pair[0]))
def test_names_and_values_are_told_apart(pairs):
    """The longer of two names that begin alike comes first in the model."""
    texts = [f"{name}={'x'.join(map(str, shape))}" for name, shape in pairs]
    assert values_by_name(texts, ["a=b", "a", "b", "n:0"]) == {name: [shape] for name, shape in pairs}


@pytest.mark.parametrize(
    ("texts", "names", "expected"),
    [
        (["1x2"], ["x"], {"x": [(1, 2)]}),
        (["scalar"], ["x"], {"x": [()]}),
        (["x.npy"], ["x"], {"x": [ArrayFile(Path("x.npy"))]}),
        (["folder/x"], ["x"], {"x": [ArrayFile(Path("folder/x"))]}),
        (["b=1.png", "a=3", "b=2.JPG"], ["a", "b"], {"b": [Picture(Path("1.png")), Picture(Path("2.JPG"))], "a": [(3,)]}),
        (["1.png", "x=2.png"], ["x"], {"x": [Picture(Path("1.png")), Picture(Path("2.png"))]}),
    ],
)
def test_values(texts, names, expected):
    assert values_by_name(texts, names) == expected


@pytest.mark.parametrize(
    ("texts", "names", "error", "said"),
    [
        (["y=a.npy"], ["x", "z"], InputError, "input 'y': the model has no such input, it has x, z"),
        (["y=a.npy"], ["x"], InputError, "input 'y': the model has no such input, it has x"),
        (["a.npy"], ["x", "z"], UsageError, "input 'a.npy': expected NAME=..., the inputs are x, z"),
        (["x=a.npy", "x=b.npy"], ["x"], UsageError, "input 'x': it is given twice; only pictures make a batch together"),
        (["a.png", "1x3"], ["x"], UsageError, "input 'x': it is given twice; only pictures make a batch together"),
        (["x=1x3x?x?"], ["x"], UsageError, "input 'x': expected a shape like 1x3x224x224, a .npy or .npz file"),
        (["x="], ["x"], UsageError, "input 'x': expected a shape"),
    ],
)
def test_values_that_are_none(texts, names, error, said):
    with pytest.raises(error) as caught:
        values_by_name(texts, names)
    assert str(caught.value).startswith(said)


def test_sizes_and_numbers():
    assert parse_size("") is None
    assert parse_size("640x480") == (640, 480)
    assert parse_numbers("--mean", "", above_0=False) == ()
    assert parse_numbers("--mean", "0.5,-1,0", above_0=False) == (0.5, -1, 0)
    for text in ("640", "0x5", "axb", "1x2x3", "70000x1"):
        with pytest.raises(UsageError, match=f"--size: expected width and height in pixels, like 640x480, got '{text}'"):
            parse_size(text)
    for text in ("0", "nan", "inf", "a", "1,,2", "1e308,1e308", "1e-320,1"):
        with pytest.raises(UsageError, match=rf"--std: expected numbers from 1e-12 to 1e\+18, like 2,1,1, got '{text}'"):
            parse_numbers("--std", text, above_0=True)


def test_imagenet_has_its_own_mean():
    with pytest.raises(UsageError, match="--normalize imagenet: it has its own mean"):
        PictureOptions(normalize="imagenet", mean=(1,))
