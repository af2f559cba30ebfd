"""Estimators of Scikit-learn, as skl2onnx exports them, on two agents by default: onnxruntime's bits, in tables of any length."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bbgrap
from bbgrap.engine.sessions import make_session

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the two packages about each other
]

FEATURES = 12
ESTIMATORS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "forest": ("ensemble", "RandomForestClassifier", {"n_estimators": 100, "max_depth": 9}, {"zipmap": False}),
    "forest-with-maps": ("ensemble", "RandomForestClassifier", {"n_estimators": 20, "max_depth": 6}, {}),
    "boosting": ("ensemble", "GradientBoostingRegressor", {"n_estimators": 60}, {}),
    "outliers": ("ensemble", "IsolationForest", {"n_estimators": 20}, {}),
    "vectors": ("svm", "SVC", {}, {}),
    "neighbours": ("neighbors", "KNeighborsClassifier", {}, {"zipmap": False, "optim": "cdist"}),
    "neighbours-in-a-loop": ("neighbors", "KNeighborsRegressor", {}, {}),
    "process": ("gaussian_process", "GaussianProcessRegressor", {}, {"optim": "cdist"}),
    "logistic": ("linear_model", "LogisticRegression", {}, {"zipmap": False}),
}
"""Where they are, what they are made with, and options of their converter."""


def exported(folder: Path, name: str) -> Path:
    """Return the file of an estimator behind a scaler, fitted to random rows."""
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    module, kind, arguments, options = ESTIMATORS[name]
    random = np.random.default_rng(0)
    x = random.standard_normal((800, FEATURES)).astype(np.float32)
    is_regressor = kind.endswith("Regressor")
    y = x[:, 0] * 3 + np.sin(x[:, 1]) if is_regressor else (x[:, 0] * x[:, 1] > 0) + 2 * (x[:, 2] > 1)
    last = getattr(import_module(f"sklearn.{module}"), kind)(**arguments)
    pipeline = make_pipeline(StandardScaler(), last).fit(x, y)
    model = skl2onnx.to_onnx(pipeline, x[:1], options={id(last): options} if options else None, target_opset={"": 18, "ai.onnx.ml": 3})
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def equal(got: Any, want: Any) -> bool:
    if isinstance(want, list):
        return bool(got == want)
    return got.dtype == want.dtype and np.array_equal(got, want)


@pytest.fixture(scope="module")
def cluster():
    with bbgrap.LocalCluster(agents=2) as started:
        yield started


@pytest.mark.parametrize("name", ESTIMATORS)
def test_tables_of_any_length(cluster: bbgrap.LocalCluster, name: str, tmp_path: Path) -> None:
    path = exported(tmp_path, name)
    plain = make_session(path, threads=1)
    session = bbgrap.InferenceSession(path, cluster=cluster)
    (item,) = session.get_inputs()
    for rows in (1, 300, 3000):
        table = np.random.default_rng(rows).standard_normal((rows, FEATURES)).astype(np.float32)
        want = plain.run(None, {item.name: table})
        first = session.run(None, {item.name: table})
        session.prepare({item.name: table.shape})
        planned = session.run(None, {item.name: table})
        assert all(map(equal, first, want)), f"{rows} rows, first answer"
        assert all(map(equal, planned, want)), f"{rows} rows, by a plan"
