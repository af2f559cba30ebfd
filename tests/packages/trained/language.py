"""Trains a small language model for some seconds until it knows a verse by heart, and writes it as torch exports it.

`python language.py FILE` writes a decoder with a cache: any number of texts, of any length, after a past of any length or none.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as wherever torch is used

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from verse import LETTERS, VERSE, numbers_of

LAYERS, HEADS, WIDTH = 2, 4, 48
EACH = WIDTH // HEADS


class Block(nn.Module):
    """Attention over the past and itself, then a mixture of each place's own values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values, and the keys and values to be kept (2 x texts x heads x places x `EACH`)."""
        texts, places, _ = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(texts, places, 3, HEADS, EACH).permute(2, 0, 3, 1, 4)
        kept = torch.cat([past, torch.stack([key, value])], 3)
        scores = (query @ kept[0].transpose(-1, -2) / EACH**0.5).masked_fill(hidden, -1e9)
        x = x + self.out((scores.softmax(-1) @ kept[1]).transpose(1, 2).reshape(texts, places, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)))), kept


class Language(nn.Module):
    """The next letter after each letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(512, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, text: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of all letters for each place, and the past to be given with the next ones."""
        before, places = past.shape[4], text.shape[1]
        here = torch.arange(places) + before
        hidden = torch.arange(before + places)[None, :] > here[:, None]
        x, kept = self.letters(text) + self.places(here), []
        for number, block in enumerate(self.blocks):
            x, mine = block(x, past[number], hidden)
            kept.append(mine)
        return self.head(self.norm(x)), torch.stack(kept)


def trained(steps: int = 450) -> Language:
    torch.set_num_threads(1)  # small layers: threads would wait for each other more than they work
    torch.manual_seed(5)
    model, verse = Language(), torch.from_numpy(numbers_of(VERSE))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        starts = torch.randint(0, len(verse) - 49, (8,)).tolist()
        text = torch.stack([verse[start : start + 49] for start in starts])
        scores, _ = model(text[:, :-1], torch.zeros(LAYERS, 2, len(text), HEADS, 0, EACH))
        loss = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def export(model: Language, path: Path) -> None:
    free = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(3, 5, dtype=torch.long), torch.zeros(LAYERS, 2, 3, HEADS, 7, EACH)),
            str(path),
            dynamo=True,
            dynamic_shapes=({0: free, 1: free}, {2: free, 4: free}),
            input_names=["text", "past"],
            output_names=["scores", "present"],
            external_data=False,
            verbose=False,
        )


if __name__ == "__main__":
    export(trained(), Path(sys.argv[1]))
