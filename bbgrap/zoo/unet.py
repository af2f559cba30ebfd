"""U-Net for segmentation, with padding, so that the output has the size of the input. Ronneberger et al., arXiv:1505.04597."""

from __future__ import annotations

from bbgrap.graph.types import Graph
from bbgrap.zoo.builder import Builder

_WIDTH = 32
_LEVELS = 4


def unet() -> Graph:
    """Build a U-Net for 256x256 images and two classes per pixel: four levels, 32 channels at the first one."""
    b = Builder("unet", (1, 3, 256, 256))
    x = "input"
    skips: list[str] = []
    for level in range(_LEVELS):
        skips.append(_double_conv(b, x, f"down{level}", _WIDTH << level))
        x = b.max_pool(skips[-1], f"down{level}.pool", 2, 2)
    x = _double_conv(b, x, "bottom", _WIDTH << _LEVELS)
    for level in reversed(range(_LEVELS)):
        x = b.up_conv(x, f"up{level}.up", _WIDTH << level)
        x = _double_conv(b, b.concat([skips[level], x], f"up{level}.concat"), f"up{level}", _WIDTH << level)
    return b.graph(b.conv(x, "output", 2, 1, bias=True))


def _double_conv(b: Builder, x: str, name: str, channels: int) -> str:
    for k in (1, 2):
        x = b.act("Relu", b.norm(b.conv(x, f"{name}.conv{k}", channels, 3), f"{name}.bn{k}"), f"{name}.relu{k}")
    return x
