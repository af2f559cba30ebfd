"""A story: who is there, what they want and what goes wrong, all drawn from one seed; values only, so that it can be cut down."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.sequences import MAX_KEPT_BYTES
from tests.campaign.simulation.clients import Use
from tests.campaign.simulation.models import Model

QUIET_S = 3.0
"""Before the first fault."""
MAX_FURTHER = 60
"""Requests for further shapes in a story."""
FEW, MANY = (1, 2, 2, 3, 3, 3, 4), (5, 6, 8, 10, 12, 16, 20)
"""How many agents there are."""
MANY_FROM = 10**8
"""Seeds from here on have many agents."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong at a time, with this one (and that one), for some seconds."""

    at: float
    kind: str
    one: str = ""
    other: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        names = " ".join(name for name in (self.one, self.other) if name)
        return f"{self.at:6.2f} {self.kind} {names}{f' for {self.seconds:.2f} s' if self.seconds else ''}"


@dataclass(frozen=True, slots=True)
class Wish:
    """A client asks for something. Traits: "", "slow", "kill", "hang", "fail", "record", "prepare", "sequence".

    Of a sequence it is so many `requests`, with a pause after each.
    """

    at: float
    client: int
    use: int
    trait: str = ""
    deadline_s: float = 40.0
    requests: int = 1
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Story:
    """One schedule."""

    seed: int
    agents: tuple[tuple[str, float], ...]
    models: tuple[Model, ...]
    uses: tuple[Use, ...]
    clients: int
    wishes: tuple[Wish, ...]
    faults: tuple[Fault, ...]
    until: float
    """When the last fault is over."""
    planner_s: float = 0.3
    worker_start_s: float = 0.6
    control_s: float = 0.0005
    data_s: float = 0.0003
    same_ports: bool = False
    codec: bool = False
    max_waiting: int = 256
    state_bytes: int = 1 << 20
    joins: bool = False
    """Whether several requests of a sequence may run again as one."""
    refuses_joined: bool = False
    """Whether agents fail several that come as one all the same."""
    kept_bytes: int = MAX_KEPT_BYTES
    """Of inputs of sequences that the coordinator keeps."""
    has_bad_steps: bool = False
    """Whether some requests of sequences fail, end workers or are recorded, and some sequences begin again before their end."""

    @property
    def length(self) -> int:
        """How much there is to it."""
        return len(self.faults) + len(self.wishes)


ON_AGENTS = {
    "kill agent": (0.3, 4.0),
    "power off agent": (0.3, 4.0),
    "stop agent": (0.2, 4.0),
    "kill worker": (0.0, 0.0),
    "exhaust worker": (0.0, 0.0),
    "stop worker": (0.2, 4.0),
    "revoke node": (0.3, 4.0),
}
ON_LINES = {
    "cut control": (0.2, 4.0),
    "cut control to": (0.2, 4.0),
    "cut control from": (0.2, 4.0),
    "reset control": (0.0, 0.0),
    "lossy control": (0.5, 4.0),
    "repeating control": (0.5, 4.0),
    "slow control": (0.5, 4.0),
}
ON_DATA = {
    "cut data": (0.2, 6.0),
    "cut data one way": (0.2, 6.0),
    "reset data": (0.0, 0.0),
    "reset data, one told": (0.0, 0.0),
    "reset data, nobody told": (0.0, 0.0),
    "slow data": (0.5, 3.0),
}
ON_HEAD = {"kill coordinator": (0.1, 2.0), "stop coordinator": (0.2, 6.0)}
ON_PLANNER = {"planner fails": (0.5, 3.0), "planner late": (1.0, 4.0), "planner never": (0.2, 2.0), "loads fail": (0.2, 1.0)}
ON_SCALING = {"scaling fails": (0.5, 4.0)}
RARE = {"loads hang": (0.1, 0.5)}
ON_CLIENTS = {"client goes": (0.1, 2.0), "client has another key": (0.0, 0.0), "client gives up": (0.0, 0.0)}
GROUPS = ((ON_AGENTS, 6), (ON_LINES, 4), (ON_DATA, 5), (ON_HEAD, 2), (ON_PLANNER, 1.5), (RARE, 0.2), (ON_CLIENTS, 1.0))
KINDS = (*(kind for group, _ in GROUPS for kind in group), *ON_SCALING)


