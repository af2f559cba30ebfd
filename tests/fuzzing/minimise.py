"""Making a failing model small: fewer outputs, fewer nodes, values in place of what computes them, while it fails in the same way.

Only what plain onnxruntime still runs counts; values that take the place of nodes are those that onnxruntime computed.
"""

from __future__ import annotations

import multiprocessing
import re
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
        if self.finding.where.startswith("the process ended"):
            return _kills(sample, self.configuration)
        if not _is_run(sample):
            return False
        found = judge(sample, [self.configuration]).findings[0]
        return found.kind == self.finding.kind and _cause(found) == _cause(self.finding)


def _kills(sample: Sample, configuration: Configuration) -> bool:
    """Whether a model ends the process that judges it, but not one that only runs onnxruntime."""
    context = multiprocessing.get_context("fork")  # everything is imported already, and no thread runs
    ends = []
    for work, arguments in ((_is_run, (sample,)), (judge, (sample, [configuration]))):
        child = context.Process(target=work, args=arguments, daemon=True)
        child.start()
        child.join(30)
        child.kill()
        ends.append(child.exitcode)
    return ends[0] == 0 and ends[1] not in (0, None)


def _cause(finding: Finding) -> str:
    """Return the words of a cause without numbers, which change with the size of a model."""
    return re.sub(r"\d+", "", finding.where)


def minimised(failure: Failure) -> Sample:
    """Return the smallest model found that fails in the same way."""
    best = failure.sample
    for _ in range(MOST_ROUNDS):
        size = _size(best)
        candidates = sorted((c for c in _smaller(best) if _size(c) < size), key=_size)
        found = next((c for c in candidates if failure.shown_by(c)), None)
        if found is None:
            return best
        best = found
    return best


def _size(sample: Sample) -> tuple[int, int, int]:
    """Return how large a model is: nodes, outputs, and bytes."""
    graph = onnx.load_from_string(sample.model).graph
    return len(graph.node), len(graph.output), len(sample.model) + sum(array.nbytes for array in sample.feeds.values())


def _is_run(sample: Sample) -> bool:
    try:
        _session(sample.model).run(None, sample.feeds)
    except Exception:  # its exceptions have no common base
        return False
    return True


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _smaller(sample: Sample) -> Iterator[Sample]:
    """Yield other models, most of them smaller."""
    model = onnx.load_from_string(sample.model)
    values = _all_values(sample, model)
    outputs = [o.name for o in model.graph.output if o.name in values]
    for node in model.graph.node:  # up to this node only
        yield _rebuilt(sample, model, values, [name for name in node.output if name in values], [])
    for output in outputs:
        yield _rebuilt(sample, model, values, [name for name in outputs if name != output], [])
    fixed = _constants(model)
    for node in model.graph.node:
        made = [name for name in node.output if name]
        if not all(name in values for name in made):
            continue
        rest = [name for name in outputs if name not in made]
        yield _rebuilt(sample, model, values, rest, made, fixed=fixed)
        same = [name for name in node.input if name in values and all(_alike(values[name], values[o]) for o in made)]
        if same and len(made) == 1:
            yield _bypassed(sample, model, values, made[0], same[0])


def _constants(model: onnx.ModelProto) -> frozenset[str]:
    """Return the values that depend on initializers only."""
    found = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if all(name in found for name in node.input if name) and not any(a.HasField("g") for a in node.attribute):
            found.update(node.output)
    return frozenset(found)


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
    except Exception:  # noqa: S110 - then only the model's inputs are known
        pass
    return values | {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _rebuilt(
    sample: Sample,
    model: onnx.ModelProto,
    values: dict[str, Array],
    outputs: list[str],
    given: list[str],
    fixed: frozenset[str] = frozenset(),
) -> Sample:
    """Return the model of what some outputs depend on, with values given as inputs (as initializers, if `fixed`) instead of computed."""
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
    smaller.graph.input.extend(value for value in model.graph.input if value.name in needed)
    inside = [name for name in given if name in needed]
    smaller.graph.input.extend(_declared(name, values[name]) for name in inside if name not in fixed)
    smaller.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    smaller.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in inside if name in fixed)
    # new outputs have no shapes: onnx and onnxruntime may disagree about them, which would be another failure
    known = {output.name: output for output in model.graph.output}
    smaller.graph.output.extend(known.get(name) or helper.make_tensor_value_info(name, elem_type(values[name]), None) for name in outputs)
    feeds = {value.name: values[value.name] for value in smaller.graph.input}
    return Sample(sample.name, smaller.SerializeToString(), feeds)


def _declared(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type(array), array.shape)


def _bypassed(sample: Sample, model: onnx.ModelProto, values: dict[str, Array], made: str, instead: str) -> Sample:
    shorter = deepcopy(model)
    for node in shorter.graph.node:
        for place, name in enumerate(node.input):
            if name == made:
                node.input[place] = instead
    outputs = [o.name if o.name != made else instead for o in model.graph.output if o.name in values]
    inner = [name for name in dict.fromkeys(outputs) if any(name in node.output for node in model.graph.node)]
    return _rebuilt(sample, shorter, values, inner, [])
