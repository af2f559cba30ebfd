"""The faults: each begins, lasts, and is healed.

`blocks` says that nobody can answer while it lasts; `target` what it takes: an agent, a pair of them, the coordinator, all, or nothing that
others need. Whoever draws faults keeps one agent whole besides those that block.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from benchmarks.machines import COORDINATOR
from tests.campaign.real import key_faults
from tests.campaign.real.world import FREEZER, MEMORY, World

Target = Literal["agent", "pair", "coordinator", "agent and coordinator", "all", "none"]
Work = Callable[[World, tuple[str, ...], float], None]


@dataclass(frozen=True)
class Nemesis:
    """A kind of fault; `work(world, targets, seconds)` does it and returns when it is healed.

    `counts`: whether the time until somebody is answered again is a recovery in the sense of the promise (kills, stops, cuts).
    """

    name: str
    target: Target
    seconds: tuple[float, float]
    work: Work
    blocks: bool = False
    counts: bool = True
    needs: str = ""
    """What it needs besides processes: lan, disks, cgroups."""
    alone: bool = False
    """Whether it takes so much of the machine that it does not come beside others."""


def _killed(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.machines.kill(targets[0])
    time.sleep(seconds)
    world.restart(targets[0])


def _nanny_killed(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.machines.kill(targets[0], whole=False)
    time.sleep(seconds)
    world.restart(targets[0])


def _ended(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.machines.signal(targets[0], signal.SIGTERM, part="nanny")
    time.sleep(seconds)
    world.machines.kill(targets[0])
    world.restart(targets[0])


def _worker_killed(world: World, targets: tuple[str, ...], seconds: float) -> None:
    del seconds
    world.machines.signal(targets[0], signal.SIGKILL, part="worker")


def _stopped(part: str) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        world.machines.signal(targets[0], signal.SIGSTOP, part=part)
        time.sleep(seconds)
        world.machines.signal(targets[0], signal.SIGCONT)

    return work


def _flapping(world: World, targets: tuple[str, ...], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _stopped("whole")(world, targets, world.rng.uniform(0.1, 0.9))
        time.sleep(world.rng.uniform(0.1, 0.5))


def _cut(*, both: bool, with_coordinator: bool = False) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        first, second = (targets[0], COORDINATOR) if with_coordinator else targets
        pairs = [(first, second), (second, first)][: 1 + both]
        for source, target in pairs:
            world.lan.cut(source, target)
        time.sleep(seconds)
        for source, target in pairs:
            world.lan.join(source, target)

    return work


def _isolated(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.lan.isolate(targets[0])
    time.sleep(seconds)
    world.lan.open(targets[0])


def _reset(world: World, targets: tuple[str, ...], seconds: float) -> None:
    del seconds
    for other in (*world.agents, COORDINATOR):
        if other != targets[0]:
            world.lan.reset(targets[0], other)


def _slow(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.lan.slow(targets[0], world.rng.choice(("1mbit", "10mbit", "50mbit")))
    time.sleep(seconds)
    world.lan.hasten(targets[0])


def _port_blocked(world: World, targets: tuple[str, ...], seconds: float) -> None:
    if port := world.data_port(targets[0]):
        world.lan.block(targets[0], port)
        time.sleep(seconds)
        world.lan.open(targets[0])


def _frozen(world: World, targets: tuple[str, ...], seconds: float) -> None:
    group = world.grouped(FREEZER, targets[0])
    (group / "freezer.state").write_text("FROZEN")
    time.sleep(seconds)
    (group / "freezer.state").write_text("THAWED")


def _out_of_memory(world: World, targets: tuple[str, ...], seconds: float) -> None:
    group = world.grouped(MEMORY, targets[0])
    limit = group / "memory.limit_in_bytes"
    try:
        limit.write_text(str(16 << 20))
    except OSError:  # so little it cannot be brought to: what it has is all it may have
        limit.write_text((group / "memory.usage_in_bytes").read_text())
    world.tell(f"ask bulky:{world.number() % 3} 1 30")
    time.sleep(seconds)
    limit.write_text("-1")
    if not world.machines.runs(targets[0]):
        # The system has ended the nanny, too: a service manager starts it again.
        world.history.note("nanny ended", agent=targets[0])
        world.restart(targets[0])


def _disk_full(world: World, targets: tuple[str, ...], seconds: float) -> None:
    filler = world.fill(targets[0])
    world.tell(f"ask bulky:{world.number() % 3} 1 30")
    time.sleep(seconds)
    filler.unlink(missing_ok=True)


def _weights_flipped(world: World, targets: tuple[str, ...], seconds: float) -> None:
    del seconds
    world.flip(targets[0], "*.npy", 3)
    # What is in memory is sound: it must be read again to be seen.
    world.machines.signal(targets[0], signal.SIGKILL, part="worker")


def _state_flipped(pattern: str) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        world.machines.kill(COORDINATOR)
        world.flip(COORDINATOR, pattern, 2)
        time.sleep(seconds)
        world.restart(COORDINATOR)

    return work


def _coordinator_stopped(world: World, targets: tuple[str, ...], seconds: float) -> None:
    _stopped("whole")(world, (COORDINATOR,), seconds)


def _strangers(said: bytes, count: int) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        machine = world.rng.choice((*world.agents, COORDINATOR))
        port = world.machines.port if machine == COORDINATOR else world.data_port(machine)
        made = world.strangers(world.machines.host(machine), port, count, said) if port else []
        time.sleep(seconds)
        for stranger in made:
            with suppress(OSError):
                stranger.close()

    return work


def _child_killed(module: str) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        for process in world.machines.tree(COORDINATOR)[1:]:
            with suppress(Exception):  # it may have ended by itself
                process.kill()

    return work


def _client_killed(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.victims()


def _hostile(task: str, count: int, deadline: float) -> Work:
    def work(world: World, targets: tuple[str, ...], seconds: float) -> None:
        world.tell(f"ask {task}:{world.number()} {count} {deadline}")
        time.sleep(seconds)

    return work


def _storm(world: World, targets: tuple[str, ...], seconds: float) -> None:
    for agent in world.agents:
        world.machines.kill(agent)
    time.sleep(seconds)
    for agent in world.agents:
        world.restart(agent)
    world.machines.wait(world.agents[0], world.nodes, 60.0)  # type: ignore[arg-type]  # none is false


def _rolling(world: World, targets: tuple[str, ...], seconds: float) -> None:
    for agent in world.agents:
        _ended(world, (agent,), 0.5)
        until = time.monotonic() + 20.0
        while agent not in {node.name for node in world.nodes()} and time.monotonic() < until:
            time.sleep(0.1)


def _new_model(world: World, targets: tuple[str, ...], seconds: float) -> None:
    world.tell(f"ask fresh:{world.number() % 6} 3 30")
    time.sleep(seconds)


NEMESES = (
    Nemesis("agent killed", "agent", (0.1, 3.0), _killed),
    Nemesis("nanny killed", "agent", (0.1, 2.0), _nanny_killed),
    Nemesis("agent ended", "agent", (0.5, 2.0), _ended),
    Nemesis("worker killed", "agent", (0.0, 0.0), _worker_killed),
    Nemesis("agent stopped", "agent", (0.3, 4.0), _stopped("whole")),
    Nemesis("nanny stopped", "agent", (0.3, 3.0), _stopped("nanny")),
    Nemesis("worker stopped", "agent", (0.3, 3.0), _stopped("worker")),
    Nemesis("agent flapping", "agent", (2.0, 5.0), _flapping),
    Nemesis("pair cut", "pair", (0.3, 5.0), _cut(both=True), needs="lan"),
    Nemesis("pair cut one way", "pair", (0.3, 5.0), _cut(both=False), needs="lan"),
    Nemesis("agent cut off coordinator", "agent", (0.3, 4.0), _cut(both=True, with_coordinator=True), needs="lan"),
    Nemesis("agent not heard by coordinator", "agent", (0.3, 4.0), _cut(both=False, with_coordinator=True), needs="lan"),
    Nemesis("agent isolated", "agent", (0.3, 4.0), _isolated, needs="lan"),
    Nemesis("connections reset", "agent", (0.0, 0.0), _reset, needs="lan"),
    Nemesis("slow link", "agent", (1.0, 5.0), _slow, counts=False, needs="lan"),
    Nemesis("data port blocked", "agent", (0.5, 5.0), _port_blocked, needs="lan"),
    Nemesis("agent frozen", "agent", (0.3, 3.0), _frozen, needs="cgroups"),
    Nemesis("out of memory", "agent", (1.0, 4.0), _out_of_memory, needs="cgroups"),
    Nemesis("agent's disk full", "agent", (1.0, 4.0), _disk_full, counts=False, needs="disks"),
    Nemesis("coordinator's disk full", "none", (1.0, 3.0), lambda w, _, s: _disk_full(w, (COORDINATOR,), s), counts=False, needs="disks"),
    Nemesis("weights flipped", "agent", (0.0, 0.0), _weights_flipped),
    Nemesis("models flipped", "coordinator", (0.1, 0.5), _state_flipped("models/*"), blocks=True),
    Nemesis("plans flipped", "coordinator", (0.1, 0.5), _state_flipped("plans/*/*"), blocks=True),
    Nemesis("coordinator killed", "coordinator", (0.1, 1.5), _killed, blocks=True),
    Nemesis("coordinator stopped", "coordinator", (0.3, 3.0), _coordinator_stopped, blocks=True),
    Nemesis("coordinator isolated", "coordinator", (0.3, 2.0), lambda w, _, s: _isolated(w, (COORDINATOR,), s), blocks=True, needs="lan"),
    Nemesis("planners killed", "none", (0.0, 0.0), _child_killed("planner"), counts=False),
    Nemesis("idle strangers", "none", (1.0, 6.0), _strangers(b"", 512), counts=False),
    Nemesis("garbage", "none", (0.5, 1.0), _strangers(b"\x00garbage\xff" * 64, 32), counts=False),
    Nemesis("client killed", "none", (0.0, 0.0), _client_killed, counts=False),
    Nemesis("killer model", "none", (3.0, 3.0), _hostile("killer", 3, 20.0), counts=False),
    Nemesis("endless model", "none", (3.0, 3.0), _hostile("endless", 1, 2.0), counts=False),
    Nemesis("deadly model", "none", (3.0, 3.0), _hostile("deadly", 2, 20.0), counts=False),
    Nemesis("stuck model", "none", (3.0, 3.0), _hostile("stuck", 1, 2.0), counts=False),
    Nemesis("new model", "none", (1.0, 2.0), _new_model, counts=False),
    Nemesis("restart storm", "all", (0.1, 1.0), _storm, blocks=True),
    Nemesis("rolling restart", "all", (0.0, 0.0), _rolling, counts=False, alone=True),
    Nemesis("node revoked", "agent", (0.1, 2.0), key_faults.node_revoked),
    Nemesis("revoked and restarted", "agent and coordinator", (0.0, 0.5), key_faults.revoked_and_restarted, blocks=True),
    Nemesis("client's token rotated", "coordinator", (0.5, 3.0), key_faults.clients_rotated),
    Nemesis("client's token revoked", "coordinator", (1.5, 3.0), key_faults.guests_revoked, counts=False),
    Nemesis("join token rotated", "agent and coordinator", (0.3, 1.0), key_faults.join_rotated),
    Nemesis("wrong tokens", "none", (2.0, 4.0), key_faults.wrong_tokens, counts=False),
    Nemesis("strangers at every port", "none", (2.0, 5.0), key_faults.strangers_everywhere, counts=False),
)


def possible(*, lan: bool, disks: bool, cgroups: bool) -> tuple[Nemesis, ...]:
    """Return the faults that can be done here."""
    has = {"": True, "lan": lan, "disks": disks, "cgroups": cgroups}
    return tuple(nemesis for nemesis in NEMESES if has[nemesis.needs])


def draw(world: World, kinds: tuple[Nemesis, ...]) -> tuple[Nemesis, tuple[str, ...]] | None:
    """Draw a fault that may begin now, and what it is done to; None if what was drawn may not."""
    nemesis = world.rng.choice(kinds)
    free = [agent for agent in world.agents if agent not in world.hurt]
    if nemesis.alone and world.hurt:
        return None
    match nemesis.target:
        case "none" if nemesis.needs == "disks":
            return None if nemesis.name in world.hurt else (nemesis, (nemesis.name,))
        case "none":
            return nemesis, (f"#{world.number()}",)
        case "agent":
            # One agent stays whole.
            return (nemesis, (world.rng.choice(free),)) if len(free) > 1 else None
        case "pair":
            return (nemesis, tuple(world.rng.sample(free, 2))) if len(free) > 2 else None
        case "coordinator":
            return None if COORDINATOR in world.hurt else (nemesis, (COORDINATOR,))
        case "agent and coordinator":
            return (nemesis, (world.rng.choice(free), COORDINATOR)) if len(free) > 1 and COORDINATOR not in world.hurt else None
        case "all":
            return None if world.hurt else (nemesis, (COORDINATOR, *world.agents))


@contextmanager
def noted(world: World, nemesis: Nemesis, targets: tuple[str, ...], *, alone: bool) -> Iterator[None]:
    """Note the begin and the end of a fault."""
    number = world.number()
    facts = {"fault": number, "kind": nemesis.name, "targets": targets, "blocks": nemesis.blocks, "counts": nemesis.counts, "alone": alone}
    world.history.note("fault", **facts)
    try:
        yield
    finally:
        world.history.note("healed", **facts)
        world.hurt.difference_update(targets)


def inflict(world: World, nemesis: Nemesis, targets: tuple[str, ...], *, alone: bool) -> threading.Thread:
    """Begin a fault in a thread of its own."""
    world.hurt.update(targets)
    seconds = world.rng.uniform(*nemesis.seconds)

    def work() -> None:
        with noted(world, nemesis, targets, alone=alone):
            try:
                nemesis.work(world, targets, seconds)
            except Exception as error:  # whatever it is, the checker must know that the campaign itself failed
                world.history.note("broken", kind=nemesis.name, text=f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=work, name=nemesis.name)
    thread.start()
    return thread
