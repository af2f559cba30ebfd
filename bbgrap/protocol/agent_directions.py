"""What agents say and hear. A module of its own: an agent speaks none of the clients' messages, and starts sooner without them."""

from __future__ import annotations

from typing import get_args

from bbgrap.protocol.codec import Codec
from bbgrap.protocol.key_messages import Enrol, Enrolled
from bbgrap.protocol.messages import AgentCommand, AgentMessage

FROM_AGENT: Codec[AgentMessage | Enrol] = Codec(*get_args(AgentMessage), Enrol)
"""A part of what may be sent to the coordinator."""
TO_AGENT: Codec[AgentCommand | Enrolled] = Codec(*get_args(AgentCommand), Enrolled, growth=48)
"""Schedules are lists of short lists: 4 bytes of a region become 150."""
