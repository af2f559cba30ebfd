"""The work of operators whose descriptions keep sums inside: that of the products which they are made of."""

import numpy as np
import pytest

from bbgrap.graph.types import DType, TensorType
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile
from bbgrap.shapemap import ShapeMap
from tests.bbgrap.tdl.test_rule import graph_of

STEPS, BATCH, SIZE, HIDDEN = 50, 2, 32, 24
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MICROSOFT = "com.microsoft"


def recurrent(op, *, last=False):
    """A layer of both directions; of `last` only the state behind the last step is in use."""
    rows = GATES[op] * HIDDEN
    weights = {1: np.zeros((2, rows, SIZE), np.float32), 2: np.zeros((2, rows, HIDDEN), np.float32)}
    inputs = (tensor(STEPS, BATCH, SIZE), *(tensor(*weight.shape) for weight in weights.values()))
    made = tensor(2, BATCH, HIDDEN) if last else tensor(STEPS, 2, BATCH, HIDDEN)
    options = {"attributes": {"hidden_size": HIDDEN, "direction": "bidirectional"}, "outputs": ("", "h") if last else ("y",)}
    return graph_of(op, inputs, output=made, constants=weights, **options)


def tensor(*shape):
    return TensorType(DType.FLOAT, shape)


def work(graph, region=None):
    (node,) = graph.nodes
    whole = ShapeMap.full(graph.types[node.first_output].known_shape)
    return Pieces(graph, all_descriptions(graph)).work(node, Tile(0, whole if region is None else region(whole)))


@pytest.mark.parametrize("op", GATES)
def test_a_recurrent_layer_is_a_product_with_its_weights_a_step(op):
    done = work(recurrent(op))
    assert done.flops == 2 * 2 * STEPS * BATCH * GATES[op] * HIDDEN * (SIZE + HIDDEN)
    assert done.weight_bytes == 4 * 2 * GATES[op] * HIDDEN * (SIZE + STEPS * HIDDEN)
    assert done.kind == "matvec"
    assert work(recurrent(op, last=True)).flops == done.flops


@pytest.mark.parametrize("op", GATES)
def test_one_of_two_directions_is_half_the_work(op):
    both, one = (work(recurrent(op), region) for region in (None, lambda whole: whole.replace(1, ShapeMap.of((1, 2)).axes[0])))
    assert (2 * one.flops, 2 * one.weight_bytes) == (both.flops, both.weight_bytes)


WORDS, KEYS, HEADS, HEAD = 30, 70, 4, 16
FEATURES = HEADS * HEAD
PRODUCTS = 4 * WORDS * KEYS * FEATURES
"""Operations of the products of queries with keys and of scores with values."""


def rows(count):
    return tensor(1, count, FEATURES)


@pytest.mark.parametrize(
    ("domain", "op", "inputs", "expected"),
    [
        ("", "Attention", (tensor(1, HEADS, WORDS, HEAD), *(tensor(1, HEADS, KEYS, HEAD),) * 2), PRODUCTS),
        (MICROSOFT, "MultiHeadAttention", (rows(WORDS), rows(KEYS), rows(KEYS)), PRODUCTS),
        (
            MICROSOFT,
            "Attention",
            (rows(WORDS), tensor(FEATURES, 3 * FEATURES)),
            4 * WORDS * WORDS * FEATURES + 6 * WORDS * FEATURES * FEATURES,
        ),
    ],
)
def test_attention_is_charged_for_its_products(domain, op, inputs, expected):
    made = inputs[0]
    graph = graph_of(op, inputs, output=made, attributes={"num_heads": HEADS}, domain=domain, opset=23)
    assert expected <= work(graph).flops <= 1.1 * expected


@pytest.mark.parametrize(("length", "padded", "transforms"), [(512, 512, 1), (400, 1024, 2), (1, 1, 1)])
@pytest.mark.parametrize("axes", [(), (1,)], ids=["samples", "samples with an axis"])
def test_a_short_time_transform_is_charged_for_every_frame(length, padded, transforms, axes):
    frames, frequencies = 20, length // 2 + 1
    inputs = (tensor(1, 19 * 160 + length, *axes), *(TensorType(DType.INT64, ()),) * 3)
    constants = {1: np.array(160), 3: np.array(length)}
    graph = graph_of(
        "STFT", (*inputs[:2], tensor(length), inputs[3]), output=tensor(1, frames, frequencies, 2), constants=constants, opset=17
    )
    expected = frames * transforms * 5 * padded * (padded.bit_length() - 1)
    done = work(graph)
    assert done.kind == "transform"
    assert 0.97 * expected <= done.flops <= expected
    half = work(graph, lambda whole: whole.replace(1, ShapeMap.of((0, frames // 2)).axes[0]))
    assert 2 * half.flops == done.flops


def test_a_transform_is_charged_for_the_length_that_signals_are_padded_to():
    signals, padded = 30, 512
    inputs = (tensor(signals, 400, 1), TensorType(DType.INT64, ()), TensorType(DType.INT64, ()))
    constants = {1: np.array(padded), 2: np.array(1)}
    attributes = {"onesided": 1}
    graph = graph_of("DFT", inputs, output=tensor(signals, 257, 2), constants=constants, attributes=attributes, opset=20)
    expected = signals * 5 * padded * 9
    assert 0.97 * expected <= work(graph).flops <= expected


def test_functions_that_are_computed_one_by_one_are_charged_for_every_element():
    one, many = tensor(1, 4, 6, 8), 4 * 6 * 8
    for op in ("Softplus", "Sin"):
        done = work(graph_of(op, (one,), output=one, opset=20))
        assert (done.kind, done.flops >= 3 * many) == ("scalar", True)
    assert work(graph_of("Relu", (one,), output=one)).kind == "elementwise"
    reduced = graph_of("ReduceLogSumExp", (one,), output=tensor(1, 1, 1, 1))
    assert work(reduced).flops >= 9 * many, "of what it reads"


@pytest.mark.parametrize(("exponent", "kind"), [(2.0, "elementwise"), (3.0, "elementwise"), (1.7, "scalar")])
def test_squares_and_cubes_are_products(exponent, kind):
    one = tensor(1, 4, 6, 8)
    graph = graph_of("Pow", (one, tensor()), output=one, constants={1: np.array(exponent, np.float32)})
    assert work(graph).kind == kind


@pytest.mark.parametrize(("axes", "kind"), [(2, "pool"), (3, "scalar")])
def test_means_over_windows_in_space_are_computed_one_by_one(axes, kind):
    size = (1, 4, *(8,) * axes)
    graph = graph_of("AveragePool", (tensor(*size),), output=tensor(1, 4, *(7,) * axes), attributes={"kernel_shape": (2,) * axes})
    assert work(graph).kind == kind


@pytest.mark.parametrize(("axes", "kind"), [(1, "scalar"), (2, "depthwise"), (3, "scalar")])
def test_convolutions_of_single_channels_are_blocked_in_planes_only(axes, kind):
    size = (1, 4, *(8,) * axes)
    inputs, attributes = (tensor(*size), tensor(4, 1, *(3,) * axes)), {"group": 4, "pads": (1,) * 2 * axes}
    assert work(graph_of("Conv", inputs, output=tensor(*size), attributes=attributes)).kind == kind
