"""The torch modules of the export tests, and single layers with odd arguments, by both of torch's exporters."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError


def _layers(random: np.random.Generator) -> list[Callable[[], Any]]:
    """Return layers on maps of 6 channels."""
    from torch import nn

    kernel, stride, size = (
        int(random.integers(2, 5)),
        int(random.integers(1, 4)),
        (int(random.integers(3, 19)), int(random.integers(3, 19))),
    )
    scale = (float(random.choice([2.3, 1.7, 0.6, 2.0])),) * 2
    mode = str(random.choice(["nearest", "bilinear", "bicubic"]))
    padding = str(random.choice(["zeros", "reflect", "replicate", "circular"]))
    return [
        lambda: nn.MaxPool2d(kernel, stride, kernel // 2, ceil_mode=True),
        lambda: nn.AvgPool2d(kernel, stride, kernel // 2, ceil_mode=True, count_include_pad=bool(stride % 2)),
        lambda: nn.Upsample(scale_factor=scale, mode=mode),
        lambda: nn.Upsample(size=size, mode=mode),
        lambda: nn.Conv2d(6, 9, kernel, stride, kernel // 2, groups=3, padding_mode=padding),
        lambda: nn.ConvTranspose2d(6, 4, kernel, stride, kernel // 2, output_padding=stride - 1, groups=2),
        lambda: nn.AdaptiveAvgPool2d((2, 3)),
        lambda: nn.AdaptiveMaxPool2d(1),
        lambda: nn.Sequential(nn.GroupNorm(3, 6), nn.Hardswish()),
        lambda: nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.PReLU(6)),
        lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(24, 8, 1), nn.PixelShuffle(2)),
        lambda: nn.Sequential(nn.Unfold(3, stride=stride), nn.Softmax(1)),
        lambda: nn.Sequential(nn.LPPool2d(2, kernel, stride), nn.LocalResponseNorm(3)),
        lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(16 * 12, 4, 32, batch_first=True)),
        lambda: nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(6, 6, 3, dilation=2), nn.GELU(), nn.LayerNorm(12)),
    ]


def _module(seed: int) -> tuple[Any, Any]:
    import torch

    from tests.exported.modules import MODULES

    torch.manual_seed(seed)
    random = np.random.default_rng((seed, 6))
    kinds = seed // 2
    if kinds % 2:
        make, example = MODULES[sorted(MODULES)[kinds // 2 % len(MODULES)]]
        return make().eval(), example
    layers = _layers(random)
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, padding=1), layers[kinds // 2 % len(layers)]())
    return body.eval(), torch.randn(2, 3, 16, 12)


def sample(seed: int) -> Sample:
    """Return an exported module: even seeds by the older exporter, odd ones by the newer.

    Raises:
        NotMadeError: if the exporter fails.
    """
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, example = _module(seed)
            if seed % 2:
                program = torch.onnx.export(module, (example,), input_names=["x"], dynamo=True, external_data=False, verbose=False)
                file.write(program.model_proto.SerializeToString())
            else:
                torch.onnx.export(module, (example,), file, input_names=["x"], dynamo=False, opset_version=17)
    except Exception as error:
        raise NotMadeError(f"{type(error).__name__}: {' '.join(str(error).split())[:80]}") from None
    return Sample(f"torch{seed}", file.getvalue(), {"x": example.numpy()})
