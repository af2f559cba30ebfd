from pathlib import Path

import pytest

from bbgrap.cli.input_options import FreeDimensionsError, GivenInputs
from bbgrap.cli.inputs import inputs_from
from bbgrap.cli.models import concrete_shapes, find_model
from bbgrap.errors import InputError, ModelError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import ModelInput


def declared(*shapes):
    return [ModelInput(name, DType.FLOAT, shape) for name, shape in zip("abcdefghi", shapes, strict=False)]


@pytest.mark.parametrize(
    ("shapes", "given", "batch", "expected"),
    [
        ([("N", 3)], {}, None, [(1, 3)]),
        ([("N", 3)], {}, 4, [(4, 3)]),
        ([(None, 3)], {}, 4, [(4, 3)]),
        ([(2, 3)], {}, None, [(2, 3)]),
        ([(2, 3)], {}, 4, [(4, 3)]),
        ([(2, 3)], {"a": (4, 3)}, 4, [(4, 3)]),
        ([("N", 3), (7,)], {}, 4, [(4, 3), (7,)]),
        ([("N", 3), (7, 2)], {}, 4, [(4, 3), (7, 2)]),
        ([("N", "L"), ("N", "L")], {"a": (2, 5)}, None, [(2, 5), (2, 5)]),
        ([("N", "L"), ("L",)], {"b": (5,)}, 3, [(3, 5), (5,)]),
        ([("N", 4), (2, "N", 8)], {}, 3, [(3, 4), (2, 3, 8)]),
        ([("N", 4), (2, "N", 8)], {}, None, [(1, 4), (2, 1, 8)]),
        ([("N", 4), (2, "N", 8)], {"b": (2, 5, 8)}, None, [(5, 4), (2, 5, 8)]),
        ([("H", 3)], {"a": (8, 3)}, None, [(8, 3)]),
        ([()], {}, None, [()]),
        ([None], {"a": ()}, None, [()]),
        ([None], {"a": (2, 2)}, 2, [(2, 2)]),
    ],
)
def test_shapes(shapes, given, batch, expected):
    assert list(concrete_shapes(declared(*shapes), given, batch).values()) == expected


@pytest.mark.parametrize(
    ("shapes", "said", "options"),
    [
        ([("N", "L")], "input 'a' [N, L]: dimension 1", ["a=1x16"]),
        ([None, ("L",)], "input 'a' of any rank", ["a=SHAPE"]),
        ([("N", 3, "H", None)], "input 'a' [N, 3, H, ?]: dimensions 2 and 3", ["a=1x3x224x224"]),
        ([(None, None, None, None)], "input 'a' [?, ?, ?, ?]: dimensions 1 and 2 and 3", ["a=1x3x224x224"]),
        ([("N", "H", "W", 3)], "input 'a' [N, H, W, 3]: dimensions 1 and 2", ["a=1x224x224x3"]),
        ([("N", "L"), ("N", "L")], "input 'a' [N, L]: dimension 1; input 'b' [N, L]: dimension 1", ["a=1x16"]),
        ([("N", "L"), (8, "M", "L"), ("N", "M")], "input 'c' [N, M]: dimension 1", ["a=1x16", "b=8x16x16"]),
        (
            [("N", "words"), ("N", "total"), ("N", 2, "past", 4)],
            "input 'c' [N, 2, past, 4]: dimension 2",
            ["a=1x16", "b=1x32", "c=1x2x16x4"],
        ),
        ([("N", 2, "past", 4)] * 9, "input 'a' and 8 like it [N, 2, past, 4]: dimension 2", ["a=1x2x16x4"]),
        ([("N", "past + 1"), ("N", 2, "past", 4)], "input 'a' [N, past + 1]: dimension 1", ["a=1x17", "b=1x2x16x4"]),
        ([("N", None), ("N", None)], "input 'b' [N, ?]: dimension 1", ["a=1x16", "b=1x16"]),
    ],
)
def test_all_free_dimensions_are_named_with_what_cures_them(shapes, said, options):
    with pytest.raises(FreeDimensionsError) as caught:
        concrete_shapes(declared(*shapes), {}, None)
    assert said in str(caught.value)
    assert list(caught.value.options) == [word for option in options for word in ("--input", option)]
    if "SHAPE" not in options[0]:
        texts = [option for option in caught.value.options if option != "--input"]
        assert inputs_from(declared(*shapes), GivenInputs(tuple(texts))).shapes


@pytest.mark.parametrize(
    ("shapes", "given", "said"),
    [
        ([("N", 3)], {"a": (5, 3)}, r"input 'a': expected a batch of 3 \(--batch\), got \[5, 3\]"),
        ([(5, 3)], {"a": (5, 3)}, r"input 'a': expected a batch of 3 \(--batch\), got \[5, 3\]"),
        ([("N",)], {"a": (5,)}, r"input 'a': expected a batch of 3"),
        ([("N", 3), ("N",)], {"b": (5,)}, r"input 'a': expected a batch of 3 \(--batch\), but 'N' is 5 for another input"),
        ([("N", 3), (2, "N")], {"b": (2, 5)}, r"input 'a': expected a batch of 3 \(--batch\), but 'N' is 5 for another input"),
        ([None], {"a": (5, 5)}, r"input 'a': expected a batch of 3"),
        ([()], {}, "--batch 3: no input of the model has a batch dimension"),
    ],
)
def test_batches_that_contradict_what_is_given(shapes, given, said):
    with pytest.raises(InputError, match=said):
        concrete_shapes(declared(*shapes), given, 3)


@pytest.mark.parametrize("text", ["resnet50", "resnet50.onnx", "models/resnet50.onnx"])
def test_a_file_that_is_not_there_may_be_of_the_zoo(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"model '{text}': there is no such file; is zoo:resnet50 meant"):
        find_model(text)
    Path("resnet50").touch()
    assert find_model("resnet50") == Path("resnet50")


def test_models_of_the_zoo_are_built_where_the_cache_is(cache):
    path = find_model("zoo:tiny")
    assert path.is_file()
    assert cache in path.parents
