"""The ONNX backend interface over an in-process partition: what the standard's own test suite, and tools built on it, can drive.

The number of devices comes from `BBGRAP_BACKEND_DEVICES` (default 3), the planner from `BBGRAP_BACKEND_PLANNER` (default `widest`,
which splits every operator that can be split). A model that the partitioner cannot represent, one with sequences or optionals among its
inputs, is handed to onnxruntime uncut; a cluster refuses it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from bbgrap.cluster import Cluster
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import compile_graph
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import Array, Graph
from bbgrap.planners.options import PlanOptions
from bbgrap.program.export import export
from bbgrap.program.simulate import simulate

Inputs = Sequence[Any] | Mapping[str, Any] | Any


class BbgrapBackendRep(BackendRep):
    """A model prepared for some number of devices; planned once per combination of input shapes."""

    def __init__(self, model: bytes, names: tuple[str, ...], outputs: tuple[str, ...], devices: int, planner: str) -> None:
        """Remember the model; nothing is planned before the first run."""
        self._model = model
        self._names = names
        self._outputs = outputs
        self._devices = devices
        self._planner = planner
        self._runners: dict[tuple[tuple[int, ...], ...], Any] = {}
        self.split_nodes = 0
        """How many nodes of the last run were computed by more than one device; 0 for a model that ran whole."""

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the interface's own signature
        """Run once; inputs in order, by name, or a single one."""
        given = [inputs[name] for name in self._names] if isinstance(inputs, Mapping) else _as_list(inputs)
        if any(value is None or isinstance(value, list) for value in given):  # an optional or a sequence
            return self._run_whole(given)
        feeds = [np.asarray(value) for value in given]
        shapes = tuple(feed.shape for feed in feeds)
        if shapes not in self._runners:
            self._runners[shapes] = self._prepare(feeds)
        return tuple(self._runners[shapes](feeds))

    def _prepare(self, feeds: Sequence[Array]) -> Any:  # noqa: ANN401 - a callable or the fallback
        try:
            graph = self._load(feeds)
        except ModelError:
            return self._run_whole
        compiled, _ = compile_graph(graph, Cluster.even(self._devices), PlanOptions(planner=self._planner))
        self.split_nodes = sum(len(tiles) > 1 for tiles in compiled.plan.tiles.values())
        artifacts = export(compiled.optimized)
        kernels = local_kernels(artifacts)
        return lambda arrays: simulate(artifacts, arrays, kernels)

    def _load(self, feeds: Sequence[Array]) -> Graph:
        with tempfile.TemporaryDirectory(prefix="bbgrap-") as directory:
            path = Path(directory) / "model.onnx"
            path.write_bytes(self._model)
            return load_graph(path, {name: feed.shape for name, feed in zip(self._names, feeds, strict=True)})

    def _run_whole(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        session = make_session(self._model, threads=1)
        return tuple(session.run(list(self._outputs), dict(zip(self._names, feeds, strict=True))))


def _as_list(inputs: Any) -> list[Any]:  # noqa: ANN401 - the interface's own signature
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


class BbgrapBackend(Backend):
    """`onnx.backend.base.Backend` over N in-process devices."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:  # noqa: ANN401 - the interface's own
        """Tell whether the model can be run: whether onnxruntime can load it."""
        try:
            make_session(model.SerializeToString(), threads=1)
        except ModelError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BbgrapBackendRep:  # noqa: ANN401 - its own
        """Prepare a model.

        Raises:
            ModelError: if onnxruntime cannot load it.
        """
        data = model.SerializeToString()
        make_session(data, threads=1)
        weights = {tensor.name for tensor in model.graph.initializer}
        names = tuple(value.name for value in model.graph.input if value.name not in weights)
        devices = int(os.environ.get("BBGRAP_BACKEND_DEVICES", "3"))
        planner = os.environ.get("BBGRAP_BACKEND_PLANNER", "widest")
        return BbgrapBackendRep(data, names, tuple(value.name for value in model.graph.output), devices, planner)

    @classmethod
    def run_model(
        cls,
        model: onnx.ModelProto,
        inputs: Inputs,
        device: str = "CPU",
        **kwargs: Any,  # noqa: ANN401 - the interface's own
    ) -> tuple[Any, ...]:
        """Prepare and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell whether a device exists: processors only."""
        return device.split(":")[0] == "CPU"


prepare = BbgrapBackend.prepare
run_model = BbgrapBackend.run_model
supports_device = BbgrapBackend.supports_device
is_compatible = BbgrapBackend.is_compatible
