"""What the audit log tells of clients and their requests: who they are, and what each of them ran in a minute."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import Audit
from bbgrap.control.plans import ServedPlan

EVERY_S = 60.0
"""How often it is told what was run."""
MAX_COUNTS = 1024
"""Clients and plans that are told apart in that time; further ones are counted together."""

Ending = Literal["done", "failed", "cancelled", "refused"]


def peer_of(identity: RoutingId, agent: str = "") -> dict[str, str]:
    """Return how the audit log calls a peer: `agent` is the name that it joined with."""
    short = (identity if any(identity[:32]) else identity[32:]).hex()[:12]  # its key if there is one, else the number it gave itself
    return {"agent": agent, "id": short} if agent else {"client": short}


class RunCounts:
    """How requests ended since the last report, by client and plan.

    Invariants: there are at most `MAX_COUNTS` entries, and one for all others.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[RoutingId, str, str], Counter[Ending]] = {}
        self._due = float("-inf")
        self.verified: Counter[str] = Counter()
        """What became of the requests that were to be verified."""

    def ended(self, identity: RoutingId, plan: ServedPlan, how: Ending) -> None:
        """Count a request."""
        key = identity, plan.model, plan.key
        if key not in self._ended and len(self._ended) >= MAX_COUNTS:
            key = b"", "", ""
        self._ended.setdefault(key, Counter())[how] += 1

    def report(self, now: float) -> list[Audit]:
        """Tell what was counted, if it is time to."""
        if now < self._due:
            return []
        self._due = now + EVERY_S
        told = [
            Audit("ran", peer_of(identity) if identity else {"client": "others"}, _about(model, plan, counts))
            for (identity, model, plan), counts in self._ended.items()
        ]
        if self.verified:
            told.append(Audit("verified", {}, dict(self.verified)))
        self._ended.clear()
        self.verified.clear()
        return told


def _about(model: str, plan: str, counts: Counter[Ending]) -> dict[str, str | int]:
    return {"model": model, "plan": plan, "requests": counts.total(), **{how: counts[how] for how in counts if how != "done"}}
