"""All peers, in the order in which they are shown; bbgrap is first, for it is opened on nodes that nobody else uses yet."""

from __future__ import annotations

from benchmarks.peers import onnxruntime_alone, openvino_alone, ours, over_dask, over_ray, replicas, torch_parallel
from benchmarks.peers.peer import Peer

OURS = ours.PEER
OTHERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        onnxruntime_alone.ONE_NODE,
        openvino_alone.PEER,
        replicas.PEER,
        over_ray.PEER,
        over_dask.PEER,
        torch_parallel.PEER,
        onnxruntime_alone.BOTH_CORES,
    )
}
ALL: dict[str, Peer] = {OURS.name: OURS, **OTHERS}
