"""From a `Deploy` message to sessions that are warm."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.engine.layout import SegmentCompiler
from bbgrap.engine.session_call import caller, ending_after
from bbgrap.engine.sessions import make_session
from bbgrap.errors import BbgrapError, ModelError
from bbgrap.graph.onnx_layout import Boundary
from bbgrap.graph.onnx_read import as_model_error
from bbgrap.graph.onnx_weight_files import with_files
from bbgrap.graph.types import Array
from bbgrap.own_process import give_back_freed
from bbgrap.protocol.messages import Deploy, Peer
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import LocalRun, reading_of
from bbgrap_agent.compiling import CompiledDeployment, SegmentLoader, load_compiled, load_portable
from bbgrap_agent.deployment import Deployment, Segment
from bbgrap_agent.shared_segments import SharedSegments
from bbgrap_agent.weights import SMALL_BYTES, WeightStore

_SPIN_US = 1_000
"""How long idle helper threads wait busily: longer than an exchange of halos, short enough to leave idle machines idle."""

_TRIAL_S = 5.0
"""How long a run may take by which an agent finds out how to compile a segment. Chosen."""
_WARM_UP_S = 1.0
"""How long the first run of a segment may take that nobody asked for: all other models wait to be loaded. Chosen: the first request of
what takes longer is hardly slower for touching its memory."""
_GIVE_BACK_BYTES = 32 << 20
"""After so many bytes of weights were loaded, freed memory is given back. Chosen: it takes some milliseconds each time."""

_log = logging.getLogger("bbgrap.agent")


def load(
    deploy: Deploy, store: WeightStore, threads: int, coordinator_host: str, shared: SharedSegments | None = None, *, compiling: bool = True
) -> Deployment:
    """Make and warm up the sessions of a deployment, compiled for this machine unless told otherwise.

    `coordinator_host` is the host this agent joined by; `shared` are the segments of other deployments.

    Raises:
        ModelError: if a segment cannot be loaded or a weight is gone; the message names the segment.
    """
    for model in deploy.segments:
        if hashlib.sha256(model.skeleton).hexdigest() != model.digest:
            raise ModelError(f"segment '{model.name}': its content has another digest; it was damaged on the way")
    shared = shared or SharedSegments()
    before, loaded_bytes = shared.made, 0

    def freeing(model: SegmentModel, made: Segment) -> Segment:
        """Now and then, give back what loading has freed: a node has room for the copies of its largest segment, not for those of all."""
        nonlocal loaded_bytes
        loaded_bytes += model.weight_bytes
        if loaded_bytes >= _GIVE_BACK_BYTES:
            loaded_bytes = 0
            give_back_freed()
        return made

    loader = SegmentLoader(
        lambda model: _filed(model, store),
        lambda model: freeing(model, _load_segment(model, store, threads)),
        lambda compiler, boundary, model: freeing(model, _load_compiled(compiler, boundary, model, threads)),
        lambda model: _made(model, _weights_of(model, store), threads, optimize=False),
        shared,
    )
    try:
        with ending_after(_TRIAL_S):
            how = load_compiled if compiling else load_portable
            loaded = how(deploy.schedule, deploy.segments, loader)
            further = None if deploy.further is None else how(deploy.further, deploy.segments, loader)
    finally:
        store.loaded(deploy.weight_types)
    _log.info("epoch %d: %d segments, %d sessions made for them", deploy.epoch, len(deploy.segments), shared.made - before)
    names = tuple(s.name for s in deploy.segments)
    with ending_after(_WARM_UP_S):
        for program in (loaded, further):
            if program is not None:
                _warm_up(program, names, shared)
    give_back_freed()
    peers = {peer.device: peer for peer in reachable(deploy.peers, coordinator_host)}

    def deployment(program: CompiledDeployment, further: Deployment | None = None, reading: Deployment | None = None) -> Deployment:
        return Deployment(deploy.epoch, program.schedule, program.slices, peers, program.segments, names, further, reading)

    if further is None:
        return deployment(loaded)
    reading = None
    if deploy.further is not None and deploy.is_whole:
        tells, _ = reading_of(deploy.further)
        reading = Deployment(deploy.epoch, tells, SlicePlan(tells), peers, (), names)
    return deployment(loaded, deployment(further), reading)


def reachable(peers: Sequence[Peer], coordinator_host: str) -> tuple[Peer, ...]:
    """Return peers at addresses that can be reached: a coordinator that listens everywhere is at the host this agent joined by."""
    return tuple(replace(peer, address=peer.address.replace("tcp://*:", f"tcp://{coordinator_host}:")) for peer in peers)


def _weights_of(model: SegmentModel, store: WeightStore) -> dict[str, Array]:
    weights: dict[str, Array] = {}
    for name, ref in model.weights.items():
        array = store.get(ref.digest)
        if array is None:
            raise ModelError(f"segment '{model.name}': weight '{name}' is not here any more; is the memory or the disk of this agent full?")
        weights[name] = array
    return weights


def _load_segment(model: SegmentModel, store: WeightStore, threads: int) -> Segment:
    """Make a segment as it was shipped. What is packed is packed from files: nothing else has it in memory."""
    skeleton, weights, folder = _filed(model, store, only_packed=True)
    if folder is not None:
        try:
            return _made(replace(model, skeleton=skeleton), weights, threads, folder=folder)
        except ModelError as error:
            # Another agent that shares the folder may have removed one: what is mapped here is still there.
            _log.info("%s; its weights are given from memory", error)
    return _made(model, _weights_of(model, store), threads)


def _filed(model: SegmentModel, store: WeightStore, *, only_packed: bool = False) -> tuple[bytes, Mapping[str, Array], Path | None]:
    """Return a segment that refers to files for large weights, its others, and the folder of the files, if there are any."""
    weights = _weights_of(model, store)
    parts = store.parts({name: ref.digest for name, ref in model.weights.items() if weights[name].nbytes > SMALL_BYTES})
    if not parts:
        return model.skeleton, weights, None
    with as_model_error(f"segment '{model.name}'"):
        skeleton, filed = with_files(model.skeleton, parts, only_packed=only_packed)
    return skeleton, {name: array for name, array in weights.items() if name not in filed}, store.directory


def _made(model: SegmentModel, weights: Mapping[str, Array], threads: int, *, optimize: bool = True, folder: Path | None = None) -> Segment:
    try:
        session = make_session(
            model.skeleton,
            weights=weights,
            threads=threads,
            shared_pool=threads > 1,
            spinning=_SPIN_US,
            optimize=optimize,
            segment=not model.whole,
            folder=folder,
        )
    except BbgrapError as error:
        raise ModelError(f"segment '{model.name}': {error}") from error
    return caller(session, model.inputs, model.outputs)


def _load_compiled(compiler: SegmentCompiler, boundary: Boundary, model: SegmentModel, threads: int) -> Segment:
    session = compiler.build(boundary, threads=threads, shared_pool=threads > 1, spinning=_SPIN_US)
    return caller(session, compiler.front.inputs, model.outputs)


def _warm_up(loaded: CompiledDeployment, names: Sequence[str], shared: SharedSegments) -> None:
    """Run every segment once that never ran: the first run allocates and touches all memory."""
    buffers = loaded.schedule.buffers
    for step in loaded.schedule.steps:
        if not isinstance(step, LocalRun) or shared.warmed(loaded.segments[step.segment]):
            continue
        specs = [buffers[b] for b in step.inputs]
        try:
            # Ones, not zeros: integers may be divisors.
            loaded.segments[step.segment]([np.ones(spec.shape, spec.dtype.numpy) for spec in specs if spec.shape is not None])
        except Exception as error:  # noqa: BLE001,RUF100 - synthetic inputs may be illegal for the model; the first request is slower then
            _log.debug("no warm-up of '%s': %s", names[step.segment], error)
