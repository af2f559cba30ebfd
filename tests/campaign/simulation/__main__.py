# ruff: noqa: T201 - it reports on stdout
"""Play stories by seed: `python -m tests.campaign.simulation --seeds 0..1000`, or one of them: `--seed 17 [--shrink] [--verbose]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from multiprocessing import get_context

from tests.campaign.simulation.many import Tally, play_many
from tests.campaign.simulation.shrink import kind_of, play, shrink
from tests.campaign.simulation.story import MANY_FROM, Story, draw
from tests.campaign.simulation.world import World

AT_ONCE = 50
"""Stories that a process plays until it tells what came of them."""


def main(arguments: list[str]) -> int:
    """Return how many seeds failed, 1 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.simulation", description=__doc__)
    parser.add_argument(
        "--seeds", help=f"play these, FIRST..LAST without the last; from {MANY_FROM} on with five agents and more", default="0..1000"
    )
    parser.add_argument("--seed", type=int, help="play this one")
    parser.add_argument("--shrink", action="store_true", help="cut failing stories down")
    parser.add_argument("--verbose", action="store_true", help="tell what everybody says")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="play them in so many processes")
    parser.add_argument("--stop-after", type=int, default=20, help="seeds that may fail before it stops")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, shrinks=options.shrink, verbose=options.verbose)
    first, last = map(int, options.seeds.split(".."))
    return _many(range(first, last), options.processes, options.stop_after, shrinks=options.shrink)


def _one(seed: int, *, shrinks: bool, verbose: bool) -> int:
    story = draw(seed)
    if shrinks and play(story):
        story, _ = shrink(story)
    print(told(story))
    world = World(story, verbose=verbose)
    try:
        surprises = world.play()
    except Exception:
        surprises = [traceback.format_exc()]
    print("\n".join([*world.lines, *(f"!!! {surprise}" for surprise in surprises)]))
    return int(bool(surprises))


def told(story: Story) -> str:
    """Return a story as text."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    about = f"seed {story.seed} at {commit or 'unknown'}: agents {story.agents}, {story.clients} clients, {story.models}, {story.uses}"
    wishes = [f"{wish.at:6.2f} client {wish.client} asks for {wish.use} {wish.trait}" for wish in story.wishes]
    return "\n".join([about, *(wishes if len(wishes) <= 12 else [f"{len(wishes)} requests"]), *map(str, story.faults)])


def _many(seeds: range, processes: int, stop_after: int, *, shrinks: bool) -> int:
    began, total = time.monotonic(), Tally()
    pieces = [seeds[place : place + AT_ONCE] for place in range(0, len(seeds), AT_ONCE)]
    with nullcontext() if processes == 1 else get_context("spawn").Pool(processes) as pool:
        for tally in map(play_many, pieces) if pool is None else pool.imap_unordered(play_many, pieces):
            total.add(tally)
            for seed, surprise in tally.failed.items():
                print(f"seed {seed}: {surprise[:600]}", flush=True)
                if shrinks:
                    print(told(shrink(draw(seed))[0]), flush=True)
            if len(total.failed) >= stop_after:
                break
    seconds, days = time.monotonic() - began, total.simulated / 86400
    print(f"{total.played} schedules in {seconds:.0f} s, {days:.2f} simulated days; {dict(total.counted)}; {total.faults.total()} faults:")
    print(", ".join(f"{count} {kind}" for kind, count in total.faults.most_common()))
    for kind, count in Counter(map(kind_of, total.failed.values())).most_common():
        print(f"{count} failed: {kind}")
    return int(bool(total.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
