"""Why a request gets no answer, as HTTP and gRPC say it."""

from __future__ import annotations

import logging
from enum import Enum

from bbgrap.errors import AccessError, BbgrapError, ClusterUnavailableError, InputError, ModelChangedError, StateLostError, UsageError
from bbgrap.session.stops import StoppedError

_log = logging.getLogger("bbgrap.serving")


class Refusal(Enum):
    """Kinds of refusals: HTTP's status, and the name of gRPC's code."""

    MALFORMED = (400, "INVALID_ARGUMENT")
    UNKNOWN = (404, "NOT_FOUND")
    SLOW_BODY = (408, "DEADLINE_EXCEEDED")
    LOST = (410, "FAILED_PRECONDITION")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    ENCODING = (415, "UNIMPLEMENTED")
    BUSY = (429, "RESOURCE_EXHAUSTED")
    FAILED = (500, "INTERNAL")
    UNAVAILABLE = (503, "UNAVAILABLE")
    DEADLINE = (504, "DEADLINE_EXCEEDED")

    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code

    @property
    def retry_after_s(self) -> int | None:
        """When it may be worth another try; None: not before something is changed."""
        return 1 if self in (Refusal.BUSY, Refusal.UNAVAILABLE) else None


class RefusedError(Exception):
    """A request that gets no answer; the message is for its sender."""

    def __init__(self, kind: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def malformed(reason: str) -> RefusedError:
    """Return what is raised for a request that nobody could answer."""
    return RefusedError(Refusal.MALFORMED, reason)


def refusal_of(error: Exception) -> RefusedError:
    """Return what a failure is to the sender of the request; what is no error of ours is logged, for it is a fault of ours."""
    match error:
        case RefusedError():
            return error
        case InputError() | UsageError():
            kind = Refusal.MALFORMED
        case StateLostError():
            kind = Refusal.LOST
        case ClusterUnavailableError() | AccessError() | ModelChangedError():
            kind = Refusal.UNAVAILABLE
        case BbgrapError():
            kind = Refusal.FAILED
        case StoppedError():
            return RefusedError(Refusal.UNAVAILABLE, "the server is stopping")
        case _:
            _log.error("a request failed unexpectedly", exc_info=error)
            return RefusedError(Refusal.FAILED, f"unexpected {type(error).__name__}; the server's log has more")
    return RefusedError(kind, str((*error.args, "")[0]))  # clients may speak other languages than Python
