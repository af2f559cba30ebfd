"""Our errors as onnxruntime's: what a session raises is an error of ours *and* of the class that onnxruntime raises for the same fault.

So `except bbgrap.InputError` and `except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument` both catch it. `bbgrap.errors` itself
knows nothing of this: it is imported where onnxruntime is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped,unused-ignore]
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from bbgrap.errors import BbgrapError, ClusterUnavailableError, ExecutionError, InputError, ModelError, UnsupportedError, UsageError

_STATUS = re.compile(r"\b\d+ : ([A-Z_]+) : ")
"""How onnxruntime's messages name a class: `2 : INVALID_ARGUMENT : ...`; an agent's reason has it somewhere inside."""

_OF_STATUS = {
    "FAIL": "Fail",
    "INVALID_ARGUMENT": "InvalidArgument",
    "NO_SUCHFILE": "NoSuchFile",
    "NO_MODEL": "NoModel",
    "ENGINE_ERROR": "EngineError",
    "RUNTIME_EXCEPTION": "RuntimeException",
    "INVALID_PROTOBUF": "InvalidProtobuf",
    "NOT_IMPLEMENTED": "NotImplemented",
    "INVALID_GRAPH": "InvalidGraph",
    "EP_FAIL": "EPFail",
}


def as_also(error: BbgrapError, base: type[Exception]) -> BbgrapError:
    """Return the error as one of `base`, too."""
    kind: type[BbgrapError] = getattr(error, "ours", type(error))
    return error if isinstance(error, base) else _joined(kind, base)(*error.args)


@contextmanager
def speaking_onnxruntime(base: type[Exception] | None = None) -> Iterator[None]:
    """Let every error of ours be one of onnxruntime's, too: of the class that fits, unless `base` says which."""
    try:
        yield
    except BbgrapError as error:
        fitting = base or (None if hasattr(error, "ours") else _base(error))
        if fitting is None or isinstance(error, fitting):
            raise
        raise as_also(error, fitting).with_traceback(error.__traceback__) from None


def _base(error: BbgrapError) -> type[Exception]:
    """Return what onnxruntime raises for the fault."""
    status = _STATUS.search(str(error))
    name = _OF_STATUS.get(status[1], "Fail") if status else ""
    match error:
        case UnsupportedError():
            name = "NotImplemented"
        case UsageError():
            return ValueError
        case InputError():
            name = name or "InvalidArgument"
        case ModelError():
            name = name or _of_unreadable(error.__context__)
        case ClusterUnavailableError():
            name = "EPFail"
        case ExecutionError() | _:
            name = name or "Fail"
    found: type[Exception] = getattr(ort_state, name)
    return found


def _of_unreadable(cause: BaseException | None) -> str:
    match cause:
        case FileNotFoundError():
            return "NoSuchFile"
        case OSError() | ProtobufError():
            return "InvalidProtobuf"
        case _:
            return "InvalidGraph"


_JOINED: dict[tuple[type[BbgrapError], type[Exception]], type[BbgrapError]] = {}


def _joined(kind: type[BbgrapError], base: type[Exception]) -> type[BbgrapError]:
    def reduced(self: BbgrapError) -> tuple[Callable[..., BbgrapError], tuple[Any, ...]]:
        return _rebuilt, (kind, base, self.args)  # the class has no place where pickle could find it

    if (kind, base) not in _JOINED:
        # It is shown, and known, by our name.
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "ours": kind, "__reduce__": reduced}
        _JOINED[kind, base] = type(kind.__name__, (kind, base), names)
    return _JOINED[kind, base]


def _rebuilt(kind: type[BbgrapError], base: type[Exception], args: tuple[Any, ...]) -> BbgrapError:
    return _joined(kind, base)(*args)
