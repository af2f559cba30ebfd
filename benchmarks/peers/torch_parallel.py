"""torch's own tensor-parallel layers over gloo: one process a node, every linear layer of a transformer on both.

`ColwiseParallel` and `RowwiseParallel` divide `Linear` and `Embedding`, so transformers can be run: of bbgrap's zoo ViT-B/16, built here of
torch's modules with the file's weights. Convolutions they do not divide. All processes work on one request at a time.
`python -m benchmarks.peers.torch_parallel ADDRESS MODEL` is the second process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from bbgrap.graph import Array
from benchmarks.machines import free_port
from benchmarks.peers.peer import Answers, Feeds, Peer, Running, Setting
from benchmarks.testbed import process_at

if TYPE_CHECKING:
    import torch

_MARK = "layer0.attention.query.split.shape"
"""What the zoo's vision transformers have: batch, tokens, heads, size of a head."""
_FOR_EVER = timedelta(days=1)
"""Between two turns the second process waits for the first one."""
_STOP = -1


def _refuses(path: Path) -> str:
    names = {item.name for item in onnx.load(path, load_external_data=False).graph.initializer}
    return "" if _MARK in names else "torch's tensor-parallel layers are Linear and Embedding: they divide no convolutions"


def _weights(path: Path) -> dict[str, Array]:
    return {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def _module(weights: Mapping[str, Array], mesh: Any) -> torch.nn.Module:  # noqa: ANN401 - torch is imported where it is used
    """Build the vision transformer of a file, its linear layers divided over a mesh."""
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(weights[name]))

    def linear(name: str, *, transposed: bool = True) -> nn.Linear:
        weight = tensor(f"{name}.weight").T.contiguous() if transposed else tensor(f"{name}.weight")
        layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(tensor(f"{name}.bias"))
        return layer

    def norm(name: str) -> nn.LayerNorm:
        layer = nn.LayerNorm(weights[f"{name}.weight"].shape[0], eps=1e-6, device="meta")
        layer.weight, layer.bias = nn.Parameter(tensor(f"{name}.weight")), nn.Parameter(tensor(f"{name}.bias"))
        return layer

    size = int(weights[_MARK][3])

    class Block(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(f"{name}.norm1"), norm(f"{name}.norm2")
            self.query, self.key, self.value, self.output = (
                linear(f"{name}.attention.{part}") for part in ("query", "key", "value", "output")
            )
            self.up, self.down = linear(f"{name}.mlp.up"), linear(f"{name}.mlp.down")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)
            heads = (part(y).unflatten(-1, (-1, size)).transpose(1, 2) for part in (self.query, self.key, self.value))
            x = x + self.output(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.bias = (nn.Parameter(tensor(f"patches.{part}")) for part in ("weight", "bias"))
            self.token, self.positions = (nn.Parameter(tensor(name)) for name in ("class_token", "positions"))
            depth = len({name.partition(".")[0] for name in weights if name.startswith("layer")})
            self.blocks = nn.Sequential(*(Block(f"layer{number}") for number in range(depth)))
            self.norm, self.output = norm("norm"), linear("output", transposed=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.conv2d(x, self.patches, self.bias, stride=self.patches.shape[-1]).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
            return self.output(self.norm(self.blocks(x))[:, 0])

    model = Transformer().eval()
    columns = {part: ColwiseParallel() for part in ("query", "key", "value", "up")}
    rows = {part: RowwiseParallel() for part in ("output", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, {**columns, **rows})
    return model


class _Rank:
    """One of the two processes; both do the same at the same time."""

    def __init__(self, address: str, rank: int, path: Path) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=_FOR_EVER)
        self._model = _module(_weights(path), distributed.init_device_mesh("cpu", (2,)))

    def run(self, image: torch.Tensor | None) -> torch.Tensor | None:
        """Work on a request that the first process has; returns its answer, None after the last one."""
        import torch
        from torch import distributed

        shape = torch.tensor([_STOP] * 4 if image is None else image.shape)
        distributed.broadcast(shape, 0)
        if shape[0] == _STOP:
            return None
        image = torch.empty(*shape.tolist()) if image is None else image
        distributed.broadcast(image, 0)
        with torch.no_grad():
            found: torch.Tensor = self._model(image)
        return found


@contextmanager
def _open(setting: Setting) -> Iterator[Running]:
    import os

    import torch
    from torch import distributed

    # Without a name it takes the address that the host's name has, which is none in a namespace.
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if setting.places[0].namespace else "lo"
    address = f"tcp://{setting.hosts[0]}:{free_port(setting.hosts[0])}"
    log = setting.home / "torch1.log"
    with process_at(setting.places[1], log, __name__, address, str(setting.path)) as other:
        rank = _Rank(address, 0, setting.path)

        def run(feeds: Feeds) -> Answers:
            (image,) = feeds.values()
            found = rank.run(torch.from_numpy(image))
            assert found is not None
            return [found.numpy()]

        yield Running(run, lambda feeds: lambda: run(feeds))
        rank.run(None)
        other.wait(10)
        distributed.destroy_process_group()


PEER = Peer("torch", "torch's tensor-parallel layers over gloo", _open, {"torch": "torch"}, refuses=_refuses)

if __name__ == "__main__":
    second = _Rank(sys.argv[1], 1, Path(sys.argv[2]))
    while second.run(None) is not None:
        pass
