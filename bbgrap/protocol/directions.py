"""What may be sent in which direction. A module of its own: a worker speaks none of them, and starts sooner."""

from __future__ import annotations

from typing import get_args

from bbgrap.protocol.agent_directions import TO_AGENT as TO_AGENT
from bbgrap.protocol.client_messages import ClientAnswer, ClientMessage
from bbgrap.protocol.codec import Codec
from bbgrap.protocol.key_messages import KeyMessage
from bbgrap.protocol.messages import AgentMessage

TO_COORDINATOR: Codec[AgentMessage | ClientMessage | KeyMessage] = Codec(
    *get_args(AgentMessage), *get_args(ClientMessage), *get_args(KeyMessage)
)
TO_CLIENT: Codec[ClientAnswer] = Codec(*get_args(ClientAnswer))
