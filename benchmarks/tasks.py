"""What clients ask for: models, their inputs, and how far an answer may be from plain onnxruntime's.

Four of them are hostile: `killer` ends the worker that runs it (onnxruntime takes the remainder of the least integer and -1, which x86
answers with SIGFPE), `endless` never ends. Both are harmless for ones, with which agents warm up, so that they can be loaded; `deadly` and
`stuck` do the same for ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, load_model_from_string, numpy_helper

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.graph.types import Array
from benchmarks.soak import SMOOTH

INPUTS = 4
"""Different inputs of a model."""

RTOL, ATOL = 1e-3, 1e-4
"""How far answers may be from onnxruntime's: plans add in another order. An answer to another input is far outside."""

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A model, what it is asked, and the right answers (None: it has none). `exact`: answers are the same to the bit."""

    model: bytes | Path | str
    feeds: tuple[Feed, ...]
    answers: tuple[list[Array], ...] | None
    exact: bool = False

    def distance(self, number: int, got: list[Array]) -> float:
        """Return how far an answer is from the right one: at most 1 is right."""
        assert self.answers is not None
        wanted = self.answers[number]
        if len(wanted) != len(got) or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(wanted, got, strict=True)):
            return float("inf")
        if self.exact:
            return 0.0 if all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True)) else float("inf")
        worst = 0.0
        for a, b in zip(wanted, got, strict=True):
            off = np.abs(a - b) / (ATOL + RTOL * np.abs(a))
            worst = max(worst, float(off.max()) if np.isfinite(off).all() else float("inf"))
        return worst


def asked(name: str, folder: Path) -> Asked:
    """Return a task by its name: smooth, killer, endless, deadly, stuck, bulky, fresh, light_NAME, or the name of a model of the zoo.

    `NAME:NUMBER` is a model of its own for every number, of those that are made here.
    """
    kind, _, number = name.partition(":")
    match kind:
        case "smooth":
            feeds = tuple({"x": SMOOTH.feed(number)} for number in range(INPUTS))
            return Asked(SMOOTH.model, feeds, tuple([SMOOTH.answer(feed["x"])] for feed in feeds), exact=True)
        case "killer":
            return Asked(_file(folder, name, killer_model(name)), ({"x": np.full(4, -(2**63)), "d": np.full(4, -1)},), None)
        case "deadly":
            return Asked(_file(folder, name, deadly_model(name)), ({"x": np.ones(4, np.int64)},), None)
        case "endless":
            return Asked(_file(folder, name, endless_model(name, 1.5)), ({"x": np.full(4, 2.0, np.float32)},), None)
        case "stuck":
            return Asked(_file(folder, name, endless_model(name, 0.5)), ({"x": np.ones(4, np.float32)},), None)
        case "bulky" | "fresh":
            model = matrix_model(name, 1536 if kind == "bulky" else 64, int(number or 0))
            feeds = tuple({"x": np.random.default_rng(n).normal(size=_row(model)).astype(np.float32)} for n in range(INPUTS))
            return Asked(model, feeds, tuple(_plain(model, feeds)))
    if name.startswith("light_"):
        from tests.light_models import light_model

        path = light_model(name.removeprefix("light_"), folder)
    else:
        path = find_model(f"zoo:{name}")
    inputs = read_inputs(path, GivenInputs())
    feeds = tuple(inputs.feeds(number) for number in range(INPUTS))
    return Asked(path, feeds, tuple(_plain(path, feeds)))


def _row(model: bytes) -> tuple[int, int]:
    (size,) = {dim for tensor in load_model_from_string(model).graph.initializer for dim in tensor.dims}
    return 1, size


def _plain(model: Path | bytes, feeds: tuple[Feed, ...]) -> list[list[Array]]:
    """Return what plain onnxruntime answers."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model if isinstance(model, bytes) else str(model), options, ["CPUExecutionProvider"])
    return [session.run(None, dict(feed)) for feed in feeds]


def _file(folder: Path, name: str, model: bytes) -> Path:
    """Write a model to a file that the cluster's log calls it by, and return that."""
    path = folder / f"{name.replace(':', '_')}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model)
    return path


def killer_model(name: str) -> bytes:
    """Return the quotient of two integers: that of the least one and -1 ends a process."""
    return _model(name, [helper.make_node("Div", ["x", "d"], ["y"])], {"x": TensorProto.INT64, "d": TensorProto.INT64}, TensorProto.INT64)


def deadly_model(name: str) -> bytes:
    """Return the quotient of the least integer and the input's negative."""
    least = helper.make_node("Constant", [], ["least"], value=helper.make_tensor("least", TensorProto.INT64, [1], [-(2**63)]))
    nodes = [least, helper.make_node("Neg", ["x"], ["d"]), helper.make_node("Div", ["least", "d"], ["y"])]
    return _model(name, nodes, {"x": TensorProto.INT64}, TensorProto.INT64)


def endless_model(name: str, limit: float) -> bytes:
    """Return a loop that never ends for inputs above a limit, and does nothing for others."""
    kinds = (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("carried", TensorProto.FLOAT, [4]))
    ends = (("on", TensorProto.BOOL, []), ("next", TensorProto.FLOAT, [4]))
    steps = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["carried"], ["next"])]
    body = helper.make_graph(
        steps, "body", [helper.make_tensor_value_info(*kind) for kind in kinds], [helper.make_tensor_value_info(*end) for end in ends]
    )
    bound = helper.make_tensor("limit", TensorProto.FLOAT, [], [limit])
    nodes = [
        helper.make_node("Constant", [], ["limit"], value=bound),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["goes"]),
        helper.make_node("Loop", ["", "goes", "x"], ["y"], body=body),
    ]
    return _model(name, nodes, {"x": TensorProto.FLOAT}, TensorProto.FLOAT)


def matrix_model(name: str, size: int, seed: int) -> bytes:
    """Return a product with a square matrix of its own: size × size × 4 bytes of weights."""
    content = np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32) / size**0.5
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, size]) for end in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], name.replace(":", "_"), ends[:1], ends[1:], [numpy_helper.from_array(content, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _model(name: str, nodes: list[Any], inputs: Mapping[str, int], output: int) -> bytes:
    given = [helper.make_tensor_value_info(name, kind, [4]) for name, kind in inputs.items()]
    graph = helper.make_graph(nodes, name.replace(":", "_"), given, [helper.make_tensor_value_info("y", output, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
