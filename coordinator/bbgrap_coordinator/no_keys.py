"""A coordinator without keys."""

from __future__ import annotations

from collections.abc import Callable

from bbgrap.protocol.client_messages import ClientMessage
from bbgrap.protocol.key_messages import Enrol, Enrolled, KeyMessage
from bbgrap.protocol.messages import AgentMessage
from bbgrap_coordinator.key_refusals import refused_call
from bbgrap_coordinator.keyring import KeyAnswer


class NoKeys:
    """What a coordinator with --insecure has in place of a key ring: everybody may say everything."""

    lock = None
    data_identity = None

    def refusal(self, identity: bytes, message: AgentMessage | ClientMessage | KeyMessage) -> str:
        """See `KeyRing.refusal`."""
        return ""

    def answer(self, identity: bytes, message: KeyMessage, connections: Callable[[bytes], int]) -> tuple[KeyAnswer, None]:
        """See `KeyRing.answer`: there are no tokens, and nodes need none."""
        if isinstance(message, Enrol):
            return Enrolled(b"", b""), None
        return refused_call(message, "this coordinator runs with --insecure: it has no keys; start it without to lock it"), None

    def key_of_node(self, name: str) -> str:
        """See `KeyRing.key_of_node`: nobody has a key."""
        return ""

    def ended(self) -> list[bytes]:
        """See `KeyRing.ended`."""
        return []

    def is_node(self, identity: bytes) -> bool:
        """See `KeyRing.is_node`."""
        return False

    def name_of_short(self, short: str) -> str:
        """See `KeyRing.name_of_short`."""
        return ""

    def name_of(self, identity: bytes) -> str:
        """See `KeyRing.name_of`."""
        return identity[-6:].hex()