def draw(seed: int) -> Story:
    """Return the story of a seed; half of them are with further shapes, a quarter with sequences."""
    story, rng, other = _draw(seed), random.Random(f"further shapes {seed}"), random.Random(f"sequences {seed}")
    story = story if rng.random() < 0.5 else _with_shapes(story, rng)
    return _with_bounds(_with_sequences(story, other), random.Random(f"bounds {seed}")) if other.random() < 0.25 else story


def _with_bounds(story: Story, rng: random.Random) -> Story:
    """Return a story of sequences in which, for every second seed, not all inputs are kept, and not all requests are answered."""
    if rng.random() < 0.5:
        return story
    return replace(
        story,
        refuses_joined=rng.random() < 0.3,
        kept_bytes=rng.choice((MAX_KEPT_BYTES, MAX_KEPT_BYTES, 0, 600, 1500, 3000, 6000)),
        has_bad_steps=rng.random() < 0.4,
    )


def _with_sequences(story: Story, rng: random.Random) -> Story:
    """Return a story in which sequences of requests of one model go on from what was before, several at once."""
    model = rng.choice([model for model in story.models if not model.trait] or story.models)
    planner, objective = rng.choice((("auto", "latency"), ("auto", "latency"), ("rows", "latency"), ("auto", "throughput")))
    use = Use(model.name, 2, planner, objective, state=True)
    # There is room for so many plans only.
    place = min(len(story.uses), 2)
    uses = (*story.uses[:place], use, *story.uses[place + 1 :])
    wishes = [
        Wish(
            round(rng.uniform(0.0, story.until), 3),
            rng.randrange(story.clients),
            place,
            "sequence",
            requests=rng.choice((2, 5, 10, 20)),
            pause_s=rng.choice((0.0, 0.05, 0.3)),
        )
        for _ in range(rng.choice((1, 2, 3, 6)))
    ]
    return replace(
        story,
        uses=uses,
        wishes=tuple(sorted((*story.wishes, *wishes), key=lambda wish: wish.at)),
        state_bytes=rng.choice((1 << 20, 1 << 20, 1 << 20, 400)),
        joins=rng.random() < 0.5,
    )


def _with_shapes(story: Story, rng: random.Random) -> Story:
    """Return a story in which a model is asked for in further shapes, several times each, and together at times."""
    model = rng.choice(story.models)
    # Every shape of a model that fits no node has a plan of its own, and others for the loss of agents: there is room for few.
    count = 1 if model.trait == "large" else rng.choice((1, 2, 3, 5))
    further = [Use(model.name, width) for width in rng.sample(range(3, 12), count)]
    uses = tuple(dict.fromkeys((*story.uses, *further)))
    wishes = []
    for use in further:
        now = rng.uniform(0.0, story.until)
        while now < story.until and len(wishes) < MAX_FURTHER:
            together = rng.choice((1, 1, 1, 1, 2, 5))
            wishes += [Wish(round(now, 3), rng.randrange(story.clients), uses.index(use)) for _ in range(together)]
            now += rng.expovariate(2.0)
    faults = (
        [Fault(round(rng.uniform(0.5, story.until), 3), "scaling fails", seconds=round(rng.uniform(0.5, 4.0), 3))]
        if rng.random() < 0.2
        else []
    )
    return replace(
        story,
        uses=uses,
        wishes=tuple(sorted((*story.wishes, *wishes), key=lambda wish: wish.at)),
        faults=tuple(sorted((*story.faults, *faults), key=lambda fault: fault.at)),
    )


