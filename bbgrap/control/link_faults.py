"""What runs when a link between two agents is in doubt: it is taken back, the two try each other, and nothing starts before that is known.

    a connection broke, a request stalled -> suspect -> LinksTried -> takes requests again, or apart: its variants are released

Law: what may have been lost with a connection runs again, here or elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log
from bbgrap.control.links import Links
from bbgrap.control.loading import Loading
from bbgrap.control.membership import Member, Members
from bbgrap.control.planning import Planning
from bbgrap.control.plans import Variant
from bbgrap.control.request_recovery import RequestRecovery
from bbgrap.protocol.messages import LinksTried

MAX_STALLS = 3
"""Requests in a row that stall on a variant whose links are well; then it is loaded anew."""
SAME_S = 1.0
"""Connections of an agent that break so soon after one another break for one reason, and one of them is told. Chosen."""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The variants whose links are in doubt: those that have `suspects`."""

    _members: Members
    _links: Links
    _loading: Loading
    _planning: Planning
    _recovery: RequestRecovery

    def broken(self, member: Member | None, address: str, now: float, reason: str = "") -> list[CoordinatorInstruction]:
        """Run again what a broken connection may have lost, and find out whether the two still reach each other.

        `member` is the agent whose connection it was, and says why it broke; None the coordinator.
        """
        other = next((m for m in self._members.alive() if m.join.data_address == address), None)
        first = member or other
        own_port, port = (each.rpartition(":")[2] for each in (self._members.settings.data_address, address))
        if first is None or (member is not None and other is None and port != own_port):
            return []
        name = COORDINATOR if member is None or other is None else other.name
        done: list[CoordinatorInstruction] = []
        for variant in self._loading.of_member(first.name):
            if variant.is_ready and (name == COORDINATOR or name in variant.parts):
                variant.suspects.add(first.name)
                held_for = first.name if other is None else other.name
                done += self._recovery.hold(variant, held_for, now, between_agents=name != COORDINATOR)
        trials = self._links.suspect(first, name, now)
        ends = [first, *self._members.living([name])]
        known = frozenset((first.name, name)) in self._links.apart  # who is apart is tried for as long as that is so
        if reason and trials and not known and all(now - end.broke_at > SAME_S for end in ends):
            for end in ends:
                end.broke_at = now
            trials.insert(0, Log(f"'{first.name}' to '{name}': the connection broke: {reason}"))
        return [*done, *trials]

    def tried(self, member: Member, message: LinksTried, now: float) -> list[CoordinatorInstruction]:
        """Take what an agent found; variants whose agents do not reach each other are released."""
        changed, done = self._links.tried(member, message, now, self._loading.loading_agents)
        self.clear_tried(now)
        if member.is_doubted and not self._links.is_suspect(member.name, COORDINATOR):
            member.is_doubted = False
            done += self._loading.say_again(member, now)
        return [*done, *(self._go_around(now) if changed else [])]

    def doubted(self, member: Member, now: float) -> list[CoordinatorInstruction]:
        """Say again what an agent is to load that heard nothing meanwhile, once it is known whether long messages reach it.

        Those that are lost keep all that is said after them on the same connection.
        """
        member.is_doubted = bool(self._loading.put_off(member, now))
        return self._links.suspect(member, COORDINATOR, now) if member.is_doubted else []

    def unanswered(self, member: Member, variant: Variant, devices: Collection[int], now: float) -> list[CoordinatorInstruction]:
        """Take that an agent, which was to load a variant, had no answer from devices of it for seconds; plans go around these pairs.

        That they load, too, is no reason: it has asked for as long as that may take.
        """
        names = {name for device, name in enumerate(variant.device_names) if device in devices}
        silent = [peer for peer in self._members.peers_of(member) if peer.name in names]
        return [*self._links.part(member, silent, now), *self._go_around(now)] if silent else []

    def _go_around(self, now: float) -> list[CoordinatorInstruction]:
        """Plan anew with the pairs that are apart now; what was over them is released."""
        return [*self._drop_apart(), *self._planning.world_changed(now)]

    def _drop_apart(self) -> list[CoordinatorInstruction]:
        """Release the variants whose agents do not all reach each other."""
        done: list[CoordinatorInstruction] = []
        for variant in list(self._loading.by_epoch.values()):
            names = {*variant.parts, COORDINATOR}
            if any(pair <= names for pair in self._links.apart):
                done += self._recovery.drop(variant)
        return done

    def silent(self, now: float) -> list[CoordinatorInstruction]:
        """Run again elsewhere what runs on agents that are silent and are waited for; nothing starts on them until they are heard."""
        done: list[CoordinatorInstruction] = []
        for member in self._members.silent(now):
            for variant in self._loading.of_member(member.name):
                if variant.is_ready and member.name not in variant.suspects:
                    variant.suspects.add(member.name)
                    done += self._recovery.take_back(variant)[1]
        return done

    def stalled(self, variant: Variant, number: int, now: float) -> list[CoordinatorInstruction]:
        """Run a request again with which nothing goes on, and have its agents try each other."""
        again, done = self._recovery.take_back(variant, [number])
        if not again:
            return []
        again[0].stalls += 1
        variant.stalls += 1
        if variant.stalls >= MAX_STALLS and variant.is_ready:
            # Whatever is wrong with it on its agents, another epoch does not have it.
            done += self._recovery.take_back(variant)[1]
            text = f"{variant.plan.called}: {variant.name} answers nothing any more: it is loaded anew"
            told = Log(text, event="stalled", model=variant.plan.model, epoch=variant.epoch)
            return [*done, told, *self._loading.renew(variant, now)]
        text = f"request {number} of {variant.plan.called} has stalled on {', '.join(variant.parts)}; it runs again elsewhere"
        done.append(Log(text, event="stalled", model=variant.plan.model, epoch=variant.epoch, request=number))
        return [*done, *self.try_all(variant, now)]

    def try_all(self, variant: Variant, now: float) -> list[CoordinatorInstruction]:
        """Have the agents of a variant try each other; nothing is started on it before that is known."""
        done: list[CoordinatorInstruction] = []
        for member in self._members.living(variant.parts):
            for other in (*variant.parts, COORDINATOR):
                if other != member.name:
                    variant.suspects.add(member.name)
                    done += self._links.suspect(member, other, now)
        return done

    def clear_tried(self, now: float) -> None:
        """Let variants take requests again of which no link is being tried any more, and whose agents are heard."""
        for variant in [variant for variant in self._loading.by_epoch.values() if variant.suspects]:
            if any(member.is_quiet(now) for member in self._members.living(variant.parts)):
                continue
            others = (*variant.parts, COORDINATOR)
            tried = {name for name in variant.suspects if not any(self._links.is_suspect(name, other) for other in others)}
            if tried:
                variant.suspects -= tried
                self._loading.touch(variant.plan)
