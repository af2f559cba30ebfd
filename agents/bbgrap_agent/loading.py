"""From a `Deploy` message to sessions that are warm."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import numpy as np

from bbgrap.engine.sessions import make_session
from bbgrap.errors import BbgrapError, ModelError
from bbgrap.graph.types import Array
from bbgrap.program.artifacts import SegmentModel
from bbgrap.program.schedule import Run
from bbgrap.protocol.messages import Deploy
from bbgrap_agent.executor import Deployment, Segment
from bbgrap_agent.weights import WeightStore

_SPIN_US = 1_000
"""How long idle helper threads wait busily: longer than an exchange of halos, short enough to leave idle machines idle."""

_log = logging.getLogger("bbgrap.agent")


def load(deploy: Deploy, store: WeightStore, threads: int, coordinator_host: str) -> Deployment:
    """Make and warm up the sessions of a deployment; `coordinator_host` is the host this agent joined by.

    Raises:
        ModelError: if a segment cannot be loaded or a weight is gone; the message names the segment.
    """
    segments = tuple(_load_segment(segment, store, threads) for segment in deploy.segments)
    _warm_up(deploy, segments)
    addresses = tuple(peer.address.replace("tcp://*:", f"tcp://{coordinator_host}:") for peer in deploy.peers)
    return Deployment(deploy.epoch, deploy.schedule, segments, tuple(s.name for s in deploy.segments), addresses)


def _load_segment(model: SegmentModel, store: WeightStore, threads: int) -> Segment:
    if hashlib.sha256(model.skeleton).hexdigest() != model.digest:
        raise ModelError(f"segment '{model.name}': its content has another digest; it was damaged on the way")
    weights: dict[str, Array] = {}
    for name, ref in model.weights.items():
        array = store.get(ref.digest)
        if array is None:
            raise ModelError(f"segment '{model.name}': weight '{name}' is not here any more; is the memory or the disk of this agent full?")
        weights[name] = array
    try:
        session = make_session(model.skeleton, weights=weights, threads=threads, shared_pool=threads > 1, spinning=_SPIN_US)
    except BbgrapError as error:
        raise ModelError(f"segment '{model.name}': {error}") from error
    names, outputs, run = model.inputs, list(model.outputs), session.run

    def call(inputs: Sequence[Array]) -> Sequence[Array]:
        results: Sequence[Array] = run(outputs, dict(zip(names, inputs, strict=True)))
        return results

    return call


def _warm_up(deploy: Deploy, segments: Sequence[Segment]) -> None:
    """Run every segment once: the first run allocates and touches all memory."""
    buffers = deploy.schedule.buffers
    for step in deploy.schedule.steps:
        if not isinstance(step, Run):
            continue
        specs = [buffers[b] for b in step.inputs]
        try:
            # Ones, not zeros: integers may be divisors.
            segments[step.segment]([np.ones(spec.shape, spec.dtype.numpy) for spec in specs if spec.shape is not None])
        except Exception as error:  # noqa: BLE001,RUF100 - made-up inputs may be illegal for the model; the first request is slower then
            _log.debug("no warm-up of '%s': %s", deploy.segments[step.segment].name, error)
