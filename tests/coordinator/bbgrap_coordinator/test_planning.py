"""Planning in a process of its own: what it finds and what goes wrong arrive as if it had been here."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
from bbgrap_coordinator.planning import PlannerProcess, pack, unpack

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.control.planned import PlannedVariant
from bbgrap.engine.prepare import prepare
from bbgrap.errors import ModelError, PlanError
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize

SHAPES = {"input": (1, 3, 32, 32)}
AUTO = PlanOptions("auto")


@pytest.fixture(scope="module")
def planner():
    with PlannerProcess() as process:
        yield process


@pytest.fixture
def model(tmp_path):
    """The path of a model, alone in a folder."""
    return Path(shutil.copy(materialize("tiny"), tmp_path))


def steady(report):
    """Return a report without what differs from run to run."""
    return {key: value for key, value in report.items() if key != "search_s"}


def assert_same(found, expected):
    assert found.weights.keys() == expected.weights.keys()
    for digest, array in expected.weights.items():
        assert found.weights[digest].dtype == array.dtype
        np.testing.assert_array_equal(found.weights[digest], array)
    assert found == expected  # arrays are not compared by it


def test_it_finds_what_planning_here_finds(planner, model):
    expected = prepare(model, SHAPES, Cluster.even(2), AUTO)
    found = planner.prepare(model, SHAPES, Cluster.even(2), AUTO)
    assert len(expected) > 1
    for ours, theirs in zip(expected, found, strict=True):
        assert_same(theirs.artifacts, ours.artifacts)
        assert theirs.name == ours.name
        assert steady(theirs.report) == steady(ours.report)
    assert list(model.parent.iterdir()) == [model]


def test_its_errors_are_raised_here(planner, model):
    tight = Cluster(tuple(replace(node, memory_bytes=1) for node in Cluster.even(2).nodes))
    with pytest.raises(PlanError, match="no split"):
        planner.prepare(model, SHAPES, tight, PlanOptions())
    model.write_bytes(b"no model")
    with pytest.raises(ModelError, match=model.name):
        planner.prepare(model, SHAPES, Cluster.even(2), PlanOptions())


def test_a_bug_comes_with_its_traceback(planner, model):
    with pytest.raises(RuntimeError, match="AttributeError") as raised:
        planner.prepare(model, SHAPES, None, PlanOptions())
    assert "in prepare\n" in raised.value.__notes__[0]


def test_one_that_dies_fails_its_plan_and_the_next_one_works(planner, model, tmp_path):
    before = psutil.Process(planner._process.pid)
    faults = []

    def plan():
        try:
            planner.prepare(model, SHAPES, None, PlanOptions())
        except PlanError as error:
            faults.append(str(error))

    before.suspend()
    thread = threading.Thread(target=plan)
    thread.start()
    while not list(tmp_path.glob("weights-*")):
        time.sleep(0.01)
    before.kill()
    thread.join()
    assert faults == ["planner: its process ended while it planned 'tiny-1.onnx': SIGKILL, as when memory runs out"]
    (found,) = planner.prepare(model, SHAPES, Cluster.even(2), PlanOptions())
    assert_same(found.artifacts, prepare(model, SHAPES, Cluster.even(2), PlanOptions())[0].artifacts)


def test_arrays_of_every_kind_are_kept(tmp_path):
    arrays = [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 4), np.int8),
        np.array(True),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array(["a", "bc"], object),
        np.arange(3, dtype=np.uint8),
        np.arange(5, dtype=np.float64),
    ]
    artifacts = Artifacts((), None, {str(number): array for number, array in enumerate(arrays)})
    with (tmp_path / "weights").open("w+b") as file:
        (found,) = unpack(pack((PlannedVariant("none", artifacts, {"planner": "none"}),), file), file)
    (tmp_path / "weights").unlink()
    assert found.report == {"planner": "none"}
    assert_same(found.artifacts, artifacts)
    assert all(array.flags.aligned for array in found.artifacts.weights.values())


def test_no_arrays_at_all_are_no_fault(tmp_path):
    with (tmp_path / "weights").open("w+b") as file:
        nothing = Artifacts((), None, {"none": np.zeros(0, np.float32)})
        (found,) = unpack(pack((PlannedVariant("none", nothing, {}),), file), file)
    assert found.artifacts.weights["none"].shape == (0,)
