import pytest

from bbgrap.cli.models import concrete_shapes, find_model
from bbgrap.errors import InputError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import ModelInput


def declared(*shapes):
    return [ModelInput(name, DType.FLOAT, shape) for name, shape in zip("abc", shapes, strict=False)]


@pytest.mark.parametrize(
    ("shapes", "given", "batch", "expected"),
    [
        ([("N", 3)], [], None, [(1, 3)]),
        ([("N", 3)], [], 4, [(4, 3)]),
        ([(None, 3)], [], 4, [(4, 3)]),
        ([(2, 3)], [], None, [(2, 3)]),
        ([(2, 3)], [], 4, [(4, 3)]),
        ([("N", 3), (7,)], [], 4, [(4, 3), (7,)]),
        ([("N", "L"), ("N", "L")], ["a=2x5"], None, [(2, 5), (2, 5)]),
        ([("N", "L"), ("L",)], ["b=5"], 3, [(3, 5), (5,)]),
        ([("H", 3)], ["8,3"], None, [(8, 3)]),
        ([()], [], 4, [()]),
        ([None], ["scalar"], None, [()]),
        ([None], ["2x2"], None, [(2, 2)]),
    ],
)
def test_shapes(shapes, given, batch, expected):
    assert list(concrete_shapes(declared(*shapes), given, batch).values()) == expected


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([("N", "L")], r"input 'a': dimension 1 \('L'\) is free; give --input a=1x\?"),
        ([None], "input 'a': the model does not say its rank"),
    ],
)
def test_shapes_that_nobody_knows(shapes, said):
    with pytest.raises(InputError, match=said):
        concrete_shapes(declared(*shapes), [], 1)


def test_models_of_the_zoo_are_built_where_the_cache_is(cache):
    path = find_model("zoo:tiny")
    assert path.is_file()
    assert cache in path.parents
