"""Real processes under real faults: `make campaign`, or python -m tests.campaign.real --minutes 5 --seed 1.

Three to five agents on hosts of their own, clients that send all the time, faults that are drawn from a seed: in turns one at a time, each
with time to recover, and many at once. After every round all is healed, and all must be as before. What happened goes into a history file,
and `checker` reads it. The seed decides what is done to whom and for how long; how the machine's clock runs, it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bbgrap.cli.output import say
from benchmarks.clients import History
from benchmarks.lan import in_hub, lan_of
from benchmarks.machines import COORDINATOR, machines_at
from benchmarks.recovery import clients_of
from benchmarks.testbed import can_limit, terminable
from tests.campaign.real.checker import check, read_histories, summary
from tests.campaign.real.key_faults import write_token
from tests.campaign.real.nemeses import NEMESES, Nemesis, draw, inflict, possible
from tests.campaign.real.world import CLIENTS, FREEZER, GUESTS, MEMORY, Victims, World, disks, wait

TASKS = ("send smooth 4 30 25", "send light_squeezenet 1 30 6", "send light_shufflenet 1 30 6", "send mobilenet_v2 1 30 4")
VICTIM_TASKS = ("send smooth 2 30 25",)
GUEST_TASKS = ("send smooth 1 30 10",)
WATCHED = ("smooth", "mobilenet_v2")
STATE_MIB, CACHE_MIB = "128", "64"
"""What coordinator and agents may keep on disk: so little that it is full soon, and models, plans and weights make room all the time."""
ROUND_S = 40.0
"""Of faults, before all is healed."""
HEAL_S = 10.0
"""All nodes must serve so long after the last fault was healed."""
_HEAL_PATIENCE_S = 60.0
_REST_S = 4.0
"""Between two faults that come alone: what they leave behind is over by then."""
_GAP_S = (0.2, 1.2)
"""Between two faults that come together."""
_TOGETHER = 5
"""Faults at once."""
_WARM_S = 120.0


def campaign(
    home: Path,
    minutes: float,
    seed: int,
    *,
    agents: int = 0,
    lan: bool = True,
    kinds: Sequence[str] = (),
    tasks: Sequence[str] = TASKS,
    watched: Sequence[str] = WATCHED,
) -> list[Path]:
    """Run a campaign in a folder and return its history files."""
    rng = random.Random(seed)
    names = tuple(f"agent{number}" for number in range(agents or rng.randint(3, 5)))
    history = History(home / "campaign.jsonl")
    history.note("campaign", seed=seed, minutes=minutes, agents=names)
    with ExitStack() as stack:
        stack.callback(history.close)
        network = stack.enter_context(lan_of((COORDINATOR, *names))) if lan else None
        if network is not None:
            stack.enter_context(in_hub(network))
            stack.enter_context(disks(home, (COORDINATOR, *names)))
        sizes = {COORDINATOR: ("--state-size", STATE_MIB), **dict.fromkeys(names, ("--cache-size", CACHE_MIB))}
        machines = stack.enter_context(machines_at(home, network, names, options=sizes))
        connection = stack.enter_context(machines.connect())
        files = {name: write_token(home, name, connection.create_token(name, "client")) for name in (CLIENTS, GUESTS)}
        clients = stack.enter_context(clients_of(machines, home, CLIENTS, files[CLIENTS]))
        guests = stack.enter_context(clients_of(machines, home, GUESTS, files[GUESTS]))
        victims = Victims(machines, home, history, VICTIM_TASKS)
        stack.callback(victims.close)
        world = World(machines, history, names, rng, connection, clients.tell, victims.replace, guests)
        for line in (*tasks, *(f"watch {task}" for task in watched)):
            clients.tell(line)
        for line in GUEST_TASKS:
            guests.tell(line)
        victims.start()
        stopping = threading.Event()
        watching = threading.Thread(target=world.watch_workers, args=(stopping,))
        watching.start()
        stack.callback(_stop, stopping, watching)
        able = possible(lan=lan, disks=lan, cgroups=lan and FREEZER.is_dir() and MEMORY.is_dir())
        chosen = tuple(nemesis for nemesis in able if not kinds or nemesis.name in kinds)
        _rounds(world, chosen, minutes, lambda: _warm(clients.history, tasks))
        clients.tell("stop")
        guests.tell("stop")
        victims.close()
        time.sleep(3.0)
    world.ungroup()
    return sorted(home.glob("*.jsonl"))


def _rounds(world: World, kinds: tuple[Nemesis, ...], minutes: float, warm: object) -> None:
    wait(warm, _WARM_S)  # type: ignore[arg-type]
    _quiet(world)
    until, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < until:
        alone = number % 3 == 0
        end = min(until, time.monotonic() + ROUND_S)
        (_one_by_one if alone else _together)(world, kinds, end)
        number += 1
        _quiet(world)
        say(f"round {number}: {'one fault at a time' if alone else 'many faults at once'}; {max(0, until - time.monotonic()):.0f} s left")


def _one_by_one(world: World, kinds: tuple[Nemesis, ...], end: float) -> None:
    while time.monotonic() < end:
        drawn = draw(world, kinds)
        if drawn is None:
            continue
        inflict(world, *drawn, alone=True).join()
        wait(world.present, 15.0)
        time.sleep(_REST_S)


def _together(world: World, kinds: tuple[Nemesis, ...], end: float) -> None:
    running: list[threading.Thread] = []
    while time.monotonic() < end:
        running = [thread for thread in running if thread.is_alive()]
        drawn = draw(world, kinds) if len(running) < _TOGETHER else None
        if drawn is not None:
            running.append(inflict(world, *drawn, alone=False))
        time.sleep(world.rng.uniform(*_GAP_S))
    for thread in running:
        thread.join()


def _quiet(world: World) -> None:
    """Wait until all is as before, note how long that took, and measure."""
    world.history.note("all healed")
    took = wait(world.present, _HEAL_PATIENCE_S)
    nodes = world.nodes()
    missing = sorted(set(world.agents) - {node.name for node in nodes})
    unreachable = {node.name: list(node.unreachable) for node in nodes if node.unreachable}
    world.history.note("all back", seconds=took, missing=missing, unreachable=unreachable)
    time.sleep(HEAL_S / 2)
    world.measure()
    world.history.note("quiet")


def _warm(history: Path, tasks: Sequence[str]) -> bool:
    """Whether every task has been answered."""
    text = history.read_text()
    ids = {line["id"] for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines()) if line["what"] == "answered"}
    sent = {line["task"] for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines()) if line.get("id") in ids and "task" in line}
    return {task.split()[1] for task in tasks} <= sent


def _stop(stopping: threading.Event, thread: threading.Thread) -> None:
    stopping.set()
    thread.join()


def main() -> int:
    """Run campaigns, check them and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults; default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="what is done to whom; default: another one each time")
    parser.add_argument("--agents", type=int, default=0, help="how many; default: 3 to 5, by the seed")
    parser.add_argument("--kinds", default="", help="only these faults, by name, with commas")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    parser.add_argument("--check", type=Path, default=None, help="only check the history of this folder")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{nemesis.name} ({nemesis.target})" for nemesis in NEMESES))  # noqa: T201
        return 0
    if given.check is None:
        seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
        home = Path(tempfile.mkdtemp(prefix=f"bbgrap-campaign-{seed}-"))
        say(f"seed {seed}, {os.getloadavg()[0]:.1f} processes run besides; history: {home}")
        kinds = [kind.strip() for kind in given.kinds.split(",") if kind]
        with terminable():
            files = campaign(home, given.minutes, seed, agents=given.agents, lan=can_limit(), kinds=kinds)
    else:
        home, files = given.check, sorted(given.check.glob("*.jsonl"))
    verdict = check(read_histories(files))
    summary(verdict)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    (home / "verdict.json").write_text(json.dumps({**verdict.as_object(), "commit": commit}, indent=1))
    say(f"history and verdict: {home}")
    return 1 if verdict.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
