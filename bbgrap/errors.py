"""Every error this package raises on purpose.

Law: a message says who, what was expected, what was got and what to do; the class says whose fault it is, and with it the exit code
of the command line (see `docs/reference/commands.md`). What a session raises is of onnxruntime's class for the fault, too
(`bbgrap.session.ort_errors`).
"""


class BbgrapError(Exception):
    """Base of all errors that a user can cause or must see; everything else is a bug.

    What to do about it in Python is the second argument, if there is one: the message ends with it, but for clients of a server.
    """

    exit_code = 1

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class ModelError(BbgrapError):
    """The model file cannot be read, is rejected by the ONNX checker, or has no meaning for its inputs."""


class ModelChangedError(ModelError):
    """A model's file is not the one any more that it was when it was read, and a coordinator lacks it."""


class InputError(BbgrapError):
    """A tensor given by the user does not fit the model's input: name, dtype or shape."""


class PlanError(BbgrapError):
    """No plan exists for this model on this cluster, or a plan breaks one of its invariants."""


class ProgramError(BbgrapError):
    """A program breaks one of its invariants, or a pass changed what it must keep."""


class ClusterFileError(BbgrapError):
    """A cluster or profile file is wrong; the message lists every fault in it."""


class UsageError(BbgrapError):
    """Options that contradict each other or the model."""

    exit_code = 2


class UnsupportedError(UsageError):
    """Something of onnxruntime that a cluster does not have; the message says why, and what there is instead."""


class ClusterUnavailableError(BbgrapError):
    """No coordinator answers, or it has no agent to work with."""

    exit_code = 3


class AccessError(BbgrapError):
    """A key or token is missing, wrong, revoked, or does not allow what was asked."""

    exit_code = 4


class ExecutionError(BbgrapError):
    """A request failed while it ran: a kernel error, a lost agent, a deadline."""


class StateLostError(ExecutionError):
    """A sequence cannot go on: its state is gone, and its inputs are not kept any more. Begin it again."""


class RemoteProtocolError(BbgrapError):
    """The other side sent something malformed, oversized or out of turn."""


class OtherVersionError(RemoteProtocolError):
    """The other side speaks another version of the protocol."""


class LocalProtocolError(BbgrapError):
    """This side tried to send something malformed, oversized or out of turn: a bug or a wrong call."""


def shortened(text: str, length: int) -> str:
    """Return a text of at most so many characters: its beginning and its end, which tell most."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
