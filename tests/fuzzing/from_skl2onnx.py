"""Estimators of scikit-learn, fitted to random data, as skl2onnx writes them."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError

SINGLE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("linear_model.LogisticRegression", {}),
    ("linear_model.LinearRegression", {}),
    ("linear_model.SGDClassifier", {"loss": "log_loss"}),
    ("linear_model.Ridge", {}),
    ("svm.SVC", {}),
    ("svm.SVR", {}),
    ("svm.LinearSVC", {}),
    ("tree.DecisionTreeClassifier", {}),
    ("tree.DecisionTreeRegressor", {}),
    ("ensemble.RandomForestClassifier", {"n_estimators": 7}),
    ("ensemble.GradientBoostingClassifier", {"n_estimators": 6}),
    ("ensemble.HistGradientBoostingRegressor", {"max_iter": 6}),
    ("ensemble.AdaBoostClassifier", {"n_estimators": 4}),
    ("ensemble.IsolationForest", {"n_estimators": 5}),
    ("neighbors.KNeighborsClassifier", {"n_neighbors": 3}),
    ("neighbors.KNeighborsRegressor", {"n_neighbors": 3}),
    ("naive_bayes.GaussianNB", {}),
    ("cluster.KMeans", {"n_clusters": 3, "n_init": 1}),
    ("decomposition.PCA", {"n_components": 3}),
    ("decomposition.TruncatedSVD", {"n_components": 3}),
    ("gaussian_process.GaussianProcessRegressor", {}),
    ("neural_network.MLPClassifier", {"hidden_layer_sizes": (9, 5), "max_iter": 30}),
    ("neural_network.MLPRegressor", {"hidden_layer_sizes": (7,), "max_iter": 30}),
)
"""Estimators by their place in sklearn, with arguments that keep them small."""

BEFORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("preprocessing.StandardScaler", {}),
    ("preprocessing.MinMaxScaler", {}),
    ("preprocessing.PolynomialFeatures", {"degree": 2}),
    ("preprocessing.Binarizer", {}),
    ("preprocessing.QuantileTransformer", {"n_quantiles": 20}),
    ("preprocessing.Normalizer", {}),
    ("impute.SimpleImputer", {}),
    ("decomposition.PCA", {"n_components": 3}),
)
"""What pipelines begin with."""


def _made(place: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - scikit-learn has no types
    module, name = place.split(".")
    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**arguments)


def _estimator(seed: int, random: np.random.Generator) -> Any:  # noqa: ANN401
    """Return an estimator, alone or at the end of a pipeline, some with columns treated differently or transforms joined."""
    from sklearn import compose, pipeline

    last = _made(*SINGLE[seed % len(SINGLE)])
    if "random_state" in last.get_params():
        last.set_params(random_state=seed)
    form = random.random()
    first, second = (_made(*BEFORE[int(k)]) for k in random.integers(0, len(BEFORE), 2))
    if form < 0.45:
        return last
    if form < 0.75:
        return pipeline.make_pipeline(first, last)
    if form < 0.9:
        return pipeline.make_pipeline(pipeline.make_union(first, second), last)
    return pipeline.make_pipeline(compose.ColumnTransformer([("a", first, [0, 1, 2]), ("b", second, [1, 2, 3])]), last)


def sample(seed: int) -> Sample:
    """Return the model of an estimator; consecutive seeds take them in turn.

    Raises:
        NotMadeError: if fitting or converting fails.
    """
    from skl2onnx import to_onnx
    from sklearn.base import is_classifier, is_regressor

    random = np.random.default_rng((seed, 5))
    features, classes, rows = int(random.integers(4, 9)), int(random.integers(2, 5)), int(random.integers(1, 9))
    x = random.standard_normal((80, features)).astype(np.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = _estimator(seed, random)
            y = x[:, 0] * 2 + x[:, 1] if is_regressor(estimator) else np.arange(80) % classes
            estimator.fit(x, y)
            tensors = is_classifier(estimator) and "SVC" not in type(estimator).__name__ and random.random() < 0.8  # no list of dicts
            options = {id(estimator): {"zipmap": False}} if tensors else None
            model = to_onnx(estimator, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
    except Exception as error:
        raise NotMadeError(f"{type(error).__name__}: {' '.join(str(error).split())[:80]}") from None
    name = model.graph.input[0].name
    return Sample(f"skl2onnx{seed}", model.SerializeToString(), {name: random.standard_normal((rows, features)).astype(np.float32)})
