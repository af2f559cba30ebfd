"""The ONNX backend says what it split, along what, and why it left the rest whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap import backend
from bbgrap.errors import UsageError
from tests.onnx_models import model_of
from tests.value_models import an_optional_that_is_empty, same, sequences_inside_and_outside


def proto() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("NonZero", ["a"], ["y"], name="places"),
    ]
    return model_of(nodes, {"x": [1, 4, 9, 9]}, {"y": None}, {"w": np.ones((4, 4, 3, 3), np.float32)}, kinds={"y": TensorProto.INT64})


def test_what_is_whole_has_a_reason() -> None:
    rep = backend.prepare(proto())
    rep.run([np.ones((1, 4, 9, 9), np.float32)])
    assert rep.split_nodes == 1
    assert rep.whole == {"places": "the shape of 'y' is only known when the model runs"}


def test_a_planner_that_gives_a_node_to_one_device_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BBGRAP_BACKEND_PLANNER", "single")
    rep = backend.prepare(proto())
    rep.run([np.ones((1, 4, 9, 9), np.float32)])
    assert rep.split_nodes == 0
    assert rep.whole["conv"] == "planner 'single' gives it to one device"


def test_the_split_is_read_when_a_model_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BBGRAP_BACKEND_PLANNER", "bbgrap")
    x = np.random.default_rng(0).standard_normal((1, 4, 9, 9)).astype(np.float32)
    for split, cut in (("rows", 1), ("channels", 1), ("batch", 0)):
        monkeypatch.setenv("BBGRAP_BACKEND_SPLIT", split)
        rep = backend.prepare(proto())
        monkeypatch.setenv("BBGRAP_BACKEND_SPLIT", "nonsense")
        rep.run([x])
        assert rep.split_nodes == cut, split
    with pytest.raises(UsageError, match=r"BBGRAP_BACKEND_SPLIT: expected one of rows, .*got 'nonsense'"):
        backend.prepare(proto())


def test_sequences_and_empty_optionals_go_the_way_of_all_models() -> None:
    for make in (sequences_inside_and_outside, an_optional_that_is_empty):
        model, feed = make()
        rep = backend.prepare(model)
        by_name, in_order = rep.run(feed), rep.run([feed[value.name] for value in model.graph.input])
        assert rep.split_nodes >= 1
        assert all(map(same, by_name, in_order))
