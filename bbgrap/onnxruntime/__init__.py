"""onnxruntime with sessions on a cluster: `import bbgrap.onnxruntime as ort`.

`InferenceSession` and `IOBinding` are ours; every other name is the installed onnxruntime's own. `python -m bbgrap.onnxruntime SCRIPT`
runs a program that says `import onnxruntime` in the same way, on the cluster of BBGRAP_COORDINATOR; `bbgrap exec` can start one, too.
"""

from __future__ import annotations

from importlib import import_module

import onnxruntime as _theirs

from bbgrap.session import InferenceSession
from bbgrap.session.binding import IOBinding

OURS = {"InferenceSession": InferenceSession, "IOBinding": IOBinding}
"""What is not onnxruntime's."""

__all__ = sorted(name for name in dir(_theirs) if not name.startswith("_"))


def __getattr__(name: str) -> object:
    try:
        return getattr(_theirs, name)
    except AttributeError:
        if name.startswith("_"):
            raise
    try:
        return import_module(f"onnxruntime.{name}")  # quantization, transformers, ...: onnxruntime imports them on demand, too
    except ModuleNotFoundError:
        raise AttributeError(f"module 'onnxruntime' has no attribute '{name}'") from None


def __dir__() -> list[str]:
    return __all__
