"""What onnxconverter-common makes of networks: all in float16, with and without casts at the ends, or as much as keeps the answer."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np
import onnx

from tests.fuzzing.bases import base_sample
from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError


def sample(seed: int) -> Sample:
    """Return a model in float16.

    Raises:
        NotMadeError: if the converter fails.
    """
    from onnxconverter_common import auto_mixed_precision, float16

    random = np.random.default_rng((seed, 4))
    base = base_sample(seed, any_operator=True)
    model, keep = onnx.load_from_string(base.model), bool(random.random() < 0.5)
    form = "mixed" if seed % 8 == 7 else "float16"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if form == "mixed":
                made: Any = auto_mixed_precision.auto_convert_mixed_precision(model, base.feeds, rtol=1e-2, atol=1e-3, keep_io_types=keep)
            else:
                made = float16.convert_float_to_float16(model, keep_io_types=keep, check_fp16_ready=False)
    except Exception as error:
        raise NotMadeError(f"{form}: {type(error).__name__}: {' '.join(str(error).split())[:60]}") from None
    types = {value.name: value.type.tensor_type.elem_type for value in made.graph.input}
    feeds = {
        name: array.astype(np.float16) if types.get(name) == onnx.TensorProto.FLOAT16 else array
        for name, array in base.feeds.items()
        if name in types
    }
    return Sample(f"{form}{seed}", made.SerializeToString(), feeds)
