"""What an agent says about itself when it joins."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import onnxruntime
import psutil

from bbgrap.cluster.types import AGENT_BYTES
from bbgrap.doctor.cgroups import memory_bytes, memory_group, processors
from bbgrap.engine.sessions import usable_cores
from bbgrap.protocol.messages import Join
from bbgrap.protocol.version import VERSION

MAX_OPSET = 28
"""The highest opset of ai.onnx that the oldest onnxruntime runs which installs (1.32), measured; later ones run at least that."""


def introduce(name: str, threads: int, data_address: str) -> Join:
    """Return the first message of this agent, but for its profile; zero threads mean one per core it may use."""
    cores = cores_to_use()
    return Join(
        name=name,
        version=VERSION,
        onnxruntime=onnxruntime.__version__,
        max_opset=MAX_OPSET,
        threads=threads or cores,
        cores=cores,
        memory_bytes=memory_limit(),
        data_address=data_address,
        profile=None,
        memory_group=memory_group(),
    )


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory that plans may fill: the machine's, its container's or what this process may still map, if that is less.

    What an agent itself takes is not there for plans.
    """
    total: int = psutil.virtual_memory().total
    return max(1, min(total, memory_bytes(root) or total, _mappable_bytes() or total) - AGENT_BYTES)


def _mappable_bytes() -> int | None:
    """Return how much more this process may map, as batch systems limit it (`ulimit -v`); None without a limit."""
    with suppress(ImportError):
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(1, limit - psutil.Process().memory_info().vms)
    return None


def cores_to_use(root: Path = Path("/")) -> int:
    """Return how many cores this process may use: those it is bound to, or its container's whole ones if they are less.

    A thread for part of a core would be stopped in the middle of kernels that all others wait for.
    """
    return max(1, min(usable_cores(), int(processors(root) or usable_cores())))
