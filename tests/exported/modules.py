"""Small networks of the well-known kinds, as torch modules with random weights that matter; every one comes with an example input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Bottleneck blocks with stride and projection (ResNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(
            nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 32, 1)
        )
        self.skip = nn.Conv2d(16, 32, 1, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.body(x) + self.skip(x))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Concatenated features (DenseNet) with average-pool transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 6, 3, padding=1)) for c in (3, 9, 15))
        self.head = nn.Conv2d(21, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.avg_pool2d(x, 2))


class Factorised(nn.Module):
    """1 x 7 and 7 x 1 kernels in branches (Inception)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 8, (1, 7), padding=(0, 3)), nn.ReLU(), nn.Conv2d(8, 8, (7, 1), padding=(3, 0)))
        self.pool = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.wide(x), self.pool(F.avg_pool2d(x, 3, 1, 1)), F.max_pool2d(x, 3, 1, 1)], 1)


class Shuffled(nn.Module):
    """Grouped convolutions and a channel shuffle (ShuffleNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 12, 1, groups=3)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.last = nn.Conv2d(12, 12, 1, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        n, c, h, w = x.shape
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.last(self.depthwise(x))


class Squeezed(nn.Module):
    """Squeeze and excitation inside, SiLU (EfficientNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 5, 2, 2, groups=16)
        self.down, self.up, self.project = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.depthwise(F.silu(self.expand(x))))
        return self.project(x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1))))))


class Next(nn.Module):
    """Depthwise 7 x 7, LayerNorm over channels last, GELU (ConvNeXt)."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)


class Dilated(nn.Module):
    """Dilated convolutions and a bilinear upsampling (segmentation)."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(4, 6, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.head = nn.Conv2d(18, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 2)
        x = self.head(torch.cat([F.relu(b(x)) for b in self.branches], 1))
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class Up(nn.Module):
    """Transposed convolution and a skip (U-Net)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.leave = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.enter(x))
        return self.leave(torch.cat([skip, self.up(F.relu(self.deep(F.max_pool2d(skip, 2))))], 1))


class Super(nn.Module):
    """Depth to space (super-resolution)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 9, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(x), 3)


class Attention(nn.Module):
    """Patches, multi-head attention written out, MLP (ViT, BERT)."""

    def __init__(self, *, causal: bool = False, patches: bool = True) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4) if patches else None
        self.embed = nn.Embedding(50, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) if self.patch is not None else self.embed(x)
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -1e9)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, 32))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Window(nn.Module):
    """Attention in rolled windows (Swin), without the attention: roll, partition, mix, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = torch.roll(x, (-2, -2), (2, 3)).view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
        y = self.mix(y.reshape(n, -1, 16, c).softmax(2)).view(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4)
        return torch.roll(y.reshape(n, c, h, w), (2, 2), (2, 3)) + x


class Recurrent(nn.Module):
    """LSTM or GRU over a sequence."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.cell, self.head = kind(6, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])


def images(*shape: int) -> Tensor:
    return torch.randn(*shape)


MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "resnet": (Residual, images(2, 3, 37, 41)),
    "densenet": (Dense, images(2, 3, 20, 18)),
    "inception": (Factorised, images(2, 3, 15, 17)),
    "shufflenet": (Shuffled, images(2, 6, 13, 12)),
    "efficientnet": (Squeezed, images(2, 4, 16, 18)),
    "convnext": (Next, images(2, 8, 14, 15)),
    "segmentation": (Dilated, images(2, 4, 24, 20)),
    "unet": (Up, images(2, 3, 16, 20)),
    "superresolution": (Super, images(2, 1, 12, 10)),
    "vit": (Attention, images(2, 3, 16, 20)),
    "bert": (lambda: Attention(patches=False), torch.randint(0, 50, (2, 11))),
    "gpt": (lambda: Attention(causal=True, patches=False), torch.randint(0, 50, (2, 9))),
    "swin": (Window, images(2, 8, 16, 12)),
    "lstm": (lambda: Recurrent(nn.LSTM), images(5, 7, 6)),
    "gru": (lambda: Recurrent(nn.GRU), images(5, 7, 6)),
    "audio1d": (lambda: nn.Sequential(nn.Conv1d(2, 8, 9, 4, 4), nn.GELU(), nn.Conv1d(8, 6, 5, dilation=2)), images(2, 2, 90)),
    "video3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(6, 4, 3)),
        images(2, 2, 10, 12, 9),
    ),
}
