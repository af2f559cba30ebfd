"""A detector shaped like YOLOv5s: cross-stage blocks, spatial pyramid pooling, a feature pyramid up and down, three heads.

Boxes are not decoded: each of the 25,200 rows holds sigmoids of 4 coordinates, objectness and 80 classes.
"""

from __future__ import annotations

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder

_ANCHORS = 3
_FIELDS = 85

_RESIDUAL_GAIN = 0.3
"""Scale of the last batch-norm of a residual block, so that sums do not grow with the number of blocks."""

_HEAD_GAIN = 0.1
"""Scale of the last convolutions: the sigmoids after them stay away from 0 and 1."""


def yolo() -> Graph:
    """Build the detector for 640x640 images."""
    b = Builder("yolo", (1, 3, 640, 640))
    x = _conv(b, "input", "stem", 32, 6, stride=2, pad=2)
    x = _c3(b, _conv(b, x, "down1", 64, 3, stride=2), "c3_1", 64, 1)
    p3 = _c3(b, _conv(b, x, "down2", 128, 3, stride=2), "c3_2", 128, 2)
    p4 = _c3(b, _conv(b, p3, "down3", 256, 3, stride=2), "c3_3", 256, 3)
    p5 = _c3(b, _conv(b, p4, "down4", 512, 3, stride=2), "c3_4", 512, 1)
    p5 = _sppf(b, p5, "sppf", 512)

    top = _conv(b, p5, "lateral5", 256, 1)
    x = b.concat([b.double(top, "up5"), p4], "merge4")
    middle = _conv(b, _c3(b, x, "c3_5", 256, 1, residual=False), "lateral4", 128, 1)
    x = b.concat([b.double(middle, "up4"), p3], "merge3")
    out3 = _c3(b, x, "c3_6", 128, 1, residual=False)
    x = b.concat([_conv(b, out3, "down5", 128, 3, stride=2), middle], "merge4b")
    out4 = _c3(b, x, "c3_7", 256, 1, residual=False)
    x = b.concat([_conv(b, out4, "down6", 256, 3, stride=2), top], "merge5b")
    out5 = _c3(b, x, "c3_8", 512, 1, residual=False)
    return b.graph(b.concat([_head(b, x, f"head{k}") for k, x in ((3, out3), (4, out4), (5, out5))], "output", axis=1))


def _conv(b: Builder, x: str, name: str, channels: int, kernel: int, *, stride: int = 1, pad: int | None = None, gain: float = 1.0) -> str:
    """Add convolution, batch-norm and SiLU, the latter written as `x * sigmoid(x)`."""
    x = b.norm(b.conv(x, name, channels, kernel, stride=stride, pad=pad), f"{name}.bn", gain=gain)
    return b.binary("Mul", x, b.act("Sigmoid", x, f"{name}.sigmoid"), f"{name}.silu")


def _c3(b: Builder, x: str, name: str, channels: int, depth: int, *, residual: bool = True) -> str:
    half = channels // 2
    y = _conv(b, x, f"{name}.cv1", half, 1)
    for k in range(depth):
        z = _conv(b, y, f"{name}.m{k}.cv1", half, 1)
        z = _conv(b, z, f"{name}.m{k}.cv2", half, 3, gain=_RESIDUAL_GAIN if residual else 1.0)
        y = b.binary("Add", y, z, f"{name}.m{k}.add") if residual else z
    return _conv(b, b.concat([y, _conv(b, x, f"{name}.cv2", half, 1)], f"{name}.concat"), f"{name}.cv3", channels, 1)


def _sppf(b: Builder, x: str, name: str, channels: int) -> str:
    pools = [_conv(b, x, f"{name}.cv1", channels // 2, 1)]
    for k in range(3):
        pools.append(b.max_pool(pools[-1], f"{name}.pool{k}", 5, 1, 2))
    return _conv(b, b.concat(pools, f"{name}.concat"), f"{name}.cv2", channels, 1)


def _head(b: Builder, x: str, name: str) -> str:
    h, w = b.shape(x)[2:]
    x = b.conv(x, name, _ANCHORS * _FIELDS, 1, bias=True, gain=_HEAD_GAIN)
    x = b.reshape(x, f"{name}.split", (_ANCHORS, _FIELDS, h * w))
    x = b.transpose(x, f"{name}.order", (0, 1, 3, 2))
    x = b.act("Sigmoid", x, f"{name}.sigmoid")
    return b.reshape(x, f"{name}.rows", (_ANCHORS * h * w, _FIELDS))