def _draw(seed: int) -> Story:
    rng = random.Random(seed)
    count = rng.choice(FEW if seed < MANY_FROM else MANY)
    agents = tuple((chr(ord("a") + i), rng.choice((1.0, 1.0, 0.5))) for i in range(count))
    models = tuple(
        Model(
            f"m{i}",
            rng.choice((0.004, 0.02, 0.08)),
            rng.choice((0.1, 0.3, 1.0)),
            rng.choice((16, 16, 16, 10 << 20)),
            rng.choice(("",) * 16 + ("large", "kills", "kills on load", "kills in parts")) if i else "",
        )
        for i in range(rng.choice((1, 1, 2, 3)))
    )
    uses = [Use(models[0].name)]
    for model in models:
        planner, objective = rng.choice((("auto", "latency"), ("auto", "latency"), ("rows", "latency"), ("auto", "throughput")))
        uses.append(Use(model.name, rng.choice((2, 2, 3)), planner, objective))
    # An agent has room for some variants only: with more plans than that in use they take turns for ever.
    uses = list(dict.fromkeys(uses))[:3]
    until = QUIET_S + rng.uniform(1.0, 7.0)
    clients = rng.choice((1, 2, 3))
    wishes = []
    now = rng.uniform(0.0, 1.0)
    pause = rng.choice((0.1, 0.25, 0.6))
    while now < until:
        use = rng.randrange(len(uses))
        trait = rng.choice(("",) * 60 + ("slow", "record", "record", "prepare", "fail"))
        wishes.append(Wish(round(now, 3), rng.randrange(clients), use, trait))
        now += rng.expovariate(1 / pause)
    if rng.random() < 0.12:
        for _ in range(rng.choice((1, 1, 2))):
            trait = rng.choice(("kill", "hang"))
            at = round(rng.uniform(QUIET_S, until), 3)
            wishes.append(Wish(at, rng.randrange(clients), rng.randrange(len(uses)), trait, 3.0 if trait == "hang" else 40.0))
    if rng.random() < 0.1:
        wishes += [Wish(round(rng.uniform(QUIET_S, until), 3), 0, 0, "", rng.uniform(0.05, 1.0)) for _ in range(3)]
    faults = [_fault(rng, [name for name, _ in agents], clients, until) for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6, 10)))]
    return Story(
        seed,
        agents,
        models,
        tuple(uses),
        clients,
        tuple(sorted(wishes, key=lambda wish: wish.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
        until,
        planner_s=rng.choice((0.1, 0.3, 1.0)),
        worker_start_s=rng.choice((0.2, 0.6, 1.5)),
        control_s=rng.choice((0.0003, 0.0003, 0.005, 0.03)),
        data_s=rng.choice((0.0002, 0.0002, 0.002)),
        same_ports=rng.random() < 0.5,
        codec=rng.random() < 0.02,
        max_waiting=rng.choice((256,) * 20 + (3,)),
    )


def _fault(rng: random.Random, names: list[str], clients: int, until: float) -> Fault:
    (group,) = rng.choices([group for group, _ in GROUPS], [weight for _, weight in GROUPS])
    kind = rng.choice(list(group))
    least, most = group[kind]
    at, seconds = round(rng.uniform(QUIET_S, until), 3), round(rng.uniform(least, most), 3)
    if group is ON_AGENTS:
        return Fault(at, kind, rng.choice(names), seconds=seconds)
    if group is ON_LINES:
        return Fault(at, kind, rng.choice([*names, *names, *(f"client {i}" for i in range(clients))]), seconds=seconds)
    if group is ON_DATA:
        one, other = rng.sample([*names, COORDINATOR], 2)
        return Fault(at, kind, one, other, seconds)
    if group is ON_CLIENTS:
        return Fault(at, kind, f"client {rng.randrange(clients)}", seconds=seconds)
    return Fault(at, kind, seconds=seconds)


def without(story: Story, faults: set[int], wishes: set[int]) -> Story:
    """Return a story without some of its faults and wishes, by place."""
    return replace(
        story,
        faults=tuple(fault for place, fault in enumerate(story.faults) if place not in faults),
        wishes=tuple(wish for place, wish in enumerate(story.wishes) if place not in wishes),
    )
