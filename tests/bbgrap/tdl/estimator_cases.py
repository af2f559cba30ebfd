"""Random calls of estimators, and of what prepares features for them.

Most are `loose`: a perturbation need not show where no tree asks for it, or where it changes no label.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import strategies as st

from bbgrap.graph.types import Attribute
from bbgrap.tdl.operators.estimators import DOMAIN
from bbgrap.zoo.forests import TARGETS, complete_trees
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of, whole_numbers
from tests.strategies import shapes

in_domain = partial(Case, domain=DOMAIN, version=3)

CLASSES = 3


def _rows(draw: Draw) -> tuple[int, int]:
    return draw(st.integers(1, 5)), draw(st.integers(1, 4))


def _trees(draw: Draw, features: int) -> dict[str, Attribute]:
    return complete_trees(features, draw(st.integers(1, 4)), draw(st.integers(1, 3)))


def _between(draw: Draw, rows: int, columns: int) -> np.ndarray:
    return random_of(draw).random((rows, columns), np.float32)


@st.composite
def regressor_of_trees(draw: Draw) -> Case:
    """Sums or means of what trees say."""
    rows, columns = _rows(draw)
    attributes = {**_trees(draw, columns), "aggregate_function": draw(st.sampled_from(("SUM", "AVERAGE", "MIN", "MAX")))}
    return in_domain("TreeEnsembleRegressor", (_between(draw, rows, columns),), attributes, loose=None)


@st.composite
def classifier_of_trees(draw: Draw) -> Case:
    """Labels, numbers or texts, and scores."""
    rows, columns = _rows(draw)
    renamed = {name.replace("target_", "class_"): value for name, value in _trees(draw, columns).items() if name != "n_targets"}
    labels = {"classlabels_int64s": tuple(range(TARGETS))} if draw(st.booleans()) else {"classlabels_strings": tuple("abcd")}
    attributes = {**renamed, **labels, "post_transform": draw(st.sampled_from(("NONE", "SOFTMAX")))}
    return in_domain("TreeEnsembleClassifier", (_between(draw, rows, columns),), attributes, loose=None, further=(1,))


@st.composite
def trees_of_version_5(draw: Draw) -> Case:
    """One tree of one question, as the standard writes trees from version 5 on."""
    rows, columns = _rows(draw)
    attributes: dict[str, Attribute] = {
        "n_targets": 2,
        "tree_roots": (0,),
        "nodes_modes": np.array([0], np.uint8),
        "nodes_featureids": (draw(st.integers(0, columns - 1)),),
        "nodes_splits": np.array([0.5], np.float32),
        "nodes_truenodeids": (0,),
        "nodes_trueleafs": (1,),
        "nodes_falsenodeids": (1,),
        "nodes_falseleafs": (1,),
        "leaf_targetids": (0, 1),
        "leaf_weights": np.array([1.0, 2.0], np.float32),
    }
    return in_domain("TreeEnsemble", (_between(draw, rows, columns),), attributes, loose=None, version=5)


def _numbers(draw: Draw, count: int) -> tuple[float, ...]:
    return tuple(whole_numbers(random_of(draw), count, low=1).tolist())


@st.composite
def linear(draw: Draw, op: str) -> Case:
    """A product with coefficients; with a label of the greatest, if it classifies."""
    rows, columns = _rows(draw)
    # Different intercepts: else classes would tie wherever all columns are equal, and a last bit upstream would decide.
    attributes: dict[str, Attribute] = {"coefficients": _numbers(draw, CLASSES * columns), "intercepts": (1.0, 2.0, 3.0)}
    if op == "LinearRegressor":
        return in_domain(op, (whole_numbers(random_of(draw), rows, columns),), {**attributes, "targets": CLASSES})
    attributes |= {"classlabels_ints": tuple(range(CLASSES)), "multi_class": 1}
    return in_domain(op, (whole_numbers(random_of(draw), rows, columns),), attributes, loose=None, further=(1,))


@st.composite
def vectors(draw: Draw, op: str) -> Case:
    """Support vectors of two classes, or of a regression."""
    rows, columns = _rows(draw)
    count = 4
    kernel = draw(st.sampled_from(("LINEAR", "POLY", "RBF")))
    attributes: dict[str, Attribute] = {
        "kernel_type": kernel,
        "kernel_params": (0.5, 1.0, 2.0),
        "support_vectors": _numbers(draw, count * columns),
        "coefficients": _numbers(draw, count),
        "rho": (0.25,),
    }
    x = whole_numbers(random_of(draw), rows, columns)
    if op == "SVMRegressor":
        return in_domain(op, (x,), {**attributes, "n_supports": count}, exact=False, loose=None)
    attributes |= {"classlabels_ints": (3, 7), "vectors_per_class": (2, 2)}
    return in_domain(op, (x,), attributes, exact=False, loose=None, further=(1,))


@st.composite
def by_columns(draw: Draw, op: str) -> Case:
    """One number for all columns, or one for each."""
    rows, columns = _rows(draw)
    count = draw(st.sampled_from((1, columns)))
    x = whole_numbers(random_of(draw), rows, columns)
    loose = frozenset({(0, 1)})  # where columns stay together
    if op == "Scaler":
        return in_domain(op, (x,), {"offset": _numbers(draw, count), "scale": _numbers(draw, count)}, loose=loose)
    attributes: dict[str, Attribute] = {"imputed_value_floats": _numbers(draw, count), "replaced_value_float": 2.0}
    return in_domain(op, (x,), attributes, loose=loose)


@st.composite
def single(draw: Draw, op: str) -> Case:
    """A function of each element."""
    shape = draw(shapes(least=1, most=3, extent=4))
    if op == "Binarizer":
        return in_domain(op, (whole_numbers(random_of(draw), *shape),), {"threshold": 0.0}, loose=None)
    whole = random_of(draw).integers(0, 4, shape)
    if op == "CategoryMapper":
        attributes: dict[str, Attribute] = {"cats_int64s": (0, 1, 2), "cats_strings": ("a", "b", "c"), "default_string": "?"}
        return in_domain(op, (whole,), attributes, loose=None)
    return in_domain(op, (whole,), {"keys_int64s": (0, 1, 2), "values_floats": (0.5, 1.5, 2.5), "default_float": -1.0}, loose=None)


@st.composite
def normalizer(draw: Draw) -> Case:
    """By the largest, the sum or the length of a row."""
    rows, columns = _rows(draw)
    x = whole_numbers(random_of(draw), rows, columns, low=1)
    return in_domain("Normalizer", (x,), {"norm": draw(st.sampled_from(("MAX", "L1", "L2")))}, loose=None)


@st.composite
def one_hot_encoder(draw: Draw) -> Case:
    """A column for each category."""
    whole = random_of(draw).integers(0, 5, draw(shapes(least=1, most=2, extent=4)))
    return in_domain("OneHotEncoder", (whole,), {"cats_int64s": (0, 1, 2), "zeros": 1}, loose=None)


@st.composite
def columns_by_index(draw: Draw) -> Case:
    """Columns of rows, of one row or of a list, by one index or by indices that stand in one row or in several."""
    rows, columns = _rows(draw)
    random = random_of(draw)
    shape = draw(st.sampled_from(((), (3,), (1, 3), (4, 2), (2, 1))))
    indices = np.asarray(random.integers(0, columns, shape))
    x = random.permutation(rows * columns).reshape(rows, columns).astype(np.float32)
    x = x[0] if draw(st.booleans()) else x
    parameters = frozenset((1,)) if draw(st.booleans()) else frozenset[int]()
    return in_domain("ArrayFeatureExtractor", (x, indices), {}, parameters, loose=None, below={1: columns}, several_ranges=frozenset((0,)))


@st.composite
def vectorizer(draw: Draw) -> Case:
    """Parts side by side."""
    rows, first = _rows(draw)
    parts = tuple(whole_numbers(random_of(draw), rows, count) for count in (first, 2))
    return in_domain("FeatureVectorizer", parts, {"inputdimensions": (first, 2)})


@st.composite
def distances(draw: Draw) -> Case:
    """Of every row to every other, or their squares."""
    rows, columns = _rows(draw)
    random = random_of(draw)
    points = whole_numbers(random, rows, columns), whole_numbers(random, draw(st.integers(1, 5)), columns)
    metric = draw(st.sampled_from(("euclidean", "sqeuclidean")))
    return Case("CDist", points, {"metric": metric}, exact=False, loose=None, domain="com.microsoft")


ESTIMATORS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "ArrayFeatureExtractor": columns_by_index,
    "FeatureVectorizer": vectorizer,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "TreeEnsemble": trees_of_version_5,
    "TreeEnsembleClassifier": classifier_of_trees,
    "TreeEnsembleRegressor": regressor_of_trees,
    **{op: partial(linear, op) for op in ("LinearClassifier", "LinearRegressor")},
    **{op: partial(vectors, op) for op in ("SVMClassifier", "SVMRegressor")},
    **{op: partial(by_columns, op) for op in ("Imputer", "Scaler")},
    **{op: partial(single, op) for op in ("Binarizer", "CategoryMapper", "LabelEncoder")},
}
