"""Models that nnsmith solves for: shapes and attributes are solutions of constraints, so unusual ones."""

from __future__ import annotations

import io
import warnings
from functools import cache
from typing import Any

import numpy as np

from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError

MOST_NODES = 20
MOST_ELEMENTS = 4096
SOLVER_MS = 5000


@cache
def _tools() -> tuple[Any, list[Any]]:
    """Return nnsmith's kind of torch model and the operators that ONNX has."""
    warnings.simplefilter("ignore")  # nnsmith asks for a drawing package at import
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.materialize import Model

    kind = Model.init("torch", backend_target="cpu")
    kind.add_seed_setter()
    operators = sorted(Model.init("onnx", backend_target="cpu").operators(), key=lambda operator: str(operator.name()))
    activate_ext(opset=operators, factory=None)
    return kind, operators


def sample(seed: int) -> Sample:
    """Return the model of a seed, exported by torch.

    Raises:
        NotMadeError: if the solver, torch or its exporter fails.
    """
    import torch
    from nnsmith.abstract.dtype import DType
    from nnsmith.graph_gen import model_gen

    kind, operators = _tools()
    nodes = int(np.random.default_rng(seed).integers(3, MOST_NODES + 1))
    types = [str(dtype.name) for dtype in (DType.float32, DType.float64, DType.float16, DType.int32, DType.int64, DType.bool)]
    try:
        generated = model_gen(
            opset=operators,
            method="symbolic-cinit",
            seed=seed,
            max_nodes=nodes,
            max_elem_per_tensor=MOST_ELEMENTS,
            timeout_ms=SOLVER_MS,
            dtype_choices=types,
        )
        model = kind.from_gir(generated.make_concrete())
        model.refine_weights()
        feeds = {name: np.asarray(array) for name, array in model.make_oracle().input.items()}
        network, file = model.torch_model.eval(), io.BytesIO()
        network.disable_proxy_grad()
        given = tuple(torch.from_numpy(np.array(feeds[name])) for name in network.input_like)
        names = {"input_names": list(network.input_like), "output_names": list(network.output_like)}
        torch.onnx.export(network, given, file, opset_version=17, dynamo=False, do_constant_folding=False, **names)
    except Exception as error:
        raise NotMadeError(f"{type(error).__name__}: {' '.join(str(error).split())[:80]}") from None
    return Sample(f"nnsmith{seed}", file.getvalue(), feeds)
