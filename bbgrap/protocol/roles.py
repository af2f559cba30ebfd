"""Who may say what to a coordinator: the role of a key, and the messages that it allows.

Every key has one role. A node's own key, which it enrols by a token of role `agent` or `admin`, may say what agents say; the token itself
may only enrol. `docs/security.md` is for readers, this table is what the coordinator asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from bbgrap.protocol import client_messages as client
from bbgrap.protocol import inspection
from bbgrap.protocol import key_messages as keys
from bbgrap.protocol.messages import AgentMessage
from bbgrap.protocol.status_messages import StatusCall
from bbgrap.protocol.tokens import Role

NODE = "node"
"""What a key is that was enrolled: no token, but a machine's own."""

_READS = frozenset(
    {client.Hello, client.ListNodes, client.Cancel, client.Ask, inspection.InspectNodes, inspection.ListProfiles, *get_args(StatusCall)}
)
_RUNS = _READS | {
    client.OfferModel,
    client.ModelChunk,
    client.PrepareModel,
    client.RunModel,
    client.MeasureUnknown,
    client.ForkSequence,
    client.EndSequence,
}
_COMPUTES = frozenset({*get_args(AgentMessage), keys.Enrol})
_RULES = frozenset({client.MeasureNodes, client.SetProfile, inspection.ForgetProfile, *get_args(keys.TokenCall)})

MAY: Mapping[str, frozenset[type[Any]]] = {
    Role.READER.value: _READS,
    Role.CLIENT.value: _RUNS,
    Role.AGENT.value: frozenset({keys.Enrol}),
    NODE: _COMPUTES,
    Role.ADMIN.value: _RUNS | _RULES | {keys.Enrol},
}
"""The messages that each kind of key may send."""


def needed_for(message: type[Any]) -> str:
    """Return the roles that may send a message, in words."""
    return " or ".join(f"'{kind}'" for kind, allowed in MAY.items() if message in allowed)
