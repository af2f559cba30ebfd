"""Partition ONNX models over several CPU machines.

    with bbgrap.LocalCluster(agents=2) as cluster:              # or bbgrap.connect("tcp://head:7070")
        session = bbgrap.InferenceSession("resnet50.onnx", cluster=cluster)
        logits, = session.run(None, {"input": x})

Names are loaded when they are first used, so that importing this package is quick.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from bbgrap.protocol.version import VERSION

if TYPE_CHECKING:
    from bbgrap.cluster.types import Cluster, LinkProfile, NodeProfile, Speed
    from bbgrap.errors import (
        AccessError,
        BbgrapError,
        ClusterFileError,
        ClusterUnavailableError,
        ExecutionError,
        InputError,
        ModelError,
        PlanError,
        StateLostError,
        UnsupportedError,
        UsageError,
    )
    from bbgrap.launching.dask_cluster import DaskCluster
    from bbgrap.launching.ray_cluster import RayCluster
    from bbgrap.launching.ssh_cluster import SSHCluster
    from bbgrap.local import LocalCluster
    from bbgrap.planners.options import PlanOptions
    from bbgrap.session.connection import Connection, connect
    from bbgrap.session.inference import InferenceSession

__version__ = VERSION

# From 1.29 on onnxruntime reports names and hashes of models to its makers unless this is set before it is imported; so it must stand
# here, where every process of a cluster passes. A user's own choice goes first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "AccessError",
    "BbgrapError",
    "Cluster",
    "ClusterFileError",
    "ClusterUnavailableError",
    "Connection",
    "DaskCluster",
    "ExecutionError",
    "InferenceSession",
    "InputError",
    "LinkProfile",
    "LocalCluster",
    "ModelError",
    "NodeProfile",
    "PlanError",
    "PlanOptions",
    "RayCluster",
    "SSHCluster",
    "Speed",
    "StateLostError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "connect",
]

_HOMES = {
    "bbgrap.cluster.types": ("Cluster", "LinkProfile", "NodeProfile", "Speed"),
    "bbgrap.session.connection": ("Connection", "connect"),
    "bbgrap.launching.dask_cluster": ("DaskCluster",),
    "bbgrap.launching.ray_cluster": ("RayCluster",),
    "bbgrap.launching.ssh_cluster": ("SSHCluster",),
    "bbgrap.local": ("LocalCluster",),
    "bbgrap.planners.options": ("PlanOptions",),
    "bbgrap.session.inference": ("InferenceSession",),
}
"""Where names are; all others are errors."""
_HOME_OF = dict.fromkeys(__all__, "bbgrap.errors") | {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bbgrap' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
