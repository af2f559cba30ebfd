"""Well-known networks, built here with seeded random weights: no download, and the same file, to the byte, wherever it is built.

They have the layers, shapes and parameter counts of the originals, but know nothing: they are for measuring and testing. Those whose names
end with `_int8` are quantized, in the QDQ form. Decoders and the voice model take and give a state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import FreeAxes, free_batch, save_graph
from bbgrap.graph.types import Graph
from bbgrap.user_folders import cache_folder
from bbgrap.zoo.convolutional import alexnet, mobilenet_v2, resnet, unet, vgg16
from bbgrap.zoo.decoder import DecoderSizes, decoder
from bbgrap.zoo.decoder import free_axes as free_axes_of_decoder
from bbgrap.zoo.forests import forest
from bbgrap.zoo.llama import free_axes as free_axes_of_llama
from bbgrap.zoo.llama import llama
from bbgrap.zoo.quantized import measured_ranges, quantized
from bbgrap.zoo.vit import vit
from bbgrap.zoo.voice import free_axes as free_axes_of_voice
from bbgrap.zoo.voice import voice
from bbgrap.zoo.yolo import yolo

__all__ = ["build", "materialize", "names"]

_RECIPE = 1
"""Part of every file's name; to be raised when a network here changes, so that no stale file is used."""

_DECODERS = {
    "gpt2": DecoderSizes(12, 768, 12, 12, 50_257, 1024),  # the small one of 124 million parameters
    "gpt2-gqa": DecoderSizes(12, 768, 12, 4, 50_257, 1024),
    "tiny-decoder": DecoderSizes(2, 64, 4, 4, 1000, 128),
}
_LLAMAS = {"tiny-llama": 32, "tiny-llama-int4": 4}
"""Bits of their weights."""

_BUILDERS: dict[str, Callable[[], Graph]] = {
    recipe.__name__: recipe for recipe in (alexnet, forest, mobilenet_v2, unet, vgg16, voice, yolo)
}
_BUILDERS |= {name: partial(resnet, name, depths) for name, depths in (("resnet50", (3, 4, 6, 3)), ("resnet152", (3, 8, 36, 3)))}
_BUILDERS["tiny"] = partial(resnet, "tiny", (1, 1, 1), size=32, width=8, classes=10)
_BUILDERS["vit_b16"] = partial(vit, "vit_b16", depth=12, width=768, heads=12, size=224, patch=16, classes=1000)
_BUILDERS |= {name: partial(decoder, name, sizes) for name, sizes in _DECODERS.items()}
_BUILDERS |= {name: partial(llama, name, DecoderSizes(2, 64, 4, 2, 1000, 128), bits=bits) for name, bits in _LLAMAS.items()}


def _in_8_bits(name: str) -> Graph:
    return quantized(build(name), f"{name}_int8", measured_ranges(name))


_BUILDERS |= {f"{name}_int8": partial(_in_8_bits, name) for name in ("mobilenet_v2", "resnet50", "tiny")}

_FREE: dict[str, Callable[[Graph], FreeAxes]] = {
    **dict.fromkeys(_DECODERS, free_axes_of_decoder),
    **dict.fromkeys(_LLAMAS, free_axes_of_llama),
    "voice": free_axes_of_voice,
}
"""What is free in files of networks that have more than a batch, or have it elsewhere than in front."""


def names() -> tuple[str, ...]:
    """Return the names of all networks, sorted."""
    return tuple(sorted(_BUILDERS))


def build(name: str) -> Graph:
    """Build a network for batch 1, a decoder for one word after 31.

    Raises:
        ModelError: if there is no network of this name.
    """
    try:
        return _BUILDERS[name]()
    except KeyError:
        raise ModelError(f"zoo: there is no model '{name}'; there are {', '.join(names())}") from None


def materialize(name: str, cache_dir: Path | None = None) -> Path:
    """Return the ONNX file of a network; build it if it is not there yet.

    The batch is free (N); of decoders `batch_size`, `sequence_length` and `past_sequence_length` are.

    Args:
        name: One of `names()`.
        cache_dir: Where files are kept; default `$XDG_CACHE_HOME/bbgrap/zoo`, or `~/.cache/bbgrap/zoo`.

    Raises:
        ModelError: if there is no network of this name, or the file cannot be written.
    """
    if name not in _BUILDERS:
        build(name)
    directory = cache_dir or cache_folder() / "zoo"
    path = directory / f"{name}-{_RECIPE}.onnx"
    if not path.exists():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory) as scratch:  # whoever else builds it now does the same
                draft = Path(scratch) / path.name
                graph = build(name)
                save_graph(graph, draft, free=_FREE.get(name, free_batch)(graph))
                if not path.exists():  # of one that is replaced sessions may have been made
                    draft.replace(path)
        except OSError as error:
            raise ModelError(
                f"zoo: '{path}' cannot be written: {error.strerror or error}; choose another folder by XDG_CACHE_HOME"
            ) from None
    return path
