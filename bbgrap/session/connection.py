"""A client's connection to a coordinator: what a user asks of it."""

from __future__ import annotations

import os
from pathlib import Path

from bbgrap.cluster.types import NodeProfile
from bbgrap.errors import UsageError
from bbgrap.protocol.client_messages import ListNodes, MeasureNodes, MeasureUnknown, Nodes, Profiles, SetProfile
from bbgrap.protocol.inspection import ForgetProfile, Inspection, InspectNodes, KnownProfiles, ListProfiles
from bbgrap.protocol.key_messages import CreateToken, KeyStatus, ListTokens, RevokeToken, RotateToken, TokenMade, Tokens
from bbgrap.protocol.status_messages import NodeStatus, PlanShown, ReadPlan, ReadStatus, Status
from bbgrap.session.calls import Calls, OnProgress
from bbgrap.transport.credentials import Credentials

COORDINATOR = "BBGRAP_COORDINATOR"
"""The environment variable that holds a coordinator's address; `bbgrap exec` sets it for the program."""


class Connection(Calls):
    """A connection to one coordinator.

    What takes `timeout_s` raises TimeoutError if there is no answer within so many seconds.
    """

    def nodes(self, timeout_s: float | None = None) -> tuple[NodeStatus, ...]:
        """Return the agents that live."""
        return self.ask(ListNodes(self.number()), Nodes, timeout_s=timeout_s).nodes

    def status(self, events_after: int = 0, timeout_s: float | None = None) -> Status:
        """Return how the cluster is: nodes, links, models and what serves them, counters; of what happened, events after that number."""
        return self.ask(ReadStatus(self.number(), events_after), Status, timeout_s=timeout_s)

    def shown_plan(self, plan: str, timeout_s: float | None = None) -> PlanShown:
        """Return the report of what serves a plan, and the latest request that was recorded on it; `plan` is a key that a status tells.

        Raises:
            ExecutionError: if there is no such plan any more.
        """
        return self.ask(ReadPlan(self.number(), plan), PlanShown, timeout_s=timeout_s)

    def profile(self, node: str = "", on_progress: OnProgress | None = None, timeout_s: float | None = None) -> tuple[NodeProfile, ...]:
        """Measure one node, or all of them, and return what was found.

        They work at once, as they will, and then measure their links, one node after the other.
        """
        return self.ask(MeasureNodes(self.number(), node), Profiles, on_progress, timeout_s).profiles

    def measure_unknown(self, on_progress: OnProgress | None = None, timeout_s: float | None = None) -> tuple[NodeProfile, ...]:
        """Measure the nodes whose speeds nobody knows, and return what was found."""
        return self.ask(MeasureUnknown(self.number()), Profiles, on_progress, timeout_s).profiles

    def add_profile(self, profile: NodeProfile) -> None:
        """Use a profile for the node of its name from now on, whatever is measured."""
        self.ask(SetProfile(self.number(), profile), Profiles)

    def profiles(self) -> KnownProfiles:
        """Return what is known of nodes: what was measured, and what was given by hand."""
        return self.ask(ListProfiles(self.number()), KnownProfiles)

    def forget_profile(self, node: str, *, measured: bool = False) -> KnownProfiles:
        """Forget what was given by hand of a node, and with `measured` what was measured, too; return what was forgotten."""
        return self.ask(ForgetProfile(self.number(), node, measured), KnownProfiles)

    def inspect(self) -> Inspection:
        """Return how the machines are, and who serves the models: what `bbgrap doctor` looks at."""
        return self.ask(InspectNodes(self.number()), Inspection)

    def create_token(self, name: str, role: str, lasts_s: float = 0.0) -> str:
        """Make a token of a role (reader, client, agent, admin) that lasts so long (0: until it is revoked), and return its text."""
        return self.ask(CreateToken(self.number(), role, name, lasts_s), TokenMade).token

    def tokens(self) -> tuple[KeyStatus, ...]:
        """Return what keys there are, those taken back among them."""
        return self.ask(ListTokens(self.number()), Tokens).keys

    def revoke_token(self, name: str) -> tuple[KeyStatus, ...]:
        """Take back the key of a token or node, at once; return what keys there are."""
        return self.ask(RevokeToken(self.number(), name), Tokens).keys

    def rotate_token(self, name: str, grace_s: float) -> str:
        """Replace a token, and return the new one's text; the old one goes on for `grace_s` seconds."""
        return self.ask(RotateToken(self.number(), name, grace_s), TokenMade).token


def connect(
    address: str = "", timeout: float = 3.0, *, token: str = "", token_file: str | Path | None = None, insecure: bool = False
) -> Connection:
    """Connect to the coordinator at `tcp://HOST:PORT`, that of BBGRAP_COORDINATOR, or `mdns`: the one that announces itself.

    `timeout` is in seconds, and begins when the host's name has been looked up.

    Without a token, BBGRAP_TOKEN or BBGRAP_TOKEN_FILE is used, or, for a coordinator of this user on this machine, its own. `insecure` is
    for a coordinator that was started so: nobody is known to anybody, and nothing is encrypted.

    Raises:
        UsageError: if no address is given, nor in the environment.
        ClusterUnavailableError: if no coordinator answers in time.
        AccessError: if there is no token, or it is not taken.
    """
    address = address or os.environ.get(COORDINATOR, "")
    if not address:
        raise UsageError(f"which cluster? give an address, or set {COORDINATOR}=tcp://HOST:PORT")
    return Connection(address, timeout, Credentials(token, None if token_file is None else Path(token_file), insecure))
