"""Every registered operator rule against onnxruntime: numeric, sound, minimal (see `verifier`)."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.graph.divided_experts import OWN_DOMAIN
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import described_operators
from tests.bbgrap.tdl.block_cases import BLOCKS
from tests.bbgrap.tdl.decoder_cases import MICROSOFT_DECODERS, OWN_DECODERS
from tests.bbgrap.tdl.elementwise_cases import ELEMENTWISE
from tests.bbgrap.tdl.estimator_cases import ESTIMATORS, distances
from tests.bbgrap.tdl.indexing_cases import INDEXING
from tests.bbgrap.tdl.layer_cases import LAYERS, MICROSOFT_LAYERS
from tests.bbgrap.tdl.other_cases import OTHERS
from tests.bbgrap.tdl.quantized_cases import MICROSOFT_QUANTIZED, QUANTIZED
from tests.bbgrap.tdl.verifier import Case, Whole, check, check_numeric
from tests.bbgrap.tdl.window_cases import WINDOWS, whole_numbers
from tests.strategies import tiles

STRUCTURED = {("", op): case for op, case in (WINDOWS | OTHERS).items()}
BRIEF = {("", op): case for op, case in (ELEMENTWISE | INDEXING | BLOCKS | LAYERS | QUANTIZED).items()}
BRIEF |= {("com.microsoft", op): case for op, case in (MICROSOFT_LAYERS | MICROSOFT_DECODERS | MICROSOFT_QUANTIZED).items()}
BRIEF |= {("ai.onnx.ml", op): case for op, case in ESTIMATORS.items()} | {("com.microsoft", "CDist"): distances}
BRIEF |= {(OWN_DOMAIN, op): case for op, case in OWN_DECODERS.items()}
CASES = STRUCTURED | BRIEF


def label(operator):
    return ":".join(filter(None, operator))


RANDOM = np.random.default_rng(0)
FEWER = max(1, settings().max_examples // 5)


def check_some_tile(data, case):
    whole = Whole(case)
    description = whole.describe()
    several = range(len(description.shape)) if case.several_ranges is None else case.several_ranges
    check(whole, data.draw(tiles(description.shape, description.splittable_axes, several), label="tile"))


def test_every_registered_operator_has_a_case():
    assert set(CASES) == set(described_operators())


@pytest.mark.parametrize("op", STRUCTURED, ids=label)
@given(data=st.data())
def test_structured_operator(op, data):
    check_some_tile(data, data.draw(CASES[op](), label="case"))


@pytest.mark.parametrize("op", BRIEF, ids=label)
@settings(max_examples=FEWER)
@given(data=st.data())
def test_further_operator(op, data):
    check_some_tile(data, data.draw(CASES[op](), label="case"))


@pytest.mark.slow
@pytest.mark.parametrize("op", CASES, ids=label)
@given(data=st.data())
def test_operator_at_length(op, data):
    check_some_tile(data, data.draw(CASES[op](), label="case"))


BLOCKED = [
    Case("Conv", (x, w), {"pads": (pad,) * 4, "strides": (stride, stride), "group": group})
    for x, w, group in (
        (whole_numbers(RANDOM, 1, 32, 6, 5), whole_numbers(RANDOM, 32, 32, 3, 3), 1),
        (whole_numbers(RANDOM, 1, 32, 6, 5), whole_numbers(RANDOM, 32, 1, 3, 3), 32),
        (whole_numbers(RANDOM, 1, 3, 6, 5), whole_numbers(RANDOM, 32, 3, 3, 3), 1),
    )
    for pad, stride in ((1, 1), (1, 2), (4, 1))
]


@pytest.mark.parametrize("case", BLOCKED, ids=str)
def test_layout_of_blocks_of_channels(case):
    """With many channels onnxruntime computes in another layout: the same pieces, the same bits, also for a piece wholly in padding."""
    whole = Whole(case)
    shape = whole.output.shape
    for rows, channels in product(((0, 1), (1, 3), (2, shape[2]), (shape[2] - 1, shape[2])), ((0, 32), (0, 16), (5, 20))):
        region = ShapeMap.full(shape).replace(1, IntervalSet.of(channels)).replace(2, IntervalSet.of(rows))
        check_numeric(whole, region, whole.localize(region))


SQUARE, FAR = whole_numbers(RANDOM, 5, 5, low=1), 2**63 - 1
ONE_BEYOND = {"strides": (2, 2), "kernel_shape": (3, 3), "dilations": (1, 1), "output_shape": (12, 10)}
AT_THEIR_ENDS = [
    *(Case("Trilu", (SQUARE, np.array(k)), {"upper": upper}, frozenset((1,))) for k in (FAR, -FAR - 1) for upper in (0, 1)),
    *(Case("EyeLike", (SQUARE,), {"k": k}) for k in (FAR, -FAR - 1)),
    *(
        Case("ConvTranspose", (whole_numbers(RANDOM, 1, 2, 5, 4), whole_numbers(RANDOM, 2, 3, 3, 3)), {**ONE_BEYOND, "auto_pad": mode})
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
    ),
]


@pytest.mark.parametrize("case", AT_THEIR_ENDS, ids=str)
def test_attributes_at_their_ends(case):
    """Diagonals as far away as a number can be; an output with one element more than is natural."""
    whole = Whole(case)
    *_, rows, columns = whole.output.shape
    for high, wide in product(((0, rows), (0, 2), (3, rows)), ((0, columns), (0, 2), (3, columns))):
        axes = len(whole.output.shape)
        region = ShapeMap.full(whole.output.shape).replace(axes - 2, IntervalSet.of(high)).replace(axes - 1, IntervalSet.of(wide))
        check_numeric(whole, region, whole.localize(region))
