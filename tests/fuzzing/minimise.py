"""Making a failing model small: fewer outputs, fewer nodes, values in place of what computes them, while it fails in the same way.

Only what plain onnxruntime still runs counts; values that take the place of nodes are those that onnxruntime computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from bbgrap.graph import Array
from tests.fuzzing.configurations import Configuration
from tests.fuzzing.growth import elem_type
from tests.fuzzing.judge import Finding, judge
from tests.fuzzing.samples import Sample

MOST_ROUNDS = 40


@dataclass(frozen=True, eq=False)
class Failure:
    """A model and the configuration in which it fails; `finding` is how."""

    sample: Sample
    configuration: Configuration
    finding: Finding

    def shown_by(self, sample: Sample) -> bool:
        """Whether another model fails in the same way: the same error at the same place, or a wrong answer."""
        found = judge(sample, [self.configuration]).findings[0]
        same_place = found.where.split(" at ")[:2] == self.finding.where.split(" at ")[:2] or self.finding.kind == "mismatch"
        return found.kind == self.finding.kind and (same_place or _place(found) == _place(self.finding))


def _place(finding: Finding) -> str:
    return " ".join(finding.where.split()[:3])


def minimised(failure: Failure) -> Sample:
    """Return the smallest model found that fails in the same way."""
    best = failure.sample
    for _ in range(MOST_ROUNDS):
        for candidate in _smaller(best):
            if _is_run(candidate) and failure.shown_by(candidate):
                best = candidate
                break
        else:
            return best
    return best


def _is_run(sample: Sample) -> bool:
    try:
        _session(sample.model).run(None, sample.feeds)
    except Exception:  # noqa: BLE001 - its exceptions have no common base
        return False
    return True


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _smaller(sample: Sample) -> Iterator[Sample]:
    """Yield smaller models, the smallest first."""
    model = onnx.load_from_string(sample.model)
    values = _all_values(sample, model)
    for node in model.graph.node:  # up to this node only
        made = [name for name in node.output if name in values]
        if made and {o.name for o in model.graph.output} != set(made):
            yield _with_outputs(sample, model, values, made)
    for output in model.graph.output:
        rest = [o.name for o in model.graph.output if o.name != output.name]
        if rest:
            yield _with_outputs(sample, model, values, rest)
    for node in reversed(model.graph.node):
        made = [name for name in node.output if name]
        if all(name in values for name in made) and len(model.graph.node) > 1:
            yield _given(sample, model, values, made)
            same = [name for name in node.input if name in values and all(_alike(values[name], values[o]) for o in made)]
            if same and len(made) == 1:
                yield _bypassed(sample, model, values, made[0], same[0])


def _alike(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _all_values(sample: Sample, model: onnx.ModelProto) -> dict[str, Array]:
    """Return all tensors of a model as onnxruntime computes them without optimisation."""
    asked = deepcopy(model)
    known = {output.name for output in asked.graph.output}
    asked.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for node in asked.graph.node for name in node.output if name and name not in known
    )
    values = dict(sample.feeds)
    try:
        session = _session(asked.SerializeToString())
        found = session.run(None, sample.feeds)
        values |= {out.name: array for out, array in zip(session.get_outputs(), found, strict=True) if isinstance(array, np.ndarray)}
    except Exception:  # noqa: BLE001, S110 - then only the model's inputs are known
        pass
    return values | {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _rebuilt(sample: Sample, model: onnx.ModelProto, values: dict[str, Array], outputs: list[str], given: list[str]) -> Sample:
    """Return the model of what some outputs depend on, with values given as inputs instead of computed."""
    needed, nodes = set(outputs), []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output) - set(given):
            nodes.append(node)
            needed.update(name for name in node.input if name)
            needed.update(
                name for a in node.attribute for body in ([a.g] if a.HasField("g") else []) for n in body.node for name in n.input
            )
    smaller = deepcopy(model)
    for field in ("node", "input", "output", "initializer", "value_info"):
        smaller.graph.ClearField(field)
    smaller.graph.node.extend(nodes[::-1])
    kept = [value for value in model.graph.input if value.name in needed]
    smaller.graph.input.extend(kept)
    made_inputs = [name for name in given if name in needed]
    smaller.graph.input.extend(helper.make_tensor_value_info(name, elem_type(values[name]), values[name].shape) for name in made_inputs)
    smaller.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    smaller.graph.output.extend(helper.make_tensor_value_info(name, elem_type(values[name]), values[name].shape) for name in outputs)
    feeds = {value.name: values[value.name] for value in smaller.graph.input}
    return Sample(sample.name, smaller.SerializeToString(), feeds)


def _with_outputs(sample: Sample, model: onnx.ModelProto, values: dict[str, Array], outputs: list[str]) -> Sample:
    return _rebuilt(sample, model, values, [name for name in outputs if name in values], [])


def _given(sample: Sample, model: onnx.ModelProto, values: dict[str, Array], given: list[str]) -> Sample:
    outputs = [o.name for o in model.graph.output if o.name in values and o.name not in given]
    return _rebuilt(sample, model, values, outputs or [o.name for o in model.graph.output if o.name in values], given if outputs else [])


def _bypassed(sample: Sample, model: onnx.ModelProto, values: dict[str, Array], made: str, instead: str) -> Sample:
    shorter = deepcopy(model)
    for node in shorter.graph.node:
        for place, name in enumerate(node.input):
            if name == made:
                node.input[place] = instead
    outputs = [o.name if o.name != made else instead for o in model.graph.output if o.name in values]
    inner = [name for name in outputs if any(name in node.output for node in model.graph.node)]
    return _rebuilt(sample, shorter, values, inner or outputs, [])
