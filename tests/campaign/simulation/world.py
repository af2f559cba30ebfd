"""All processes of a story, and what goes wrong with them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from bbgrap_agent.worker_timeouts import EARLIER_S, LOAD_S, apart_s

from bbgrap.protocol import messages as m
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from tests.campaign.simulation.agents import Agent
from tests.campaign.simulation.checks import Checks
from tests.campaign.simulation.clients import Client, Outcome, Use
from tests.campaign.simulation.clock import Clock
from tests.campaign.simulation.head import Head, HeadDisk
from tests.campaign.simulation.network import DataNetwork, Line
from tests.campaign.simulation.story import Fault, Story, Wish
from tests.campaign.simulation.workers import Disk

CODECS = {"head": TO_COORDINATOR, "agent": TO_AGENT, "client": TO_CLIENT}
MAILBOX = 2000
"""Messages that wait for a coordinator that is not there."""
PROBE_S = 0.25
AFTER_S = 1.0
"""How long sequences go on after the last fault."""
SERVICE_S = 0.2
"""Until a service manager starts again what has ended."""


class World:
    """A story that goes on."""

    def __init__(self, story: Story, *, verbose: bool = False) -> None:
        self.story, self.verbose = story, verbose
        self.rng = random.Random(story.seed + 1)
        self.clock = Clock()
        self.models = {model.name: model for model in story.models}
        self.data = DataNetwork(self.clock, self.rng, story.data_s)
        self.disks: dict[str, Disk] = {}
        self.head_disk = HeadDisk()
        self.surprises: list[str] = []
        self.lines: list[str] = []
        self.faults: Counter[str] = Counter()
        self.hung_until = 0.0
        """Until when loads that hung are ended, one after the other, each with all that its worker has loaded."""
        self.planner_fails = self.planner_late = self.planner_never = self.scaling_fails = self.loads_fail = self.loads_hang = 0.0
        self.outcomes: list[Outcome] = []
        self.is_healed = self.ends_sequences = False
        self.agents: dict[str, Agent] = {}
        self.by_identity: dict[bytes, Agent | Client] = {}
        self.shut_out: set[bytes] = set()
        """Whose keys were taken back: nobody hears them."""
        self._mail: list[tuple[bytes, Any]] = []
        self._numbers = 0
        self.checks = Checks(self)
        self.head: Head | None = None
        self.start_head()
        for name, _ in story.agents:
            self.start_agent(name)
        self.clients = [self._new_client(number) for number in range(story.clients)]

    # --- what processes need ----------------------------------------------------------------------------------------------------------

    def control_latency(self) -> float:
        """Return that of a new line."""
        return self.story.control_s

    def worker_start(self) -> float:
        """Return how long a worker takes until it is ready."""
        return self.story.worker_start_s * (0.7 + 0.6 * self.rng.random())

    def through_codec(self, message: Any, to: str) -> Any:  # noqa: ANN401
        """Return what arrives of a message."""
        return CODECS[to].decode([bytes(frame) for frame in CODECS[to].encode(message)]) if self.story.codec else message

    def to_agent(self, identity: bytes, message: Any) -> None:  # noqa: ANN401
        """Send to an agent, if it is there."""
        agent = self.by_identity.get(identity)
        if isinstance(agent, Agent):
            agent.from_head.send(self.through_codec(message, "agent"))

    def to_client(self, identity: bytes, message: Any) -> None:  # noqa: ANN401
        """Send to a client, if it is there."""
        client = self.by_identity.get(identity)
        if isinstance(client, Client):
            client.from_head.send(self.through_codec(message, "client"))

    def from_peer(self, identity: bytes, message: Any) -> None:  # noqa: ANN401
        """Take what arrives at the coordinator, or will when it is there again."""
        if identity in self.shut_out:
            return
        if self.head is not None:
            self.head.from_peer(identity, message)
        elif len(self._mail) < MAILBOX:
            self._mail.append((identity, message))

    def log(self, text: str) -> None:
        """Note what somebody says."""
        if self.verbose:
            self.lines.append(f"{self.clock.now:8.3f} {text}")

    def surprise(self, text: str) -> None:
        """Note what must not be."""
        self.log(f"!!! {text}")
        self.surprises.append(f"{self.clock.now:.3f}: {text}")

    # --- processes ----------------------------------------------------------------------------------------------------------------

    def start_head(self) -> None:
        """Start the coordinator."""
        if self.head is None:
            self.head = Head(self, self.head_disk)
            mail, self._mail = self._mail, []
            for identity, message in mail:
                self.from_peer(identity, message)

    def start_agent(self, name: str) -> None:
        """Start an agent of that name, if there is none."""
        if name in self.agents:
            return
        self._numbers += 1
        port = 1 if self.story.same_ports else self._numbers
        agent = Agent(self, name, self._numbers, dict(self.story.agents)[name], f"tcp://{name}:{port}")
        self.agents[name] = self.by_identity[agent.identity] = agent

    def end_agent(self, agent: Agent, *, silent: bool) -> None:
        """End an agent, and its worker."""
        if self.agents.get(agent.name) is not agent:
            return
        del self.agents[agent.name]
        self.by_identity.pop(agent.identity, None)
        agent.end()
        if agent.worker is not None:
            agent.worker.end()
            self.data.gone(agent.worker, silent=silent)

    def _new_client(self, number: int) -> Client:
        self._numbers += 1
        client = Client(self, f"client {number}/{self._numbers}")
        self.by_identity[client.identity] = client
        return client

    def wish(self, wish: Wish) -> None:
        """Let a client ask."""
        client, use = self.clients[wish.client], self.story.uses[wish.use]
        if wish.trait == "prepare":
            client.do(client.prepare, use)
        elif wish.trait == "sequence":
            client.do(client.begin_sequence, use, wish.requests, wish.pause_s, wish.deadline_s)
        else:
            self.ask(client, use, wish.trait, wish.deadline_s)

    def ask(self, client: Client, use: Use, trait: str, deadline_s: float) -> Outcome:
        """Ask for an answer."""
        token = f"x{len(self.outcomes)}{f'!{trait}' if trait in {'slow', 'kill', 'hang', 'fail'} else ''}"
        outcome = self.expect(client, use, token, trait, deadline_s)
        client.do(client.request, outcome, trait == "record")
        return outcome

    def expect(self, client: Client, use: Use, token: str, trait: str, deadline_s: float) -> Outcome:
        """Note that a client will ask for an answer."""
        outcome = Outcome(token, use, trait, self.clock.now, self.clock.now + deadline_s, [], client=client)
        self.outcomes.append(outcome)
        return outcome

    # --- faults -------------------------------------------------------------------------------------------------------------------

    def _lines_of(self, name: str) -> tuple[Line, Line] | None:
        if name.startswith("client"):
            client = self.clients[int(name.split()[1])]
            return client.to_head, client.from_head
        agent = self.agents.get(name)
        return None if agent is None else (agent.to_head, agent.from_head)

    def begin(self, fault: Fault) -> None:  # noqa: C901 - one branch per kind
        """Let something go wrong."""
        self.faults[fault.kind] += 1
        self.log(f"*** {fault}")
        now, rng = self.clock.now, self.rng
        agent, head = self.agents.get(fault.one), self.head
        match fault.kind:
            case "kill agent" | "power off agent" if agent is not None:
                self.end_agent(agent, silent=fault.kind == "power off agent")
                self.clock.after(fault.seconds, self.start_agent, fault.one)
            case "stop agent" if agent is not None and not agent.paused:
                stopped = [agent, *([agent.worker] if agent.worker is not None and not agent.worker.paused else [])]
                for process in stopped:
                    process.pause()
                self.clock.after(fault.seconds, lambda: [process.resume() for process in reversed(stopped)])
            case "kill worker" | "exhaust worker" if agent is not None and agent.worker is not None and not agent.paused:
                why = ("out of memory", m.EndedBy.MEMORY) if fault.kind == "exhaust worker" else ("SIGKILL", m.EndedBy.OUTSIDE)
                agent.worker_dies(agent.worker, *why)
            case "revoke node" if agent is not None and head is not None and not head.paused:
                self._revoke(agent, head)
                self.clock.after(fault.seconds, lambda: self.end_agent(agent, silent=False))
                self.clock.after(fault.seconds + SERVICE_S, self.start_agent, fault.one)
            case "stop worker" if agent is not None and agent.worker is not None and not agent.worker.paused:
                worker = agent.worker
                worker.pause()
                self.clock.after(fault.seconds, worker.resume)
            case "kill coordinator" if head is not None:
                head.end()
                self.data.gone(head, silent=False)
                self.head = None
                self.clock.after(fault.seconds, self.start_head)
            case "stop coordinator" if head is not None and not head.paused:
                head.pause()
                self.clock.after(fault.seconds, head.resume)
            case "planner fails":
                self.planner_fails = now + fault.seconds
            case "planner late":
                self.planner_late = now + fault.seconds
            case "planner never":
                self.planner_never = now + fault.seconds
            case "scaling fails":
                self.scaling_fails = now + fault.seconds
            case "loads fail":
                self.loads_fail = now + fault.seconds
            case "loads hang":
                self.loads_hang = now + fault.seconds
            case "client has another key":
                self._another_key(self.clients[int(fault.one.split()[1])])
            case "client gives up":
                client = self.clients[int(fault.one.split()[1])]
                self._nobody_waits(client)
                client.give_up()
            case "client goes":
                number = int(fault.one.split()[1])
                self._client_goes(number)
            case kind if kind.endswith("control") or "control " in kind:
                self._on_lines(fault)
            case "cut data" | "cut data one way" | "slow data":
                ways = [(fault.one, fault.other), (fault.other, fault.one)][: 1 if "one way" in fault.kind else 2]
                for way in ways:
                    if fault.kind == "slow data":
                        self.data.way(*way).extra = 0.2
                    else:
                        self.data.cut(*way)
                self.clock.after(fault.seconds, lambda: [self.data.heal(*way) for way in ways])
            case "reset data" | "reset data, one told" | "reset data, nobody told":
                told = {"reset data": "both", "reset data, one told": fault.one}.get(fault.kind, "nobody")
                self.data.reset(fault.one, fault.other, told)
            case _:
                rng.random()

    def _on_lines(self, fault: Fault) -> None:
        lines = self._lines_of(fault.one)
        if lines is None:
            return
        to, back = lines
        some = [to] if fault.kind == "cut control to" else [back] if fault.kind == "cut control from" else [to, back]
        for line in some:
            match fault.kind:
                case "reset control":
                    line.reset()
                case "lossy control":
                    line.loss = 0.2
                case "repeating control":
                    line.repeat = 0.3
                case "slow control":
                    line.extra = 0.15
                case _:
                    line.cut = True
        self.clock.after(fault.seconds, lambda: [line.heal() for line in some])

    def _revoke(self, agent: Agent, head: Head) -> None:
        """Take back a node's key: the coordinator tells it so, if that arrives, and hears it no more."""
        head.from_peer(agent.identity, m.Leave("its key was revoked"))
        self.to_agent(agent.identity, m.Refused("its key was revoked", retry=False))
        self.shut_out.add(agent.identity)
        agent.to_head.reset()
        self.by_identity.pop(agent.identity, None)  # a node may be revoked twice

    def _another_key(self, client: Client) -> None:
        """Let a client connect anew with a token that replaces its own: it is somebody else to the coordinator."""
        del self.by_identity[client.identity]
        self._numbers += 1
        client.identity = f"{client.name} key {self._numbers}".encode()
        self.by_identity[client.identity] = client
        client.to_head.reset()
        client.from_head.reset()

    def _client_goes(self, number: int) -> None:
        client = self.clients[number]
        client.end()
        del self.by_identity[client.identity]
        self._nobody_waits(client)
        self.clients[number] = self._new_client(number)

    def _nobody_waits(self, client: Client) -> None:
        for outcome in self.outcomes:
            outcome.gone = outcome.gone or (outcome.client is client and not outcome.answers)

    def heal(self) -> None:
        """Let nothing be wrong any more."""
        self.log("*** all is healed")
        self.is_healed = True
        self.planner_fails = self.planner_late = self.planner_never = self.scaling_fails = self.loads_fail = self.loads_hang = 0.0
        self.start_head()
        for name, _ in self.story.agents:
            self.start_agent(name)
        for sender in [*dict(self.story.agents), "coordinator"]:
            for receiver in [*dict(self.story.agents), "coordinator"]:
                self.data.heal(sender, receiver)
        for agent in self.agents.values():
            agent.to_head.heal()
            agent.from_head.heal()
            if agent.worker is not None:
                agent.worker.resume()
            agent.resume()
            if agent.worker is not None and agent.worker.hangs:
                agent.worker.load_began = self.clock.now - LOAD_S
                self.hung_until = self.clock.now + apart_s(len(self.agents), len(self.agents))
        for client in self.clients:
            client.to_head.heal()
            client.from_head.heal()
        assert self.head is not None
        self.head.resume()

    # --- the whole ----------------------------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Play the story; return what must not be."""
        story = self.story
        for wish in story.wishes:
            self.clock.after(wish.at, self.wish, wish)
        for fault in story.faults:
            self.clock.after(fault.at, self.begin, fault)
        ends = [wish.at + wish.deadline_s + 1.0 for wish in story.wishes if wish.trait == "hang"]
        # A kernel that hangs for a request of an earlier membership, that nobody remembers, is ended so much later.
        forgotten = EARLIER_S if ends and story.faults else 0.0
        # What a late planner has begun it ends later.
        late = 12 * story.planner_s
        faults = [fault.at + fault.seconds + max(forgotten, late if fault.kind == "planner late" else 0.0) for fault in story.faults]
        healed = max([story.until, *ends, *faults])
        self.clock.run(healed)
        self.heal()
        self.clock.after(AFTER_S, self._end_sequences)
        # What ends workers does so once nothing keeps it from running: it is a fault, too.
        while any(o.trait == "kill" and not o.answers and not o.gone for o in self.outcomes):
            self.clock.run(self.clock.now + PROBE_S)
        healed = self.clock.now
        limit = self.checks.healed_within()
        while self.clock.now < healed + limit and not self.surprises:
            if self.probe(healed + limit):
                break
        else:
            self.checks.healed(limit)
        for seconds in (1.5, 0.0):  # sequences that rest have requests then, for which nobody has waited yet
            while any(not o.answers and not o.gone for o in self.outcomes) and self.clock.now < max(o.until for o in self.outcomes) + 12.0:
                self.clock.run(self.clock.now + 0.5)
            self.clock.run(self.clock.now + seconds)
        self.checks.at_end()
        return self.surprises

    def _end_sequences(self) -> None:
        self.ends_sequences = True

    def probe(self, until: float) -> bool:
        """Ask for answers of the plans that do not serve as they should; returns whether all do.

        Those of a model are asked for one after the other: what comes together its standby answers.
        """
        unhealed = self.checks.unhealed()
        uses = [use for use in self.story.uses if use in unhealed]
        while unhealed:
            busy = {outcome.use.model for outcome in self.outcomes if not outcome.answers and not outcome.gone}
            for use in {use.model: use for use in reversed(uses) if use.model not in busy}.values():
                self.ask(self.clients[0], use, "", 30.0)
                uses.remove(use)
            self.clock.run(self.clock.now + PROBE_S)
            if not uses or self.clock.now > until:
                break
        return not self.checks.unhealed()
