"""Estimators of `ai.onnx.ml`, and what prepares features for them: each answers row by row, so rows split.

X is [N, C]. Labels are [N] and scores [N, E]: the columns that an estimator reads and writes stay together. Counts of work are chosen
after measured times of onnxruntime 1.31; all are loops over single numbers, the kind of work `scalar`.
"""

from __future__ import annotations

from math import log2

import numpy as np

from bbgrap.graph.types import LongList
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Description, Opaque, operand
from bbgrap.tdl.operators.common import Reads, but, cropped, output_indices, spatial_interval, with_whole_axes
from bbgrap.tdl.operators.indexing import describe_one_hot
from bbgrap.tdl.rule import LocalNode, OperatorRule, Site, register, same_node

DOMAIN = "ai.onnx.ml"

VISIT_FLOPS = 12
"""Of one node of a tree that a row passes: it mostly waits for memory."""

KERNEL_FLOPS = 20
"""Of the exponential, or the like, of one support vector."""

_TREES = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
_VECTORS = ("SVMClassifier", "SVMRegressor")
_LINEAR = ("LinearClassifier", "LinearRegressor")
ESTIMATORS = (*_TREES, *_VECTORS, *_LINEAR)

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Scaler": ("offset", "scale"),
    "Imputer": ("imputed_value_floats", "imputed_value_int64s"),
    **dict.fromkeys(("Binarizer", "CategoryMapper", "LabelEncoder"), ()),
}
"""Of operators that work column by column, attributes with a number for every column, or one for all."""


def describe_estimator(site: Site) -> Description | None:
    """labels[n] = f(x[n, :]), scores[n, :] = g(x[n, :])."""
    made = [kind.known_shape for kind in site.outputs]
    rows, columns = site.shape(0) if len(site.shape(0)) == 2 else (0, 0)
    if any(shape[:1] != (rows,) for shape in made):
        return None
    n, *columns_made = output_indices(site)
    flops = -(-_flops_of_row(site, columns) // max(1, site.outputs[0].known_shape[-1] if columns_made else 1))
    body = Opaque(site.node.op, (operand(0)[n, ALL],), tuple(columns_made), flops)
    return Description((n, *columns_made), body, tuple((n, *(ALL,) * (len(shape) - 1)) for shape in made[1:]))


def _flops_of_row(site: Site, columns: int) -> int:
    """Return the operations of all trees, vectors or coefficients on one row."""
    if site.node.op in _TREES:
        return round(VISIT_FLOPS * _visits(site))
    if site.node.op in _LINEAR:
        return 2 * _length(site, "coefficients")
    vectors = _length(site, "support_vectors") // max(1, columns)
    return vectors * (2 * columns + KERNEL_FLOPS) if vectors else 2 * _length(site, "coefficients")


def _visits(site: Site) -> float:
    """Return how many nodes a row passes in all trees: in balanced trees, the logarithm of the leaves of each."""
    if site.node.op == "TreeEnsemble":
        trees, leaves = _length(site, "tree_roots"), _length(site, "leaf_targetids")
    else:
        numbers, modes = site.node.attributes.get("nodes_treeids", ()), site.node.attributes.get("nodes_modes", ())
        trees = len({*numbers} if isinstance(numbers, tuple) else np.unique(numbers.array) if isinstance(numbers, LongList) else ())
        leaves = modes.count("LEAF") if isinstance(modes, tuple) else 0
    return trees * (1 + log2(leaves / trees)) if 0 < trees <= leaves else 1


def _length(site: Site, attribute: str) -> int:
    value = site.node.attributes.get(attribute, ())
    return len(value) if isinstance(value, (tuple, LongList)) else 0


def describe_by_columns(site: Site) -> Description | None:
    """out[..., c] = f(x[..., c]), with parameters for each column or, then columns split, too, for all."""
    out = output_indices(site)
    if not out or site.output_shape != site.shape(0):
        return None
    several = any(_length(site, name) > 1 for name in _PARAMETERS[site.node.op])
    fixed = {len(out) - 1} if several else set[int]()
    return with_whole_axes(site.node.op, out, [operand(0)[but(out, fixed)]], fixed)


def describe_columns(site: Site) -> Description | None:
    """out[i..., k] = x[i..., y[k]]; of an index with rows, y[k // K, k % K]; of a list there is one row, of a single index one column."""
    out, given = output_indices(site), site.shape(1)
    *rows, k = out
    before = [] if len(site.shape(0)) == 1 else rows
    if len(site.shape(0)) != len(before) + 1 or any(extent != 1 for extent in given[:-2]):
        return None
    index = (*(0,) * (len(given) - 2), k // given[-1], ALL) if len(given) > 1 else (k,) * len(given)
    return Description(out, Opaque("ArrayFeatureExtractor", (operand(0)[*before, ALL], operand(1)[index]), ()))


def localize_columns(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same node; of rows of indices, of which only a part is wanted, a part of what they make."""
    nodes, chosen = same_node(site, region, reads), reads[1]
    if chosen is None or chosen.rank < 2:
        return nodes
    axis, within = region.rank - 1, site.shape(1)[-1]
    first = chosen.axes[-2].ranges[0].start
    begins = spatial_interval(site, region, axis).start - first * within
    return cropped(nodes, region, {axis: (begins, chosen.size)})


def describe_vectorizer(site: Site) -> Description | None:
    """out[n, :] = the rows n of all operands, side by side."""
    n, columns = output_indices(site)
    reads = [operand(number)[n, ALL] for number in range(len(site.inputs))]
    return Description((n, columns), Opaque("FeatureVectorizer", tuple(reads), (columns,)))


def describe_distances(site: Site) -> Description | None:
    """out[n, m] = distance of a[n, :] and b[m, :]."""
    n, m = output_indices(site)
    return Description((n, m), Opaque("CDist", (operand(0)[n, ALL], operand(1)[m, ALL]), (), 2 * site.shape(0)[1]))


register(OperatorRule(describe_estimator), *ESTIMATORS, domain=DOMAIN)
register(OperatorRule(describe_by_columns), *_PARAMETERS, domain=DOMAIN)
register(OperatorRule(describe_one_hot), "OneHotEncoder", domain=DOMAIN)
register(OperatorRule(describe_columns, localize_columns), "ArrayFeatureExtractor", domain=DOMAIN)
register(OperatorRule(describe_vectorizer), "FeatureVectorizer", domain=DOMAIN)
register(OperatorRule(describe_distances), "CDist", domain="com.microsoft")
