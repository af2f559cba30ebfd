"""What a loop makes has the shapes that are inferred of it, and what follows is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from bbgrap.engine import true_types
from bbgrap.engine.load import load_graph
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_loops import MOST_TURNS
from tests.bbgrap.engine.test_control_flow import compared
from tests.light_control_flow import node, normal, untyped
from tests.onnx_models import model_of

MAP = (1, 2, 6, 6)
WEIGHTS = {"w": normal(1, 2, 2, 3, 3), "zero": np.array(0), "no": np.array(False), "yes": np.array(True)}
CELL = (
    helper.make_node("Conv", ["map_in", "w"], ["c"], pads=[1, 1, 1, 1]),
    node("Tanh", "c", "map_out"),
    helper.make_node("MaxPool", ["map_out"], ["part"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
)
GROWING = (node("Concat", "map_in map_in", "map_out", axis=3), node("Relu", "map_out", "part"))
ON = (node("Identity", "go_in", "go_out"),)
"""There is another turn if there was one."""
BELOW = (node("Add", "count_in step", "count_out"), node("Less", "count_out limit", "go_out"))
"""There is another turn while what is counted stays below a limit."""


def scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def a_loop(
    steps: Sequence[NodeProto],
    most: str,
    weights: Mapping[str, object],
    go: str = "",
    *,
    counts: bool = False,
    inputs: tuple[str, ...] = (),
) -> onnx.ModelProto:
    """A loop that carries a map, and a count if it `counts`, and collects a part of each turn; a convolution and `Relu` behind it."""
    count = [scalar("count_in", TensorProto.INT64)] if counts else []
    body = helper.make_graph(
        steps,
        "turn",
        [scalar("i", TensorProto.INT64), scalar("go_in", TensorProto.BOOL), untyped("map_in"), *count],
        [
            scalar("go_out", TensorProto.BOOL),
            untyped("map_out"),
            *([scalar("count_out", TensorProto.INT64)] if counts else []),
            untyped("part"),
        ],
    )
    reads, makes = [most, go, "x", *(["start"] if counts else [])], ["last", *(["count"] if counts else []), "all"]
    nodes = [helper.make_node("Loop", reads, makes, body=body, name="loop"), node("Conv", "last w", "y"), node("Relu", "all", "z")]
    stored = {name: np.asarray(array) for name, array in {**WEIGHTS, **weights}.items()}
    return model_of(nodes, {"x": MAP, **{name: [] for name in inputs}}, ["y", "z"], stored, kinds=dict.fromkeys(inputs, TensorProto.INT64))


def shapes_of(model: onnx.ModelProto, path: Path, **shapes: tuple[int, ...]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    onnx.save(model, path)
    types = load_graph(path, {"x": MAP, **shapes}).types
    return types["last"].shape, types["all"].shape


@pytest.mark.parametrize("go", ["", "yes"])
def test_what_follows_a_loop_is_divided_and_agrees(go: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert shapes_of(a_loop([*CELL, *ON], "most", {"most": 3}, go), path) == (MAP, (3, 1, 2, 3, 3))
    graph = compared(path, {"x": normal(3, *MAP)})
    assert sorted(item.op for item in graph.nodes) == ["Conv", "Loop", "Relu"]


@given(
    most=st.none() | st.integers(-1, 7),
    start=st.integers(-3, 3),
    step=st.integers(1, 3),
    limit=st.integers(-2, 9),
    go=st.sampled_from(["", "yes", "no"]),
)
@settings(max_examples=25)
def test_turns_are_counted_as_onnxruntime_counts_them(
    most: int | None, start: int, step: int, limit: int, go: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("loop") / "model.onnx"
    numbers = {"start": start, "step": step, "limit": limit} | ({} if most is None else {"most": most})
    shapes = shapes_of(a_loop([*CELL, *BELOW], "" if most is None else "most", numbers, go, counts=True), path)
    made = make_session(path, threads=1).run(None, {"x": normal(4, *MAP)})
    assert shapes == (MAP, made[1].shape if len(made[1]) else None)


def test_what_the_run_tells_stays_unknown(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    endless = {"start": 0, "step": 0, "limit": 1}
    assert shapes_of(a_loop([*CELL, *BELOW], "", endless, counts=True), path) == (MAP, None)
    assert shapes_of(a_loop([*CELL, *ON], "most", {"most": MOST_TURNS}), path) == (MAP, (MOST_TURNS, 1, 2, 3, 3))
    assert shapes_of(a_loop([*CELL, *ON], "most", {"most": MOST_TURNS + 1}), path) == (MAP, None)
    assert shapes_of(a_loop([*CELL, *ON], "most", {}, inputs=("most",)), path, most=()) == (MAP, None)
    by_input = [*CELL, node("Add", "count_in step", "count_out"), node("Less", "count_out limit", "go_out")]
    told = {"start": 0, "step": 1, "most": 9}
    assert shapes_of(a_loop(by_input, "most", told, counts=True, inputs=("limit",)), path, limit=()) == (MAP, None)
    by_map = [*CELL, node("ReduceMax", "map_out", "high", keepdims=0), node("Cast", "high", "go_out", to=TensorProto.BOOL)]
    assert shapes_of(a_loop(by_map, "most", {"most": 9}), path) == (MAP, None)
    assert shapes_of(a_loop([*GROWING, *ON], "most", {"most": 3}), path) == (None, None)


def test_a_loop_in_a_loop_is_known_too(tmp_path: Path) -> None:
    turn = helper.make_graph(
        [node("Identity", "go_inner", "go_inner_out"), node("Relu", "map_inner", "map_inner_out")],
        "inner",
        [scalar("j", TensorProto.INT64), scalar("go_inner", TensorProto.BOOL), untyped("map_inner")],
        [scalar("go_inner_out", TensorProto.BOOL), untyped("map_inner_out")],
    )
    inner = helper.make_node("Loop", ["two", "", "map_in"], ["map_out"], body=turn)
    path = tmp_path / "model.onnx"
    model = a_loop([inner, node("Relu", "map_out", "part"), *ON], "most", {"most": 3, "two": 2})
    assert shapes_of(model, path) == (MAP, (3, *MAP))
    compared(path, {"x": normal(5, *MAP)})


def test_a_turn_may_read_what_is_carried_into_the_first_one(tmp_path: Path) -> None:
    residual = [node("Conv", "map_in w", "c", pads=[1, 1, 1, 1]), node("Add", "c x", "map_out"), node("Relu", "map_out", "part"), *ON]
    path = tmp_path / "model.onnx"
    assert shapes_of(a_loop(residual, "most", {"most": 2}), path) == (MAP, (2, *MAP))
    compared(path, {"x": normal(6, *MAP)})


def test_a_loop_that_carries_nothing_is_counted(tmp_path: Path) -> None:
    steps = [node("Less", "i two", "go_out"), node("Relu", "x", "part")]
    ends = [scalar("go_out", TensorProto.BOOL), untyped("part")]
    body = helper.make_graph(steps, "turn", [scalar("i", TensorProto.INT64), scalar("go_in", TensorProto.BOOL)], ends)
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Loop", ["", ""], ["all"], body=body, name="loop"), node("Tanh", "all", "y")]
    onnx.save(model_of(nodes, {"x": MAP}, ["y"], {"two": np.array(2)}), path)
    assert compared(path, {"x": normal(7, *MAP)}).types["all"].shape == (3, *MAP)


def test_only_so_many_loops_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(true_types, "MOST_LOOPS", 2)
    ends = [scalar("go_out", TensorProto.BOOL), untyped("map_out")]
    nodes = []
    for number in range(4):
        inputs = [scalar("i", TensorProto.INT64), scalar("go_in", TensorProto.BOOL), untyped("map_in")]
        body = helper.make_graph([*ON, node("Relu", "map_in", "map_out")], "turn", inputs, ends)
        nodes.append(helper.make_node("Loop", ["two", "", f"x{number or ''}"], [f"x{number + 1}"], body=body))
    path = tmp_path / "model.onnx"
    onnx.save(model_of(nodes, {"x": MAP}, ["x4"], {"two": np.array(2)}), path)
    graph = compared(path, {"x": normal(8, *MAP)})
    assert [graph.types[f"x{number}"].shape for number in (1, 2, 3, 4)] == [MAP, MAP, None, None]
