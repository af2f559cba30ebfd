"""A model made ready for one device, whole and for any shape: what answers while plans are made, and when they are lost.

    host      Send inputs -> 0 | Receive outputs <- 0
    device 0  Receive inputs <- host | Run model | Send outputs -> host

The model is what its file says: free dimensions, opset and operators are untouched, and the agent's onnxruntime optimises it as it would
optimise the file. Law: the answers are those of plain onnxruntime on the agent, bit for bit (of subnormal weights see
`bbgrap.graph.onnx_subnormal`); weights that the file lists as inputs too are weights (a request that overrides them is not for a standby),
unless they are state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.compiler.memory import standby_bytes
from bbgrap.compiler.sequences import for_sequences
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.joined_requests import joinings_of
from bbgrap.engine.load import refusal
from bbgrap.engine.session_call import caller, ending_after
from bbgrap.engine.sessions import declared_type, make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_io import OnnxModel, read_model
from bbgrap.graph.onnx_merged import with_first_made
from bbgrap.graph.onnx_shapes import without_weights
from bbgrap.graph.onnx_top_k import with_top_outputs
from bbgrap.graph.onnx_whole import whole_model
from bbgrap.graph.state import check_pairs, made_once
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

STANDBY = "standby"


_DEVICE, _HOST = 0, 1
_INPUTS, _OUTPUTS = 0, 1
"""The two messages of a request."""
_TRIAL_S = 5.0
"""How long a run of a few words may take here; of what takes longer it is not found out whether requests can be joined. Chosen."""


def standby_of(path: Path, state: Sequence[tuple[str, str]] = (), top: Sequence[tuple[str, int]] = ()) -> PlannedVariant:
    """Return a model, whole, for one device (device 0; the host is device 1).

    With `state`, pairs of inputs and the outputs that they are in the next request of a sequence, these stay on the device. Of the outputs
    in `top` it answers only so many largest elements, and their places.

    The report has `weight_bytes` and an estimate of `memory_bytes`, of whichever node it will be; `agents` and `nodes_used` are
    empty: which node that is, whoever deploys it says.

    Raises:
        ModelError: if the file is no model, onnxruntime cannot load it, or it has no such state or outputs.
    """
    file = without_weights(read_model(path), dict(state))
    check_pairs(file.name, tuple(item.name for item in file.inputs), tuple(item.name for item in file.outputs), state)
    once = made_once([item.name for item in file.inputs], dict(state))
    model = with_top_outputs(with_first_made(file, {name: output for name, output in state if name in once}), dict(top))
    data, arrays = whole_model(model)
    session = _opened(path, data, arrays)
    taken, given = _carried(session.get_inputs()), _carried(session.get_outputs())
    weights = {name: make_weight(name, array) for name, array in arrays.items()}
    inputs = tuple(BufferSpec(item.name, taken[item.name], item.concrete or None) for item in model.inputs)  # scalars: any shape is taken
    # An output that is listed twice is sent once. The shapes of outputs that a file declares are not believed: runtimes do without.
    names = tuple(dict.fromkeys(item.name for item in model.outputs))
    outputs = tuple(BufferSpec(name, given[name], None) for name in names)
    segment = SegmentModel(
        model.name,
        hashlib.sha256(data).hexdigest(),
        data,
        tuple(spec.name for spec in inputs),
        names,
        {name: WeightRef(weight.digest, weight.type) for name, weight in weights.items()},
        whole=True,
    )
    kept = [output for _, output in state]
    answered = tuple(item.name for item in model.outputs if item.name not in kept)
    refs = {weight.digest: weight.array for weight in weights.values()}

    def program(held: Sequence[str], left: Sequence[str]) -> Artifacts:
        device, host = _schedules(inputs, outputs, answered, held, left)
        return Artifacts((DeviceArtifacts(device, (segment,)),), host, refs)

    artifacts = program((), kept)
    if state:
        order = tuple(taken)
        further = program([name for name, _ in state], [name if name in once else output for name, output in state])
        with ending_after(_TRIAL_S):
            joinings = joinings_of(model, taken, state, lambda names, feeds: caller(session, order, names)([feeds[n] for n in order]))
        artifacts = for_sequences(artifacts, further, joinings)
    carried = [declared_type(item) for item in (*session.get_inputs(), *session.get_outputs())]
    held = {weights[name].digest: place for name, place in model.held.items() if arrays.get(name) is model.weights[name]}
    return PlannedVariant(STANDBY, artifacts, _report(model, artifacts.devices[0], carried), held)


def _opened(path: Path, data: bytes, weights: Mapping[str, Array]) -> ort.InferenceSession:
    """Return a session of the model: onnxruntime is asked of types, not the file, which may leave them out.

    So what onnxruntime refuses, or dies of, gets to no agent.
    """
    try:
        return make_session(data, weights=weights, threads=1, optimize=False, packs=False)
    except ModelError as refused:
        raise refusal(path, refused) from None


def _carried(arguments: Sequence[ort.NodeArg]) -> dict[str, DType]:
    """Return the element types that inputs or outputs have on their way, by name: what no array holds is packed into bytes."""
    kinds = {item.name: declared_type(item).dtype for item in arguments}
    return {name: DType.UINT8 if kind is DType.OTHER else kind for name, kind in kinds.items()}


def _schedules(
    inputs: tuple[BufferSpec, ...],
    outputs: tuple[BufferSpec, ...],
    answered: tuple[str, ...],
    held: Sequence[str],
    left: Sequence[str],
) -> tuple[Schedule, Schedule]:
    """Return what the device does and what the host does: inputs that are `held` are on the device, what is `left` stays there."""
    ins = {spec.name: number for number, spec in enumerate(inputs)}
    outs = {spec.name: number for number, spec in enumerate(outputs, len(inputs))}
    given = tuple(number for name, number in ins.items() if name not in held)
    sent = tuple(number for name, number in outs.items() if name in answered)
    buffers = (*inputs, *outputs)
    receive = (LocalReceive(_INPUTS, _HOST, given),) if given else ()
    steps = (*receive, LocalRun(0, tuple(ins.values()), tuple(outs.values())), LocalSend(_OUTPUTS, _HOST, _wholes(sent)))
    stays = tuple(ins[name] if name in ins else outs[name] for name in left)
    device = Schedule(_DEVICE, _HOST, buffers, steps, tuple(ins[name] for name in held), stays)
    send = (LocalSend(_INPUTS, _DEVICE, _wholes(given)),) if given else ()
    asked = tuple(outs[name] for name in answered)
    return device, Schedule(_HOST, _HOST, buffers, (*send, LocalReceive(_OUTPUTS, _DEVICE, sent)), given, asked)


def _wholes(buffers: tuple[int, ...]) -> tuple[LocalPart, ...]:
    return tuple(LocalPart(buffer, None) for buffer in buffers)


def _report(model: OnnxModel, device: DeviceArtifacts, carried: Sequence[TensorType]) -> dict[str, Any]:
    kinds = {ref.digest: ref.type for segment in device.segments for ref in segment.weights.values()}
    return {
        "schema": 1,
        "planner": STANDBY,
        "model": model.name,
        "agents": [],
        "nodes_used": [],
        "weight_bytes": device.weight_bytes,
        "memory_bytes": standby_bytes(kinds.values(), carried),
        "changed": [],
    }
