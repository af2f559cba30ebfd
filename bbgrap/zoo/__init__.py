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
from bbgrap.zoo import decoder, llama, voice
from bbgrap.zoo.convolutional import alexnet, mobilenet_v2, resnet50, resnet152, tiny, unet, vgg16
from bbgrap.zoo.forests import forest
from bbgrap.zoo.quantized import measured_ranges, quantized
from bbgrap.zoo.vit import vit_b16
from bbgrap.zoo.yolo import yolo

__all__ = ["build", "materialize", "names"]

_RECIPE = 1
"""Part of every file's name; to be raised when a network here changes, so that no stale file is used."""

_BUILDERS: dict[str, Callable[[], Graph]] = {
    recipe.__name__: recipe for recipe in (alexnet, mobilenet_v2, resnet50, resnet152, tiny, unet, vgg16, vit_b16, yolo)
}


def _in_8_bits(recipe: Callable[[], Graph]) -> Graph:
    return quantized(recipe(), f"{recipe.__name__}_int8", measured_ranges(recipe.__name__))


_BUILDERS |= {f"{recipe.__name__}_int8": partial(_in_8_bits, recipe) for recipe in (mobilenet_v2, resnet50, tiny)}

_BUILDERS |= {"gpt2": decoder.gpt2, "gpt2-gqa": decoder.gpt2_gqa, "tiny-decoder": decoder.tiny_decoder, "voice": voice.voice}
_BUILDERS["forest"] = forest
_BUILDERS |= {"tiny-llama": llama.tiny_llama, "tiny-llama-int4": llama.tiny_llama_int4}

_FREE: dict[str, Callable[[Graph], FreeAxes]] = {
    **dict.fromkeys(("gpt2", "gpt2-gqa", "tiny-decoder"), decoder.free_axes),
    **dict.fromkeys(("tiny-llama", "tiny-llama-int4"), llama.free_axes),
    "voice": voice.free_axes,
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
