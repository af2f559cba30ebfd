"""What an agent says about itself when it joins."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import psutil

from bbgrap.cluster.types import AGENT_BYTES
from bbgrap.doctor.cgroups import memory_bytes, memory_group, processors
from bbgrap.engine.sessions import usable_cores
from bbgrap.protocol.messages import Join
from bbgrap.protocol.version import VERSION

_OPSET_BY_MINOR = {22: 22, 23: 23, 24: 25, **dict.fromkeys(range(25, 32), 26)}
_NEWEST_OPSET = 28
"""Highest opset by onnxruntime's minor version, measured (1.22 to 1.32); later ones accept at least the last."""


def introduce(name: str, threads: int, data_address: str) -> Join:
    """Return the first message of this agent, but for its profile; zero threads mean one per core it may use."""
    cores = cores_to_use()
    return Join(
        name=name,
        version=VERSION,
        onnxruntime=onnxruntime.__version__,
        max_opset=max_opset(onnxruntime.__version__),
        threads=threads or cores,
        cores=cores,
        memory_bytes=memory_limit(),
        data_address=data_address,
        profile=None,
        memory_group=memory_group(),
    )


def max_opset(version: str) -> int:
    """Return the highest opset of ai.onnx that a version of onnxruntime runs."""
    minor = int(version.split(".")[1])
    return _OPSET_BY_MINOR.get(minor, _NEWEST_OPSET if minor > min(_OPSET_BY_MINOR) else 21)


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory that plans may fill: the machine's, or its container's, but for what an agent itself takes."""
    total: int = psutil.virtual_memory().total
    return max(1, min(total, memory_bytes(root) or total) - AGENT_BYTES)


def cores_to_use(root: Path = Path("/")) -> int:
    """Return how many cores this process may use: those it is bound to, or its container's whole ones if they are less.

    A thread for part of a core would be stopped in the middle of kernels that all others wait for.
    """
    return max(1, min(usable_cores(), int(processors(root) or usable_cores())))
