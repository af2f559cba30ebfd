"""Kinds of failure, as they travel between processes."""

from __future__ import annotations

from enum import Enum
from typing import Self

from bbgrap.errors import (
    AccessError,
    BbgrapError,
    ClusterFileError,
    ClusterUnavailableError,
    ExecutionError,
    InputError,
    ModelError,
    PlanError,
    ProgramError,
    RemoteProtocolError,
    StateLostError,
    UsageError,
)


class Fault(Enum):
    """Kinds of failure, each with the error a client raises for it: an `ExecutionError` where none is named."""

    MODEL = "model", ModelError
    INPUT = "input", InputError
    PLAN = "plan", PlanError
    PROGRAM = "program", ProgramError
    USAGE = "usage", UsageError
    CLUSTER_FILE = "cluster-file", ClusterFileError
    UNAVAILABLE = "unavailable", ClusterUnavailableError
    EXECUTION = "execution"
    BUSY = "busy"
    ACCESS = "access", AccessError
    PROTOCOL = "protocol", RemoteProtocolError
    UNKNOWN_MODEL = "unknown-model"
    UNKNOWN_PLAN = "unknown-plan"
    STATE_LOST = "state-lost", StateLostError

    error: type[BbgrapError]

    def __new__(cls, text: str, error: type[BbgrapError] = ExecutionError) -> Self:
        """Make a kind whose value is the text alone."""
        kind = object.__new__(cls)
        kind._value_, kind.error = text, error
        return kind

    @classmethod
    def of(cls, error: BbgrapError) -> Fault:
        """Return the kind of an error; anything unforeseen counts as a failed execution."""
        return next((fault for fault in cls if type(error) is fault.error), cls.EXECUTION)
