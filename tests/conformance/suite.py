"""The ONNX backend tests as data: every test that plain onnxruntime passes, with its model, its inputs and onnxruntime's own answers.

The suite comes in two forms: as given, and with every input but the first turned into a constant, since weights and parameters that
arrive as inputs leave little to split.
"""

from __future__ import annotations

import os
import tempfile
import unittest
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from bbgrap.engine.sessions import make_session


@dataclass(frozen=True)
class Run:
    """One request: a model, what it is given by name, and what plain onnxruntime answers."""

    model: bytes
    feeds: dict[str, Any]
    answers: tuple[Any, ...]


@dataclass
class Outcome:
    """What became of a test: its verdict, the reason if it did not pass, how many nodes were split, and what ran."""

    verdict: str
    reason: str
    split_nodes: int
    runs: list[Run] = field(default_factory=list)


class PlainRep(BackendRep):
    """Plain onnxruntime, which takes note of what it was asked."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model.SerializeToString()
        self.session = make_session(self.model, threads=1)
        self.split_nodes = 0
        self.runs: list[Run] = []

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> list[Any]:  # noqa: ANN401 - the interface's own signature
        names = [item.name for item in self.session.get_inputs()]
        values = [value if isinstance(value, list) or value is None else np.asarray(value) for value in inputs]
        feeds = dict(zip(names, values, strict=True))
        answers = self.session.run(None, feeds)
        self.runs.append(Run(self.model, feeds, tuple(answers)))
        return list(answers)


class Plain(Backend):
    """The backend of plain onnxruntime."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PlainRep:  # noqa: ANN401 - the interface's own signature
        return PlainRep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class ConstantRep(BackendRep):
    """A model that is prepared at its first run, when the content of its parameters is known."""

    def __init__(self, backend: type[Backend], model: onnx.ModelProto) -> None:
        backend.prepare(model)  # a model that cannot be loaded is to fail here
        self.backend, self.model, self.split_nodes = backend, model, 0
        self.runs: list[Run] = []

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> Any:  # noqa: ANN401 - the interface's own signature
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.ir_version = max(model.ir_version, 8)
        given = {tensor.name for tensor in model.graph.initializer}
        kept: list[Any] = []
        values = [value for value in model.graph.input if value.name not in given]
        for number, (value, content) in enumerate(zip(values, inputs, strict=True)):
            if number and isinstance(content, np.ndarray | np.generic) and content.dtype.kind in "biuf":
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(content), value.name))
                model.graph.input.remove(value)
            else:
                kept.append(content)
        rep = self.backend.prepare(model)
        outputs = rep.run(kept)
        self.split_nodes = rep.split_nodes
        self.runs += getattr(rep, "runs", [])
        return outputs


def outcomes(backend: type[Backend], *, constants: bool, one_of: int = 1, place: int = 0) -> dict[str, Outcome]:
    """Run the suite by a backend, or one of so many of its tests, by their place among them; return what became of every test, by name."""
    last: list[Any] = [None]

    class Recorder(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:  # noqa: ANN401 - the interface's own signature
            last[0] = ConstantRep(backend, model) if constants else backend.prepare(model, device)
            return last[0]

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    import onnx.backend.test as suite

    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's own reference computations overflow on purpose
        before = os.environ.get("ONNX_HOME")
        os.environ["ONNX_HOME"] = home
        try:
            for case in suite.BackendTest(Recorder, __name__).test_cases.values():
                for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
                    name = str(test.id()).rsplit(".", 1)[-1]
                    if not name.endswith("_cuda") and crc32(name.encode()) % one_of == place:
                        last[0] = None
                        found[name] = _outcome(test, last)
        finally:
            os.environ.pop("ONNX_HOME")
            if before is not None:
                os.environ["ONNX_HOME"] = before
    return found


def _outcome(test: unittest.TestCase, last: list[Any]) -> Outcome:
    result = unittest.TestResult()
    test.run(result)
    bad = [*result.failures, *result.errors]
    verdict = "skipped" if result.skipped else "fails" if bad else "passes"
    reason = bad[0][1].strip().splitlines()[-1][:200] if bad else ""
    return Outcome(verdict, reason, getattr(last[0], "split_nodes", 0), getattr(last[0], "runs", []))


@cache
def plain_outcomes(*, constants: bool, one_of: int = 1, place: int = 0) -> dict[str, Outcome]:
    """Return what becomes of tests by plain onnxruntime; asked once, whatever it is compared with."""
    return outcomes(Plain, constants=constants, one_of=one_of, place=place)
