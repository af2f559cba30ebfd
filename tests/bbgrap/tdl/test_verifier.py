"""The verifier must reject wrong rules, each for its own fault."""

import dataclasses

import numpy as np
import pytest

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl import ConstantOperand, Input, LocalNode, Result
from bbgrap.tdl.language import Description, Index, ScalarCall, operand
from bbgrap.tdl.operators.windows import Window
from bbgrap.tdl.rule import _RULES, OperatorRule
from tests.bbgrap.tdl.verifier import Case, Whole, check

X = np.arange(8, dtype=np.float32) - 4
CONV = Case("Conv", (np.arange(1, 10, dtype=np.float32).reshape(1, 1, 9), np.ones((1, 1, 3), np.float32)), {"pads": (1, 1)})


def relu_that_reads(*offsets):
    (i,) = (Index("i", 8),)
    return OperatorRule(lambda _site: Description((i,), ScalarCall("Relu", tuple(operand(0)[(i + offset,)] for offset in offsets))))


def test_a_right_rule_passes():
    check(Whole(Case("Relu", (X,))), ShapeMap.of((2, 5)))
    check(Whole(CONV), ShapeMap.of((0, 1), (0, 1), (0, 4)))


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (relu_that_reads(1), "Arrays are not equal"),
        (relu_that_reads(0, 1), r"\(4,\)"),  # one element too many: the local output has another shape
        (OperatorRule(_RULES["", "Relu"].describe, lambda *_: (LocalNode("Identity", (Input(0),)),)), "Arrays are not equal"),
    ],
)
def test_wrong_elements_are_seen(monkeypatch, rule, fault):
    monkeypatch.setitem(_RULES, ("", "Relu"), rule)
    with pytest.raises(AssertionError, match=fault):
        check(Whole(Case("Relu", (X,))), ShapeMap.of((2, 5)))


def test_a_region_that_is_too_small_is_unsound(monkeypatch):
    """Softmax along the axis that is said to be split: the local answer differs, and so does the whole one under other neighbours."""
    monkeypatch.setitem(_RULES, ("", "Softmax"), relu_that_reads(0))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(Whole(Case("Softmax", (X,), exact=False)), ShapeMap.of((2, 5)))


def test_a_region_that_is_too_large_is_not_minimal(monkeypatch):
    def drop_last(site, _region, _reads):
        cut = [np.array([value], np.int64) for value in (0, -1, 0)]
        relu = LocalNode("Relu", (Input(0),))
        return relu, LocalNode("Slice", (Result(0), *map(ConstantOperand, cut)))

    monkeypatch.setitem(_RULES, ("", "Relu"), dataclasses.replace(relu_that_reads(0, 1), localize=drop_last))
    with pytest.raises(AssertionError, match=r"operand 0: index 5 of axis 0 in \[2:6\] does not matter to \[2:5\]"):
        check(Whole(Case("Relu", (X,))), ShapeMap.of((2, 5)))


@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (2, 0)])
def test_wrong_local_pads_are_seen(monkeypatch, pads):
    monkeypatch.setattr(Window, "local_pads", lambda *_, **__: pads)
    with pytest.raises(AssertionError):
        check(Whole(CONV), ShapeMap.of((0, 1), (0, 1), (0, 4)))
