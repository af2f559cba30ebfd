"""Writing a module's ONNX file with one of torch's two exporters."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from bbgrap.graph.types import Array
from tests.exported.modules import MODULES


def exported(name: str, path: Path, *, dynamo: bool) -> Array:
    """Export a module of `MODULES`, with weights from a seed, and return its example input."""
    make, example = MODULES[name]
    torch.manual_seed(3)
    module = make().eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.running_var, 0.5, 1.5)
            torch.nn.init.normal_(layer.running_mean, 0, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"dynamo": True, "external_data": False} if dynamo else {"dynamo": False, "opset_version": 17}
        torch.onnx.export(module, (example,), str(path), input_names=["x"], **options)
    return example.numpy()
