"""The ONNX standard's own backend tests, over three in-process devices: exactly the tests that plain onnxruntime passes pass.

Each test is run twice, by plain onnxruntime and by the partition, and the two verdicts are compared; nothing is listed by hand. The
suite comes in two forms: as given, and with every input but the first turned into a constant, since weights and parameters that
arrive as inputs leave little to split.
"""

from __future__ import annotations

import os
import tempfile
import unittest
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from bbgrap.backend import BbgrapBackend
from bbgrap.engine.sessions import make_session

AS_GIVEN_SPLIT, CONSTANT_SPLIT = 1100, 1200
"""At least so many of the passing tests must really run over more than one device."""


class PlainRep(BackendRep):
    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = make_session(model.SerializeToString(), threads=1)
        self.split_nodes = 0

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> list[Any]:
        names = [item.name for item in self.session.get_inputs()]
        feeds = [value if isinstance(value, list) or value is None else np.asarray(value) for value in inputs]
        return self.session.run(None, dict(zip(names, feeds, strict=True)))


class Plain(Backend):
    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PlainRep:
        return PlainRep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class ConstantRep(BackendRep):
    """A model that is prepared at its first run, when the content of its parameters is known."""

    def __init__(self, backend: type[Backend], model: onnx.ModelProto) -> None:
        backend.prepare(model)  # a model that cannot be loaded is to fail here
        self.backend, self.model, self.split_nodes = backend, model, 0

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> Any:
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
        return outputs


def verdicts(backend: type[Backend], *, constants: bool) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Return verdict, reason and number of split nodes by test name."""
    last: list[Any] = [None]

    class Recorder(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
            last[0] = ConstantRep(backend, model) if constants else backend.prepare(model, device)
            return last[0]

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    import onnx.backend.test as suite

    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    split: dict[str, int] = {}
    for case in suite.BackendTest(Recorder, __name__).test_cases.values():
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
            name = str(test.id()).rsplit(".", 1)[-1]
            if name.endswith("_cuda"):
                continue
            last[0] = None
            result = unittest.TestResult()
            test.run(result)
            bad = [*result.failures, *result.errors]
            found[name] = "skipped" if result.skipped else "fails" if bad else "passes"
            reasons[name] = bad[0][1].strip().splitlines()[-1][:200] if bad else ""
            split[name] = last[0].split_nodes if last[0] is not None else 0
    return found, reasons, split


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("constants", "least_split"), [(False, AS_GIVEN_SPLIT), (True, CONSTANT_SPLIT)], ids=["as-given", "constants"])
def test_exactly_what_plain_onnxruntime_passes(constants: bool, least_split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's own reference computations overflow on purpose
        monkeypatch.setitem(os.environ, "ONNX_HOME", home)
        plain, _, _ = verdicts(Plain, constants=constants)
        ours, reasons, split = verdicts(BbgrapBackend, constants=constants)
    differing = {name: (plain[name], ours[name], reasons[name]) for name in plain if plain[name] != ours[name]}
    assert not differing, "\n".join(f"{name}: plain onnxruntime {p}, the partition {o}: {r}" for name, (p, o, r) in differing.items())
    assert sum(v == "passes" for v in plain.values()) > 1400, "the suite itself did not run"
    assert sum(ours[name] == "passes" and nodes > 0 for name, nodes in split.items()) >= least_split
