"""The ONNX backend interface over an in-process partition: what the standard's own test suite, and tools built on it, can drive.

The number of devices comes from `BBGRAP_BACKEND_DEVICES` (default 3), the planner from `BBGRAP_BACKEND_PLANNER` (default `widest`, which
splits every operator that can be split), what it splits along from `BBGRAP_BACKEND_SPLIT` (default `rows`); they are read by `prepare`.
Models go the way that they go on a cluster: they are loaded, planned, exported and run device by device.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.session_call import packed_feeds, unpacked_results
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError, UsageError
from bbgrap.graph import DType, Graph
from bbgrap.graph.onnx_read import ModelInput, read_model
from bbgrap.planners.inspection import reason_of
from bbgrap.planners.options import PlanOptions, Split
from bbgrap.planners.plan import Plan
from bbgrap.protocol.values import Value
from bbgrap.tdl import describe

BackendInputs = Sequence[Any] | Mapping[str, Any] | Any

T = TypeVar("T")

_Runner = Callable[[Sequence[Any]], tuple[Value, ...]]


class BbgrapBackendRep(BackendRep):
    """A model prepared for some number of devices; planned once per combination of input shapes."""

    def __init__(self, model: bytes, devices: int, options: PlanOptions) -> None:
        """Remember the model; nothing is planned before the first run.

        Raises:
            ModelError: if onnxruntime cannot load it.
        """
        self._model = model
        self._devices = devices
        self._options = options
        self._inputs: tuple[ModelInput, ...] = self._with_file(lambda path: read_model(path).inputs)
        self._runners: dict[tuple[tuple[int, ...], ...], _Runner] = {}
        self.split_nodes = 0
        """How many nodes of the last plan are computed by more than one device."""
        self.whole: Mapping[str, str] = {}
        """Why each of the other nodes of the last plan is computed by one device, by the node's name."""

    def run(self, inputs: BackendInputs, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the interface's own signature
        """Run once; inputs in order, by name, or a single one."""
        given = [inputs[item.name] for item in self._inputs] if isinstance(inputs, Mapping) else self._as_list(inputs)
        shapes = tuple(() if item.dtype is DType.OTHER else np.shape(value) for item, value in zip(self._inputs, given, strict=True))
        if shapes not in self._runners:
            self._runners[shapes] = self._prepare(shapes)
        return self._runners[shapes](given)

    def _prepare(self, shapes: tuple[tuple[int, ...], ...]) -> _Runner:
        named = {item.name: shape for item, shape in zip(self._inputs, shapes, strict=True) if item.dtype is not DType.OTHER}
        graph = self._with_file(lambda path: load_graph(path, named))
        compiled = plan_graph(graph, Cluster.even(self._devices), self._options).compiled
        self.split_nodes = sum(len(tiles) > 1 for tiles in compiled.plan.tiles.values())
        self.whole = whole_nodes(compiled.plan)
        artifacts = export(compiled.optimized)
        kernels = local_kernels(artifacts)
        ins, outs = ([graph.types[name] for name in side] for side in (graph.inputs, graph.outputs))
        return lambda values: tuple(unpacked_results(outs, simulate(artifacts, packed_feeds(ins, values), kernels)))

    def _with_file(self, work: Callable[[Path], T]) -> T:
        with tempfile.TemporaryDirectory(prefix="bbgrap-") as directory:
            path = Path(directory) / "model.onnx"
            path.write_bytes(self._model)
            return work(path)

    def _as_list(self, inputs: Any) -> list[Any]:  # noqa: ANN401 - the interface's own signature
        return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def whole_nodes(plan: Plan) -> dict[str, str]:
    """Return why each node that one device computes is not split: by its name."""
    graph: Graph = plan.graph
    alone = [node for node in graph.nodes if len(plan.tiles[node.name]) <= 1]
    return {
        node.name: reason_of(graph, node) if describe(graph, node) is None else f"planner '{plan.planner}' gives it to one device"
        for node in alone
    }


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
            UsageError: if an environment variable names a split that does not exist.
        """
        data = model.SerializeToString()
        make_session(data, threads=1)
        devices = int(os.environ.get("BBGRAP_BACKEND_DEVICES", "3"))
        split = os.environ.get("BBGRAP_BACKEND_SPLIT", "rows")
        if split not in get_args(Split):
            raise UsageError(f"BBGRAP_BACKEND_SPLIT: expected one of {', '.join(get_args(Split))}, got '{split}'")
        planner = os.environ.get("BBGRAP_BACKEND_PLANNER", "widest")
        return BbgrapBackendRep(data, devices, PlanOptions(planner=planner, split=split))  # type: ignore[arg-type]  # checked above

    @classmethod
    def run_model(
        cls,
        model: onnx.ModelProto,
        inputs: BackendInputs,
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
