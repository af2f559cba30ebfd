"""What `inspect` says."""

from __future__ import annotations

from bbgrap.planners.inspection import inspect_graph
from bbgrap.zoo import build


def test_parameters_work_and_axes_of_a_known_model() -> None:
    found = inspect_graph(build("mobilenet_v2"))
    assert found["parameters"] == 3_504_872 + 2 * 17_056 + 2  # as published, means and variances, two limits
    assert abs(found["flops"] - 2 * 300e6) < 30e6  # 300 million multiply-adds are published
    conv = next(layer for layer in found["layers"] if layer["operator"] == "Conv")
    assert conv["splits_along"] == [1, 2, 3]
    assert conv["reduces_over"] == ["ci"]
    assert not any(layer["whole_because"] for layer in found["layers"])


def test_a_lookup_among_words_is_no_work() -> None:
    found = {layer["operator"]: layer["flops"] for layer in inspect_graph(build("tiny-decoder"))["layers"]}
    assert found["Gather"] == 0
    assert found["MatMul"] > 0
