"""What is answered to who may not say something, and to questions about keys that nothing comes of."""

from __future__ import annotations

from pathlib import Path

from bbgrap.protocol.client_messages import Ask, Cancel, ClientMessage, EndSequence, Failed, ForkSequence
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.key_messages import Enrol, KeyMessage
from bbgrap.protocol.messages import AgentMessage, Join, Refused

SHUT_OUT = (
    "its key was revoked, or has expired; get a new token on the coordinator's machine: 'bbgrap token create', for agents with --role agent"
)


def refused(message: AgentMessage | ClientMessage | KeyMessage, why: str) -> Failed | Refused | None:
    """Return what to answer to a message that is refused; None if it has no answer."""
    if isinstance(message, Join | Enrol):
        return Refused(why, retry=False)
    if isinstance(message, AgentMessage | Ask | Cancel | ForkSequence | EndSequence):
        return None
    return Failed(message.call, Fault.ACCESS, why)


def not_written(message: KeyMessage, path: Path, error: OSError) -> Failed | Refused:
    """Return what to answer where keys could not be written. A disk that is full may have room again: a node asks again."""
    what = f"'{path}' on the coordinator's machine: {error.strerror or error}; make room there, and try again"
    why = f"keys: nothing has changed, for they cannot be written: {what}"
    return Refused(why, retry=True, unable=True) if isinstance(message, Enrol) else refused_call(message, why)


def refused_call(message: KeyMessage, why: str, fault: Fault = Fault.ACCESS) -> Failed | Refused:
    """Return the answer to a question about keys that nothing comes of."""
    return Refused(why, retry=False) if isinstance(message, Enrol) else Failed(message.call, fault, why)
