"""What becomes of requests when what they run on is lost: they go back into the queues of their plans, and run again elsewhere.

Laws: a request that runs again has a new number, so that late messages are not its own; every agent that may still compute for the old one
is told to forget it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, ToAgent
from bbgrap.control.loading import PATIENCE_S, Loading
from bbgrap.control.membership import Member
from bbgrap.control.open_requests import OpenRequests
from bbgrap.control.plans import MAX_DEATHS, Variant
from bbgrap.control.request import Request
from bbgrap.control.sequences import Sequences
from bbgrap.control.synthetic_requests import SyntheticRequests
from bbgrap.control.verifying import Verifying
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Abandon

MAX_LOSSES = 6
"""Runs that may lose an agent that nobody blames the request for: machines that go one after the other take none of them with them."""
FORGOTTEN_S = 1.0
"""After how long a kernel for a request that is not there an agent is told again; messages may be lost with a connection."""
LEFT_S = 10.0
"""How long it may still go on then, if it has not heard it before."""
HOLD_S = 0.25
"""How long a request that ran at the other end of a broken connection does not run elsewhere, unless that end is heard of. A worker that
dies closes its connections before its nanny can say so, and what has ended it must not end the next one. Chosen: two heartbeats."""


@dataclass(frozen=True, slots=True)
class RequestRecovery:
    """Takes requests back from variants, and gives up variants and requests that are lost too often."""

    _loading: Loading
    _table: OpenRequests
    _sequences: Sequences
    _synthetic: SyntheticRequests
    _verifying: Verifying

    def lose_agent(self, member: Member, variants: Collection[Variant]) -> list[CoordinatorInstruction]:
        """Run again, elsewhere, what ran on an agent that is gone or has lost its worker."""
        done: list[CoordinatorInstruction] = []
        for variant in variants:
            again, abandoned = self.take_back(variant)
            done += abandoned
            for request in again:
                request.lost.append(member.name)
                if len(request.lost) >= MAX_LOSSES:
                    names = ", ".join(f"'{name}'" for name in request.lost)
                    what = f"request {request.number}: agents {names} were lost while it ran"
                    reason = f"{what}; it may be what ends them, so it is not run again"
                    done += self._table.fail(request.number, Fault.EXECUTION, reason)
        return done

    def lose_variant(self, variant: Variant, node: str, reason: str, now: float) -> list[CoordinatorInstruction]:
        """Go on without a variant that a node cannot load; if its plan misses it, there is none for its world for a while."""
        plan = variant.plan
        text = f"{plan.called}: {variant.name} is given up: {reason}"
        told = Log(text, is_warning=True, event="given up", node=node, model=plan.model, epoch=variant.epoch)
        done: list[CoordinatorInstruction] = [told, *self.drop(variant)]
        left = [other for other in plan.variants if other.job == variant.job]
        if plan.is_standby:
            plan.refusals[node] += 1
            if plan.refusals[node] >= MAX_DEATHS:
                plan.refused[node] = reason
                plan.wait(now)
        elif not any(other.world for other in left):
            # A worker that ended while it loaded need not end again: once is no reason to refuse what waits.
            plan.refusals[node] += 1
            if left or plan.refusals[node] >= MAX_DEATHS:
                plan.fails(variant.world, Fault.EXECUTION, reason, now)
        return done

    def drop(self, variant: Variant) -> list[CoordinatorInstruction]:
        """Release a variant; what runs on it runs again elsewhere."""
        _, done = self.take_back(variant)
        return [*done, *self._loading.lose(variant)]

    def hold(self, variant: Variant, name: str, now: float, *, between_agents: bool) -> list[CoordinatorInstruction]:
        """Take back what runs on a variant of which a link is broken; it runs again when something is heard of an agent, or shortly."""
        again, done = self.take_back(variant)
        for request in again:
            request.broken += between_agents
            request.held = (name, now + HOLD_S)
        return done

    def forgotten(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Tell an agent again that nobody wants what it computes for long: the first time it may not have heard it."""
        beat = member.beat
        if not beat.request or beat.seconds <= FORGOTTEN_S or now - member.reminded <= FORGOTTEN_S:
            return []
        variant = self._loading.by_epoch.get(beat.epoch)
        is_wanted = variant is not None and beat.request in variant.queue.running
        if is_wanted or (beat.seconds < PATIENCE_S and self._sequences.is_left_by(beat.request)):
            return []
        member.reminded = now
        request = self._table.find(beat.request)
        patience = LEFT_S if request is None else self._table.patience_with(request)
        return [ToAgent(member.identity, Abandon(beat.epoch, beat.request, patience))]

    def let_go(self, now: float, name: str = "") -> None:
        """Let requests run again that were held for an agent that has been heard of, or for long enough."""
        for request in self._table.by_number.values():
            if request.held is not None and (request.held[0] == name or now >= request.held[1]):
                request.held = None
                self._loading.touch(request.plan)

    def take_back(self, variant: Variant, numbers: Collection[int] | None = None) -> tuple[list[Request], list[CoordinatorInstruction]]:
        """Let requests of a variant, all unless told which, be the next ones to start, under new numbers: late messages are not theirs."""
        again, done = [], self._synthetic.taken_back(variant, is_lost=numbers is None)
        done += self._verifying.taken_back(variant) if numbers is None else ()
        for number in sorted(n for n in variant.queue.running if n in self._table.by_number and (numbers is None or n in numbers)):
            request = self._table.by_number[number]
            done += self._loading.abandon(variant, number, self._table.patience_with(request))
            del variant.queue.running[number]
            request.epoch = 0
            self._table.renumber(request)
            request.plan.waiting.append(request.number)
            self._loading.touch(request.plan)
            again.append(request)
        self._loading.touch(variant.plan)
        return again, done
