"""Sequences, optionals, maps, and control flow on real agents: answers as plain onnxruntime gives them, run after run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from bbgrap.engine.sessions import make_session
from bbgrap.errors import InputError
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.session import InferenceSession
from tests.light_control_flow import speech_like
from tests.onnx_models import model_of
from tests.value_models import CASES, Case, an_optional_that_is_empty, plain_answers, same, sequences_inside_and_outside

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.mark.parametrize("make", CASES)
def test_values_that_are_no_arrays_on_real_agents(make: Callable[[], Case], three: LocalCluster, tmp_path: Path) -> None:
    proto, feed = make()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    wanted = plain_answers(path, dict(feed))
    for options in (PlanOptions(), PlanOptions(planner="widest"), PlanOptions(planner="pipeline")):
        session = InferenceSession(path, cluster=three, options=options)
        plain = make_session(path, threads=1)
        assert [arg.type for arg in session.get_inputs()] == [arg.type for arg in plain.get_inputs()]
        assert [arg.type for arg in session.get_outputs()] == [arg.type for arg in plain.get_outputs()]
        for _ in range(2):
            for arg, got, want in zip(session.get_outputs(), session.run(None, feed), wanted, strict=True):
                assert same(got, want), f"{options.planner}: '{arg.name}' differs"


@pytest.mark.broad
def test_sequences_of_any_length_use_one_plan(three: LocalCluster, tmp_path: Path) -> None:
    proto, feed = sequences_inside_and_outside()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    session, plain = InferenceSession(path, cluster=three), make_session(path, threads=1)
    session.run(None, feed)
    plan = session.plan.key
    for length in (0, 1, 5):
        longer: dict[str, Any] = {**feed, "s": [np.full((k + 1, 4, 6, 6), k, np.float32) for k in range(length)]}
        assert same(session.run(None, longer), plain.run(None, longer))
    assert session.plan.key == plan


@pytest.mark.parametrize(
    ("make", "name", "wrong", "said"),
    [
        (
            sequences_inside_and_outside,
            "s",
            np.zeros(3, np.float32),
            r"input 's': expected seq\(tensor\(float\)\), got float32\[3\]; give",
        ),
        (sequences_inside_and_outside, "s", [np.zeros(3)], r"expected seq\(tensor\(float\)\), got float64\[3\]; convert it"),
        (an_optional_that_is_empty, "o", {"a": 1}, r"expected optional\(seq\(tensor\(float\)\)\), got a dict; give a list"),
    ],
)
def test_values_of_another_type_are_refused(
    make: Callable[[], Case], name: str, wrong: object, said: str, three: LocalCluster, tmp_path: Path
) -> None:
    proto, feed = make()
    onnx.save(proto, tmp_path / "model.onnx")
    session = InferenceSession(tmp_path / "model.onnx", cluster=three)
    with pytest.raises(InputError, match=said):
        session.run(None, {**feed, name: wrong})


@pytest.mark.broad
def test_numbers_that_onnxruntime_cannot_give_come_as_arrays_of_ml_dtypes(three: LocalCluster, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16)
    model = model_of([node], {"x": [4]}, {"y": [4]}, kinds={"y": onnx.TensorProto.BFLOAT16}, opset=19)
    onnx.save(model, tmp_path / "m.onnx")
    given = np.array([1, -2.5, 3e38, 0.1], np.float32)
    (got,) = InferenceSession(tmp_path / "m.onnx", cluster=three).run(None, {"x": given})
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.astype(np.float32), given.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_model_that_listens_keeps_its_state_from_piece_to_piece(three: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "listening.onnx"
    onnx.save(speech_like(), path)
    plain = make_session(path, threads=1)
    for options in (PlanOptions(), PlanOptions(split="channels"), PlanOptions(planner="tofu"), PlanOptions(planner="widest")):
        session = InferenceSession(path, cluster=three, options=options)
        state = kept = np.zeros((2, 1, 8), np.float32)
        random = np.random.default_rng(3)
        for _ in range(4):
            feed = {"sound": random.standard_normal((1, 64)).astype(np.float32), "rate": np.array(16000)}
            (want, kept), (got, state) = (s.run(None, {**feed, "state": held}) for s, held in ((plain, kept), (session, state)))
            assert same(got, want)
            assert same(state, kept)


@pytest.mark.broad
def test_a_weight_that_is_an_input_too_may_be_overridden(three: LocalCluster, tmp_path: Path) -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], {"x": [6, 4], "w": [4, 4]}, {"y": None}, {"w": np.eye(4, dtype=np.float32)})
    onnx.save(model, tmp_path / "m.onnx")
    session, plain = InferenceSession(tmp_path / "m.onnx", cluster=three), make_session(tmp_path / "m.onnx", threads=1)
    assert [arg.name for arg in session.get_overridable_initializers()] == [arg.name for arg in plain.get_overridable_initializers()]
    assert [arg.shape for arg in session.get_outputs()] == [arg.shape for arg in plain.get_outputs()]
    random = np.random.default_rng(0)
    feed = {"x": random.standard_normal((6, 4)).astype(np.float32)}
    other = {**feed, "w": random.standard_normal((4, 4)).astype(np.float32)}
    for given in (feed, other, feed, other):
        assert same(session.run(None, given), plain.run(None, given))
        assert session.prepare({name: array.shape for name, array in given.items()}, given).agents
        assert same(list(session.trace(given, runs=1).outputs), plain.run(None, given))
        assert same(session.run(None, given), plain.run(None, given))
