"""Trains a detector of drawn shapes for some seconds and writes it as torch exports it, with the suppression of overlapping boxes inside.

`python detector.py FILE` writes a model of pictures of any size; how many boxes it keeps depends on what is to be seen.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as wherever torch is used

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from shapes import KINDS, scene

STRIDE = 8


class Detector(nn.Module):
    """For every cell of `STRIDE` pixels: how surely a shape of each kind is there, and how far its box reaches (no anchors, as FCOS)."""

    def __init__(self) -> None:
        super().__init__()

        def down(narrow: int, wide: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(narrow, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())

        self.fine = nn.Sequential(down(3, 12), down(12, 24), down(24, 48))
        self.coarse = nn.Sequential(down(48, 64), nn.Conv2d(64, 64, 3, padding=1), nn.SiLU())
        self.merge = nn.Sequential(nn.Conv2d(48 + 64, 48, 3, padding=1), nn.SiLU())
        self.kinds, self.reach = nn.Conv2d(48, len(KINDS), 1), nn.Conv2d(48, 4, 1)

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes (y1, x1, y2, x2 in pixels, a row per cell) and the scores (a row per kind)."""
        fine = self.fine(picture)
        coarse = F.interpolate(self.coarse(fine), size=fine.shape[2:], mode="nearest")
        merged = self.merge(torch.cat([fine, coarse], 1))
        rows, columns = fine.shape[2], fine.shape[3]
        y, x = (torch.arange(count, device=picture.device) * STRIDE + STRIDE / 2 for count in (rows, columns))
        centre = torch.stack([y[:, None].expand(rows, columns), x[None, :].expand(rows, columns)])
        reach = self.reach(merged).exp() * STRIDE
        boxes = torch.cat([centre - reach[:, :2], centre + reach[:, 2:]], 1)
        return boxes.flatten(2).transpose(1, 2), self.kinds(merged).sigmoid().flatten(2)


def trained(steps: int = 200) -> Detector:
    torch.set_num_threads(1)  # small layers: threads would wait for each other more than they work
    torch.manual_seed(5)
    dice = np.random.default_rng(5)
    detector = Detector()
    optimizer = torch.optim.AdamW(detector.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        pictures, truths = zip(*(scene(dice, 128, 128, int(dice.integers(1, 5))) for _ in range(8)), strict=True)
        boxes, scores = detector(torch.from_numpy(np.concatenate(pictures)))
        loss = sum(loss_of(boxes[i], scores[i], truth) for i, truth in enumerate(truths))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return detector.eval()


def loss_of(boxes: Tensor, scores: Tensor, truth: list[tuple[int, tuple[int, int, int, int]]]) -> Tensor:
    """Cells in the middle of a shape shall see it; where a cell does, its box shall fit."""
    count = 128 // STRIDE
    centre = (torch.arange(count) + 0.5) * STRIDE
    wanted, loss = torch.zeros_like(scores), torch.zeros(())
    for kind, (y1, x1, y2, x2) in truth:
        near_y = (centre - (y1 + y2) / 2).abs() < (y2 - y1) / 4
        near_x = (centre - (x1 + x2) / 2).abs() < (x2 - x1) / 4
        inside = (near_y[:, None] & near_x[None, :]).flatten()
        wanted[kind, inside] = 1
        loss = loss + (boxes[inside] - torch.tensor([y1, x1, y2, x2])).abs().sum() / 100
    return loss + F.binary_cross_entropy(scores, wanted, reduction="sum")


def export(detector: Detector, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            detector,
            (torch.zeros(1, 3, 128, 160),),
            dynamo=True,
            dynamic_shapes=({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},),
            input_names=["picture"],
            output_names=["boxes", "scores"],
            verbose=False,
        )
    onnx.save(with_suppression(program.model_proto), path)


def with_suppression(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the choice of boxes: rows of picture, kind and cell."""
    limits = {"most": np.array([9], np.int64), "overlap": np.array([0.4], np.float32), "least": np.array([0.4], np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in limits.items())
    model.graph.node.append(helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["kept"], "suppress"))
    model.graph.output.append(helper.make_tensor_value_info("kept", TensorProto.INT64, ["boxes kept", 3]))
    return model


if __name__ == "__main__":
    export(trained(), Path(sys.argv[1]))
