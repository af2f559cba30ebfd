"""Kinds of failure, as they travel between processes."""

from __future__ import annotations

from enum import Enum
from typing import Self

from bbgrap import errors


class Fault(Enum):
    """Kinds of failure, each with the error a client raises for it: an `ExecutionError` where none is named."""

    MODEL = "model", errors.ModelError
    INPUT = "input", errors.InputError
    PLAN = "plan", errors.PlanError
    PROGRAM = "program", errors.ProgramError
    USAGE = "usage", errors.UsageError
    CLUSTER_FILE = "cluster-file", errors.ClusterFileError
    UNAVAILABLE = "unavailable", errors.ClusterUnavailableError
    EXECUTION = "execution"
    BUSY = "busy"
    ACCESS = "access", errors.AccessError
    PROTOCOL = "protocol", errors.RemoteProtocolError
    UNKNOWN_MODEL = "unknown-model"
    UNKNOWN_PLAN = "unknown-plan"
    STATE_LOST = "state-lost", errors.StateLostError

    error: type[errors.BbgrapError]

    def __new__(cls, text: str, error: type[errors.BbgrapError] = errors.ExecutionError) -> Self:
        """Make a kind whose value is the text alone."""
        kind = object.__new__(cls)
        kind._value_, kind.error = text, error
        return kind

    @classmethod
    def of(cls, error: errors.BbgrapError) -> Fault:
        """Return the kind of an error; anything unforeseen counts as a failed execution."""
        return next((fault for fault in cls if type(error) is fault.error), cls.EXECUTION)
